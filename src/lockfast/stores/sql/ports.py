"""What the verbs on rows need: somebody who speaks a dialect, somebody who carries, and an ear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lockfast.core.ports import Wake
from lockfast.model import Busy, Claim
from lockfast.stores.sql.book import Change, Seen
from lockfast.stores.wakeups import Wakeups


class Speech(Protocol):
    """A dialect: requests, and what their replies mean. Requests are opaque here."""

    def claim_uncontended(self, mark: bytes, claim: Claim, wake_address: str) -> Any: ...

    def claim_again(self, mark: bytes, claim: Claim, wake_address: str) -> Any:
        """The same for a name that we left there a while ago. If its row is gone, nothing is done
        either, and the claim goes the long way."""

    def taken(self, reply: Any) -> int:
        """The fence; 0: the name was not alone, and nothing was done."""

    def join(self, mark: bytes, claim: Claim, wake_address: str) -> Any: ...

    def joined(self, reply: Any) -> Busy | None: ...

    def release_uncontended(self, mark: bytes, claim: Claim) -> Any: ...

    def released(self, reply: Any) -> bool: ...

    def extend(self, marks: Sequence[bytes], claims: Sequence[Claim], fences: Sequence[int]) -> Any:
        """Many holds of any names, under their fences, seated or not."""

    def extended(self, reply: Any) -> set[int]:
        """The numbers of those that live, and now go on."""

    def read(self, mark: bytes, ids: Sequence[str], limit: int) -> Any: ...

    def seen(self, reply: Any, limit: int) -> Seen: ...

    def write(self, mark: bytes, name: str, change: Change, wake_address: str) -> Any: ...

    def written(self, reply: Any) -> bool:
        """False: the version was another, and nothing was written."""

    def names(self, prefix: str) -> Any: ...

    def named(self, reply: Any) -> list[str]: ...

    def sweep(self, after: bytes, lot: int) -> Any: ...

    def swept(self, reply: Any) -> tuple[int, bytes, list[str]]:
        """How many were looked at, the last of them, and crowds whose seat is long over."""


class Ear(Protocol):
    """Where the bells of this client are heard. One for both colours; the keeper listens."""

    wakeups: Wakeups

    @property
    def wake_address(self) -> str: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool: ...

    def unwatch(self, claim_id: str) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """How requests travel; one colour."""

    suspends: bool

    def send(self, request: Any, budget: float) -> Any:
        """The reply, or if this colour ``suspends``, what to await for it."""

    def now(self) -> float: ...

    async def pause(self, attempt: int) -> None:
        """Others were faster, so many times: a short rest, at random."""

    def close(self) -> None: ...

"""Protocols of the SQL stores: the dialect, the transport, and the listener for wake-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lockfast.core.ports import Wake
from lockfast.model import Busy, Claim
from lockfast.stores.sql.book import Change, NameState
from lockfast.stores.wakeups import Wakeups


class Dialect(Protocol):
    """Encoder of requests and decoder of their replies. Requests are opaque to the backend."""

    def claim_uncontended(self, name_hash: bytes, claim: Claim, wake_address: str) -> Any: ...

    def claim_again(self, name_hash: bytes, claim: Claim, wake_address: str) -> Any:
        """Like `claim_uncontended`, for a name that this client released a while ago. If its row is
        gone meanwhile, the statement does nothing and the claim takes the general path."""

    def decode_claim(self, reply: Any) -> int:
        """Return the fence; 0: the name was contended, and nothing was done."""

    def join(self, name_hash: bytes, claim: Claim, wake_address: str) -> Any: ...

    def decode_join(self, reply: Any) -> Busy | None: ...

    def release_uncontended(self, name_hash: bytes, claim: Claim) -> Any: ...

    def decode_release(self, reply: Any) -> bool: ...

    def extend(
        self, name_hashes: Sequence[bytes], claims: Sequence[Claim], fences: Sequence[int]
    ) -> Any:
        """Renew a batch of holds of any names under their fences, stored inline or as rows."""

    def decode_extend(self, reply: Any) -> set[int]:
        """Return the indexes of the holds that were alive, and are now renewed."""

    def read(self, name_hash: bytes, ids: Sequence[str], limit: int) -> Any: ...

    def decode_read(self, reply: Any, limit: int) -> NameState: ...

    def write(self, name_hash: bytes, name: str, change: Change, wake_address: str) -> Any: ...

    def decode_write(self, reply: Any) -> bool:
        """Return False if the version had changed, and nothing was written."""

    def names(self, prefix: str) -> Any: ...

    def decode_names(self, reply: Any) -> list[str]: ...

    def sweep(self, after: bytes, count: int) -> Any: ...

    def decode_sweep(self, reply: Any) -> tuple[int, bytes, list[str]]:
        """Return how many names were scanned, the hash of the last one, and the contended names
        whose inline hold ended long ago."""


class WakeupListener(Protocol):
    """Receiver of this client's wake-ups. The keeper listens, for the sync and the async API."""

    wakeups: Wakeups

    @property
    def wake_address(self) -> str: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool: ...

    def unwatch(self, claim_id: str) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Carrier of requests, for one API."""

    suspends: bool

    def send(self, request: Any, budget: float) -> Any:
        """Return the reply, or an awaitable of it if the transport ``suspends``."""

    def now(self) -> float: ...

    async def pause(self, attempt: int) -> None:
        """Back off for a short random time after losing a race ``attempt`` times."""

    def close(self) -> None: ...

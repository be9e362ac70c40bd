"""What the core needs from the world: a runtime that waits and a backend that remembers.

The core is plain ``async def`` and awaits nothing but these. A blocking port blocks and returns, so
that the coroutine runs to its end in one ``send``; an asyncio port suspends; the simulator's port
suspends into virtual time. One rule keeps shared state whole in all three: it changes between
awaits, under `Runtime.mutex`, and nothing is awaited while that is held.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lockfast.errors import BackendError
from lockfast.model import (
    Busy,
    Capabilities,
    Claim,
    Differs,
    Gone,
    Granted,
    Snapshot,
)

Wake = Callable[[Granted | None], None]


class Signal(Protocol):
    """A doorbell: `set` from any thread; `wait` says whether it rang, and clears it."""

    def set(self) -> None: ...

    async def wait(self, timeout: float | None) -> bool: ...


class Runtime(Protocol):
    """Time, waiting and identity."""

    def now(self) -> float:
        """Seconds on a clock that never steps and that runs while the machine is suspended."""

    def signal(self) -> Signal: ...

    def mutex(self) -> AbstractContextManager[Any]: ...

    async def sleep(self, seconds: float) -> None: ...

    async def shielded(self, work: Coroutine[Any, Any, object], limit: float) -> None:
        """Do it to its end although we are being cancelled; give up waiting after ``limit``."""

    def owner(self) -> object:
        """The current task, or else the current thread: two of them never compare equal."""

    def asker(self, label: str) -> tuple[object, str]:
        """The same, and who that is for people, as `Who.encoded` writes it."""

    def stack(self) -> Callable[[], str]:
        """Called later, from any thread, it tells what the current task or thread does then, line
        by line. It keeps neither of them alive."""


class KeeperRuntime(Runtime, Protocol):
    """A runtime that can also run something beside us: a thread's, or the simulator's."""

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...


class Backend(Protocol):
    """One store. Every verb is one atomic step there, idempotent by claim id, over in ``budget``.

    What fails raises `BackendError`: then the outcome is unknown and asking again is harmless.

    A backend of the blocking colour may have plain functions ``claim_now`` and ``release_now``
    besides, which do the same as ``claim`` and ``release`` in the common case, faster. They
    return None where they did nothing, or do not know: then it is asked again, the long way.

    A backend for tasks may have ``claim_soon`` and ``release_soon`` besides: they begin to ask and
    return what to await, whose result ``claim_said`` and ``release_said`` read. A None from either
    means the same as above. It saves the common case a coroutine.

    A backend of the blocking colour may have ``ear(claim)``: the signal with which the current
    thread waits for that claim, where a thread hears its bells itself.

    A backend for tasks may have ``heard_by(keeper_backend)``: then its bells are heard by that one.

    A backend may have a ``patience``: how long, in seconds, who waits goes on asking while it does
    not answer.

    A backend whose holds end with a session may have ``on_doubt(tell)``: it calls ``tell``, from
    any thread, when the session is out of reach or has ended. Such a store does not end a hold by
    the hold's own lease as long as the session lives, so the keeper leaves what is over.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs: ...

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> Sequence[Granted | Busy | Differs]:
        """Claim after claim, in this order, in as few steps as the store can; up to and with the
        first that is not granted. Plain locks (``layout``) are asked for alone."""

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Sequence[Granted | Busy | Gone | BackendError]:
        """Holds under their fences, and places (fence 0). What is not there is not made again. A
        store of several servers answers with an error, not raised, what is at one that is away;
        if that is all, it raises it."""

    async def release(self, claim: Claim, budget: float) -> bool: ...

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> Sequence[bool]: ...

    async def leave(self, claim: Claim, budget: float) -> Snapshot: ...

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone: ...

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone: ...

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int: ...

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """From now on call ``wake`` when the claim is served or rung. Hints only: they may be late,
        double, false or missing; they may come on any thread. Whether a bell may have been missed
        since ``since``, when the claim was sent: then it is asked for again."""

    def unwatch(self, claim: Claim) -> None: ...

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot: ...

    async def names(self, prefix: str, budget: float) -> Iterable[str]: ...

    async def break_hold(self, name: str, fence: int, budget: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None:
        """The keeper's pause: deliver bells until one came, `poke` was called, or time is over."""

    def interrupt(self) -> None:
        """Make `hear` return; from any thread, and not forgotten if nobody hears just now."""

    def close(self) -> None: ...

"""The core's ports: a runtime that waits, and a backend that stores claims.

The core is plain ``async def`` and awaits nothing but these. A blocking port blocks and returns, so
that the coroutine runs to its end in one ``send``; an asyncio port suspends; the simulator's port
suspends into virtual time. One rule keeps shared state consistent in all three: the state changes
between awaits, under `Runtime.mutex`, and nothing is awaited while the mutex is held.
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
    """An event flag that any thread may `set`. `wait` returns False on time-out; otherwise it
    clears the flag and returns True."""

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
        """Run ``work`` to its end despite cancellation; stop waiting after ``limit`` seconds."""

    def owner(self) -> object:
        """The current task, or else the current thread. Two owners never compare equal."""

    def identity(self, label: str) -> tuple[object, str]:
        """The current owner, and its description for people as `Who.encoded` writes it."""

    def stack(self) -> Callable[[], str]:
        """A function that formats the stack of the current task or thread. It may be called later
        and from any thread, and it keeps neither the task nor the thread alive."""


class KeeperRuntime(Runtime, Protocol):
    """A runtime that can also run a coroutine concurrently: that of threads, or the simulator's."""

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...


class Backend(Protocol):
    """One store. Every verb is one atomic step there, idempotent by claim id, done in ``budget``.

    A verb that fails raises `BackendError`: the outcome is unknown, and a retry is harmless.

    Optional attributes:

    - ``claim_now``, ``release_now`` (sync API): plain functions that do the work of ``claim`` and
      ``release`` in the common case, faster. They return None if they did nothing or do not know
      the outcome; the core then calls the coroutine.
    - ``claim_soon``, ``release_soon`` (async API): send the request and return an awaitable, whose
      value ``claim_result`` and ``release_result`` decode. None means the same as above. They save
      a coroutine in the common case.
    - ``waiter_signal(claim)`` (sync API): the signal with which the current thread waits for that
      claim, for stores where each waiting thread reads its own wake-ups.
    - ``share_listener_of(keeper_backend)`` (async API): the keeper's backend listens for this one.
    - ``patience``: how many seconds a waiter keeps asking while the store does not answer.
    - ``on_uncertain(callback)``, for a store whose holds end with a session: it calls ``callback``,
      from any thread, when the session is unreachable or has ended. Such a store does not end a
      hold by the hold's own lease while the session lives, so the keeper withdraws expired holds.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs: ...

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> Sequence[Granted | Busy | Differs]:
        """Claim in this order, in as few round trips as the store can, and stop after the first
        claim that is not granted. A claim with a ``layout`` is always a batch of one."""

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Sequence[Granted | Busy | Gone | BackendError]:
        """Renew holds (by their fences) and waiters (fence 0). A row that is gone is not created
        again. A store of several servers returns an error for the claims of a server that is
        unreachable, and raises it only if it has no other answer."""

    async def release(self, claim: Claim, budget: float) -> bool: ...

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> Sequence[bool]: ...

    async def leave(self, claim: Claim, budget: float) -> Snapshot: ...

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone: ...

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone: ...

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int: ...

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """Call ``wake`` from now on when the claim is granted or should be sent again. Wake-ups are
        hints: they may be late, duplicated, spurious or missing, and come on any thread. Return
        True if one may have been missed after ``since``, when the claim was sent: then the waiter
        claims again."""

    def unwatch(self, claim: Claim) -> None: ...

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot: ...

    async def names(self, prefix: str, budget: float) -> Iterable[str]: ...

    async def break_hold(self, name: str, fence: int, budget: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None:
        """Deliver wake-ups until one arrived, `interrupt` was called, or the time-out is over."""

    def interrupt(self) -> None:
        """Make `listen` return, or the next one if none runs. Callable from any thread."""

    def close(self) -> None: ...

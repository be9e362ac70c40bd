"""The core's ports: a runtime that waits, and a store that keeps claims.

The core is plain ``async def`` and awaits nothing but these. A blocking port blocks and returns, so
that the coroutine runs to its end in one ``send``; an asyncio port suspends; the simulator's port
suspends into virtual time. One rule keeps shared state consistent in all three: the state changes
between awaits, under `Runtime.mutex`, and nothing is awaited while the mutex is held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from lockfast.errors import BackendError, Unsupported
from lockfast.model import (
    Busy,
    Capabilities,
    Claim,
    Differs,
    Gone,
    Granted,
    Snapshot,
)

T = TypeVar("T")
# A value where the store blocks, an awaitable of it where the store suspends.
Reply: TypeAlias = T | Awaitable[T]
Answer: TypeAlias = Granted | Busy | Differs
Wake = Callable[[Granted | None], None]

# The least time for which a waiter keeps asking a store that does not answer.
PATIENCE = 10.0


async def answer_of(reply: Reply[T]) -> T:
    """Await the answer of a store that suspends."""
    return (await reply) if isinstance(reply, Awaitable) else reply


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

    def stuck(self, holds: Mapping[tuple[str, object], T]) -> list[T]:
        """Those of the holds, by name and owner, whose owners cannot go on while the caller waits:
        tasks of the event loop that a blocking wait stops."""

    def stack(self) -> Callable[[], str]:
        """A function that formats the stack of the current task or thread. It may be called later
        and from any thread, and it keeps neither the task nor the thread alive."""


class KeeperRuntime(Runtime, Protocol):
    """A runtime that can also run a coroutine concurrently: that of threads, or the simulator's."""

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...

    def background(self, name: str, work: Callable[[], object]) -> None:
        """Call a function of the user, which may block, so that it does not keep the keeper from
        its work: on a thread of its own if the caller is the keeper, at once otherwise."""


class Store(ABC):
    """One store, for one API. Every verb is one atomic step there, idempotent by claim id.

    A verb is a plain function. It returns the answer where the store blocks, and an awaitable of
    the answer where the store ``suspends``; only the core awaits it. A verb takes at most
    ``budget`` seconds. If it fails, the call or the awaitable raises `BackendError`: the outcome
    is unknown, and a retry is harmless.
    """

    suspends: bool = False
    patience: float = PATIENCE  # seconds for which a waiter keeps asking a silent store
    # Holds end with a session. Such a store does not end a hold by the hold's own lease while the
    # session lives, so the keeper withdraws expired holds.
    in_session: ClassVar[bool] = False

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[Answer]]:
        """Claim in this order, in as few round trips as the store can, and stop after the first
        claim that is not granted. A claim with a ``layout`` is always a batch of one."""

    @abstractmethod
    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Reply[Sequence[Granted | Busy | Gone | BackendError]]:
        """Renew holds (by their fences) and waiters (fence 0). A row that is gone is not created
        again. A store of several servers returns an error for the claims of a server that is
        unreachable, and raises it only if it has no other answer."""

    @abstractmethod
    def release(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[bool]]:
        """Release holds; False for one that the store does not know (any more)."""

    @abstractmethod
    def leave(self, claim: Claim, budget: float) -> Reply[Snapshot]:
        """Withdraw a claim, be it a waiter or a hold, and say who holds the name."""

    @abstractmethod
    def transfer(self, claim: Claim, attached: bool, budget: float) -> Reply[Granted | Gone]:
        """Write the claim's owner and lease into its hold, which a process gives up or takes."""

    @abstractmethod
    def shrink(self, claim: Claim, budget: float) -> Reply[Granted | Gone]:
        """Give back all slots of the hold but ``claim.take``."""

    @abstractmethod
    def resize(self, name: str, expected: int, slots: int, budget: float) -> Reply[int]:
        """Change the slots of a name that has ``expected``; return how many it had (0: none)."""

    @abstractmethod
    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        """Call ``wake`` from now on when the claim is granted or should be sent again. Wake-ups are
        hints: they may be late, duplicated, spurious or missing, and come on any thread. Return
        True if one may have been missed after ``since``, when the claim was sent: then the waiter
        claims again."""

    @abstractmethod
    def unwatch(self, claim: Claim) -> None: ...

    @abstractmethod
    def inspect(self, name: str, budget: float, layout: str = "") -> Reply[Snapshot]: ...

    @abstractmethod
    def names(self, prefix: str, budget: float) -> Reply[Iterable[str]]: ...

    @abstractmethod
    def break_hold(self, name: str, fence: int, budget: float) -> Reply[bool]: ...

    @abstractmethod
    def listen(self, timeout: float | None) -> Reply[None]:
        """Deliver wake-ups until one arrived, `interrupt` was called, or the time-out is over."""

    @abstractmethod
    def interrupt(self) -> None:
        """Make `listen` return, or the next one if none runs. Callable from any thread."""

    @abstractmethod
    def close(self) -> None: ...

    # ---- optional parts --------------------------------------------------------------------

    def signal(self, claim: Claim) -> Signal | None:
        """The signal with which the caller waits for this claim, for a store where each waiting
        thread reads its own wake-ups. None: the runtime's."""
        return None

    def share_listener_of(self, keeper_store: Store) -> None:
        """Receive wake-ups through the store of the keeper, which listens for both (asyncio)."""
        return None

    def on_uncertain(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, from any thread, when the session that all holds are in is
        unreachable or has ended."""
        return None

    def transaction(
        self, full_name: str, name: str, connection: object, timeout: float | None, advisory: bool
    ) -> Coroutine[Any, Any, int]:
        """Lock a name in the user's own transaction; the coroutine returns the fence."""
        raise Unsupported("this store has no transactions that could hold a lock")

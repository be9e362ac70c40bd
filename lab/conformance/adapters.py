"""A client, a lock and a hold with the same awaitable verbs over both APIs.

The blocking face answers at once, the asyncio face gives something to await; `settled` makes one of
both. In the blocking world nothing here suspends, so `lockfast.runtime.threads.run` can run it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar, cast

from lockfast import aio, sync
from lockfast.core.ports import Backend, Signal
from lockfast.keys import Key
from lockfast.model import Capabilities, Claim, Snapshot, Statistics
from lockfast.runtime.threads import run
from lockfast.stores import Store

F = TypeVar("F", bound=Callable[..., Any])

# Told the verb before it is sent and after it was answered, on the thread or task that asks.
Hook = Callable[[str, str], Coroutine[Any, Any, None]]

VERBS = frozenset(
    [
        "claim",
        "claim_batch",
        "renew",
        "release",
        "release_batch",
        "leave",
        "transfer",
        "shrink",
        "resize",
        "watch",
        "inspect",
        "names",
        "break_hold",
    ]
)


async def settled(value: Any) -> Any:
    """The answer of either face."""
    return await value if inspect.isawaitable(value) else value


class AnyHold:
    """A `lockfast.Hold` or a `lockfast.aio.Hold`."""

    def __init__(self, raw: sync.Hold | aio.Hold) -> None:
        self.raw = raw

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def fence(self) -> int:
        return self.raw.fence

    @property
    def lease(self) -> float:
        return self.raw.lease

    @property
    def is_held(self) -> bool:
        return self.raw.is_held

    @property
    def is_certain(self) -> bool:
        return self.raw.is_certain

    @property
    def lost(self) -> bool:
        return self.raw.lost

    def remaining(self) -> float:
        return self.raw.remaining()

    def check(self) -> None:
        self.raw.check()

    async def release(self) -> None:
        await settled(self.raw.release())

    async def renew(self, **terms: Any) -> None:
        await settled(self.raw.renew(**terms))

    async def wait_lost(self, timeout: float | None = None) -> bool:
        return cast(bool, await settled(self.raw.wait_lost(timeout)))

    async def detach(self) -> str:
        return cast(str, await settled(self.raw.detach()))

    async def __aenter__(self) -> AnyHold:
        await _enter(self.raw)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.raw, kind, error, trace)


class AnyLock:
    """A `lockfast.Lock` or a `lockfast.aio.Lock`; ``async with`` is that of its face."""

    def __init__(self, raw: sync.Lock | aio.Lock) -> None:
        self.raw = raw

    @property
    def is_held(self) -> bool:
        return self.raw.is_held

    async def acquire(self, **terms: Any) -> AnyHold:
        return AnyHold(await settled(self.raw.acquire(**terms)))

    async def try_acquire(self, **terms: Any) -> AnyHold | None:
        raw = await settled(self.raw.try_acquire(**terms))
        return None if raw is None else AnyHold(raw)

    async def release(self) -> None:
        await settled(self.raw.release())

    async def locked(self) -> bool:
        return cast(bool, await settled(self.raw.locked()))

    async def __aenter__(self) -> AnyHold:
        return AnyHold(await _enter(self.raw))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.raw, kind, error, trace)


class Either:
    """Anything else of either face: its methods are awaited, and what they give is wrapped. Facts
    (names, numbers) are as they are."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __getattr__(self, word: str) -> Any:
        found = getattr(self.raw, word)
        if not inspect.ismethod(found):
            return found

        async def verb(*args: Any, **terms: Any) -> Any:
            return wrapped(await settled(found(*args, **terms)))

        return verb

    async def __aenter__(self) -> Any:
        return wrapped(await _enter(self.raw))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.raw, kind, error, trace)


def wrapped(raw: Any) -> Any:
    """A lock or a hold for the cases; what is none is as it is."""
    if isinstance(raw, sync.Hold | aio.Hold):
        return AnyHold(raw)
    if isinstance(raw, sync.Lock | aio.Lock):
        return AnyLock(raw)
    return Either(raw) if isinstance(raw, sync.MultiHold | aio.MultiHold) else raw


class AnyReadWriteLock:
    """A `lockfast.ReadWriteLock` or a `lockfast.aio.ReadWriteLock`."""

    def __init__(self, raw: sync.ReadWriteLock | aio.ReadWriteLock) -> None:
        self.raw = raw

    def read(self) -> AnyLock:
        return AnyLock(self.raw.read())

    def write(self) -> AnyLock:
        return AnyLock(self.raw.write())


class AnyElection(Either):
    """A `lockfast.Election` or a `lockfast.aio.Election`."""

    def lead(self, **terms: Any) -> AnyLock:
        return AnyLock(self.raw.lead(**terms))


class AnyClient:
    """A `lockfast.Client` or a `lockfast.aio.Client`."""

    def __init__(self, raw: sync.Client | aio.Client) -> None:
        self.raw = raw

    @property
    def capabilities(self) -> Capabilities:
        return self.raw.capabilities

    def most(self, lease: float) -> float:
        """How much of a lease one may believe in at once: where holds share a session, no more than
        what is sure of that, however long the lease."""
        session = self.capabilities.session
        return min(lease, session * 0.74) if session else lease

    def statistics(self) -> Statistics:
        return self.raw.statistics()

    def lock(self, name: str, **terms: Any) -> AnyLock:
        return AnyLock(self.raw.lock(name, **terms))

    def rwlock(self, name: str, **terms: Any) -> AnyReadWriteLock:
        return AnyReadWriteLock(self.raw.rwlock(name, **terms))

    def semaphore(self, name: str, permits: int, **terms: Any) -> Either:
        return Either(self.raw.semaphore(name, permits, **terms))

    def permits(self, name: str, permits: int, **terms: Any) -> Either:
        return Either(self.raw.permits(name, permits, **terms))

    def multi_lock(self, *names: str | AnyLock, **terms: Any) -> Either:
        raw: list[Any] = [name.raw if isinstance(name, AnyLock) else name for name in names]
        return Either(self.raw.multi_lock(*raw, **terms))

    def latch(self, name: str, count: int, **terms: Any) -> Either:
        return Either(self.raw.latch(name, count, **terms))

    def barrier(self, name: str, parties: int, **terms: Any) -> Either:
        return Either(self.raw.barrier(name, parties, **terms))

    def election(self, name: str, **terms: Any) -> AnyElection:
        return AnyElection(self.raw.election(name, **terms))

    def once_every(self, period: Any, **terms: Any) -> Callable[[F], F]:
        return self.raw.once_every(period, **terms)

    def locked(self, key: Key, **terms: Any) -> Callable[[F], F]:
        return self.raw.locked(key, **terms)

    async def attach(self, name: str, detached: str, **terms: Any) -> AnyHold:
        return AnyHold(await settled(self.raw.attach(name, detached, **terms)))

    async def inspect(self, name: str) -> Snapshot:
        return cast(Snapshot, await settled(self.raw.inspect(name)))

    async def names(self, prefix: str = "") -> list[str]:
        return cast("list[str]", await settled(self.raw.names(prefix)))

    async def break_hold(self, name: str, fence: int) -> bool:
        return cast(bool, await settled(self.raw.break_hold(name, fence)))

    async def close(self) -> None:
        await settled(self.raw.close())


async def _enter(raw: Any) -> Any:
    if hasattr(raw, "__enter__"):
        return raw.__enter__()
    return await raw.__aenter__()


async def _leave(
    raw: Any,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    if hasattr(raw, "__exit__"):
        raw.__exit__(kind, error, trace)
    else:
        await raw.__aexit__(kind, error, trace)


class Around:
    """A backend that passes everything on, and tells a hook of each verb: to count, or to fail."""

    def __init__(self, inner: Backend, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, word: str) -> Any:
        found = getattr(self._inner, word)
        if word in ("claim_now", "release_now"):
            return self._hooked_now(word.removesuffix("_now"), found)
        if word in ("claim_soon", "release_soon"):
            return self._hooked_soon(word.removesuffix("_soon"), found)
        return self._hooked(word, found) if word in VERBS else found

    def _hooked_now(self, word: str, found: Callable[..., Any]) -> Callable[..., Any]:
        """The same verb without a coroutine, of a blocking backend."""

        def verb(*args: Any) -> Any:
            run(self._hook(word, "before"))
            answer = found(*args)
            run(self._hook(word, "after"))
            return answer

        return verb

    def _hooked_soon(self, word: str, found: Callable[..., Any]) -> Callable[..., Any]:
        """The same verb, of a backend for tasks, in the common case."""
        asked = self._hooked(word, found)

        def verb(claim: Claim, budget: float) -> Any:
            unusual = claim.layout or claim.take > claim.slots
            return found(claim, budget) if unusual else asked(claim, budget)

        return verb

    def _hooked(
        self, word: str, found: Callable[..., Coroutine[Any, Any, Any]]
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def verb(*args: Any) -> Any:
            await self._hook(word, "before")
            answer = await found(*args)
            await self._hook(word, "after")
            return answer

        return verb


class AroundStore:
    """A store all of whose backends are `Around`."""

    def __init__(self, store: Store, hook: Hook) -> None:
        self.url = store.url
        self._store = store
        self._hook = hook

    def blocking(self, signal: Callable[[], Signal]) -> Backend:
        return cast(Backend, Around(self._store.blocking(signal), self._hook))

    def tasks(self, signal: Callable[[], Signal]) -> Backend:
        return cast(Backend, Around(self._store.tasks(signal), self._hook))

"""Adapters that give the clients, locks and holds of both APIs the same awaitable methods.

A method of the sync API returns its result, one of the async API an awaitable; `maybe_await` hides
the difference. Over the sync API nothing here suspends, so `lockfast.runtime.threads.run` can run
the cases.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar, cast

from lockfast import aio, sync
from lockfast.core.ports import Signal, Store, answer_of
from lockfast.keys import Key
from lockfast.model import Capabilities, Snapshot, Statistics
from lockfast.runtime.threads import run
from lockfast.stores import Endpoint

F = TypeVar("F", bound=Callable[..., Any])

# Called with a verb and "before" it is sent or "after" it was answered, on the calling thread or
# task.
Hook = Callable[[str, str], Coroutine[Any, Any, None]]

VERBS = frozenset(
    [
        "claim",
        "renew",
        "release",
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


async def maybe_await(value: Any) -> Any:
    """Return the result of a call to either API."""
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
        await maybe_await(self.raw.release())

    async def renew(self, **terms: Any) -> None:
        await maybe_await(self.raw.renew(**terms))

    async def wait_lost(self, timeout: float | None = None) -> bool:
        return cast(bool, await maybe_await(self.raw.wait_lost(timeout)))

    async def detach(self) -> str:
        return cast(str, await maybe_await(self.raw.detach()))

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
    """A `lockfast.Lock` or a `lockfast.aio.Lock`, also as a context manager."""

    def __init__(self, raw: sync.Lock | aio.Lock) -> None:
        self.raw = raw

    @property
    def is_held(self) -> bool:
        return self.raw.is_held

    async def acquire(self, **terms: Any) -> AnyHold:
        return AnyHold(await maybe_await(self.raw.acquire(**terms)))

    async def try_acquire(self, **terms: Any) -> AnyHold | None:
        raw = await maybe_await(self.raw.try_acquire(**terms))
        return None if raw is None else AnyHold(raw)

    async def release(self) -> None:
        await maybe_await(self.raw.release())

    async def locked(self) -> bool:
        return cast(bool, await maybe_await(self.raw.locked()))

    async def __aenter__(self) -> AnyHold:
        return AnyHold(await _enter(self.raw))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.raw, kind, error, trace)


class AnyPrimitive:
    """Any other primitive of either API: its methods are awaited and their results wrapped.

    Plain attributes (names, numbers) are passed through.
    """

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.raw, name)
        if not inspect.ismethod(attribute):
            return attribute

        async def method(*args: Any, **terms: Any) -> Any:
            return wrapped(await maybe_await(attribute(*args, **terms)))

        return method

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
    """Wrap a lock or a hold in its adapter; return any other value unchanged."""
    if isinstance(raw, sync.Hold | aio.Hold):
        return AnyHold(raw)
    if isinstance(raw, sync.Lock | aio.Lock):
        return AnyLock(raw)
    return AnyPrimitive(raw) if isinstance(raw, sync.MultiHold | aio.MultiHold) else raw


class AnyReadWriteLock:
    """A `lockfast.ReadWriteLock` or a `lockfast.aio.ReadWriteLock`."""

    def __init__(self, raw: sync.ReadWriteLock | aio.ReadWriteLock) -> None:
        self.raw = raw

    def read(self) -> AnyLock:
        return AnyLock(self.raw.read())

    def write(self) -> AnyLock:
        return AnyLock(self.raw.write())


class AnyElection(AnyPrimitive):
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

    def longest_validity(self, lease: float) -> float:
        """The longest validity that a fresh hold with this lease can have.

        Where the holds of a client share a session, its time-out limits their validity, however
        long the lease.
        """
        session = self.capabilities.session
        return min(lease, session * 0.74) if session else lease

    def statistics(self) -> Statistics:
        return self.raw.statistics()

    def lock(self, name: str, **terms: Any) -> AnyLock:
        return AnyLock(self.raw.lock(name, **terms))

    def rwlock(self, name: str, **terms: Any) -> AnyReadWriteLock:
        return AnyReadWriteLock(self.raw.rwlock(name, **terms))

    def semaphore(self, name: str, permits: int, **terms: Any) -> AnyPrimitive:
        return AnyPrimitive(self.raw.semaphore(name, permits, **terms))

    def permits(self, name: str, permits: int, **terms: Any) -> AnyPrimitive:
        return AnyPrimitive(self.raw.permits(name, permits, **terms))

    def multi_lock(self, *names: str | AnyLock, **terms: Any) -> AnyPrimitive:
        raw: list[Any] = [name.raw if isinstance(name, AnyLock) else name for name in names]
        return AnyPrimitive(self.raw.multi_lock(*raw, **terms))

    def latch(self, name: str, count: int, **terms: Any) -> AnyPrimitive:
        return AnyPrimitive(self.raw.latch(name, count, **terms))

    def barrier(self, name: str, parties: int, **terms: Any) -> AnyPrimitive:
        return AnyPrimitive(self.raw.barrier(name, parties, **terms))

    def election(self, name: str, **terms: Any) -> AnyElection:
        return AnyElection(self.raw.election(name, **terms))

    def once_every(self, period: Any, **terms: Any) -> Callable[[F], F]:
        return cast(Any, self.raw.once_every(period, **terms))  # type: ignore[no-any-return]

    def locked(self, key: Key, **terms: Any) -> Callable[[F], F]:
        return cast(Callable[[F], F], self.raw.locked(key, **terms))

    async def attach(self, name: str, detached: str, **terms: Any) -> AnyHold:
        return AnyHold(await maybe_await(self.raw.attach(name, detached, **terms)))

    async def inspect(self, name: str) -> Snapshot:
        return cast(Snapshot, await maybe_await(self.raw.inspect(name)))

    async def names(self, prefix: str = "") -> list[str]:
        return cast("list[str]", await maybe_await(self.raw.names(prefix)))

    async def break_hold(self, name: str, fence: int) -> bool:
        return cast(bool, await maybe_await(self.raw.break_hold(name, fence)))

    async def close(self) -> None:
        await maybe_await(self.raw.close())


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


class HookedStore:
    """A store that calls a hook before and after each verb: to count requests, or to fail."""

    def __init__(self, inner: Store, hook: Hook, *, suspends: bool) -> None:
        self._inner = inner
        self._hook = hook
        self.suspends = suspends

    def share_listener_of(self, keeper_store: HookedStore) -> None:
        self._inner.share_listener_of(keeper_store._inner)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return self._hooked(name, attribute) if name in VERBS else attribute

    def _hooked(self, verb: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        async def suspending(*args: Any) -> Any:
            await self._hook(verb, "before")
            reply = await answer_of(inner(*args))
            await self._hook(verb, "after")
            return reply

        def blocking(*args: Any) -> Any:
            run(self._hook(verb, "before"))
            reply = inner(*args)
            run(self._hook(verb, "after"))
            return reply

        return suspending if self.suspends else blocking


class HookedEndpoint(Endpoint):
    """An endpoint that wraps each of its stores in a `HookedStore`."""

    def __init__(self, endpoint: Endpoint, hook: Hook) -> None:
        self.url = endpoint.url
        self._endpoint = endpoint
        self._hook = hook

    def blocking(self, signal: Callable[[], Signal]) -> Store:
        return cast(Store, HookedStore(self._endpoint.blocking(signal), self._hook, suspends=False))

    def tasks(self, signal: Callable[[], Signal]) -> Store:
        return cast(Store, HookedStore(self._endpoint.tasks(signal), self._hook, suspends=True))

"""The two environments of a case: threads and asyncio. A case is written once, over `World`.

In `BlockingWorld` every method blocks and nothing suspends; `spawn` starts a thread. In
`AsyncioWorld` methods are awaited; `spawn` starts a task. When a case has passed, its world checks
that it left nothing behind: no hold, no waiter, no keeper.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from lab.conformance.adapters import AnyClient, Hook, HookedEndpoint
from lab.conformance.children import Child
from lab.conformance.concurrency import (
    SOON,
    AnyTask,
    AsyncioEvent,
    AsyncioTask,
    Event,
    ThreadEvent,
    ThreadTask,
    Work,
    cancelled_at,
)
from lockfast import aio, sync
from lockfast.runtime.threads import run
from lockfast.stores import open_endpoint

T = TypeVar("T")

LEASE = 30.0


class World(ABC):
    """One store, one API, and the clients, tasks and children that a case creates."""

    api: ClassVar[str]

    def __init__(self, url: str) -> None:
        self.url = url
        self._clients: list[AnyClient] = []
        self._children: list[Child] = []
        self._tasks: list[AnyTask] = []
        self._namespaces: set[str] = set()
        self._keepers = len(_keepers())

    def client(
        self, *, lease: float = LEASE, namespace: str = "default", hook: Hook | None = None
    ) -> AnyClient:
        """A new client of the store. ``hook`` runs before and after every verb that it sends."""
        if hook is None:
            raw = self._connect(lease, namespace)
        else:
            raw = self._on(HookedEndpoint(open_endpoint(self.url), hook), lease, namespace)
        client = AnyClient(raw)
        self._clients.append(client)
        self._namespaces.add(namespace)
        return client

    def child(self) -> Child:
        """A client in another process, of this API and on this store."""
        child = Child(self.api, self.url)
        self._children.append(child)
        return child

    def spawn(self, work: Work, *args: Any) -> AnyTask:
        """Run ``work`` concurrently, as another owner."""
        task = self._spawn(functools.partial(work, *args))
        self._tasks.append(task)
        return task

    async def until(self, predicate: Callable[[], Any], within: float = SOON) -> Any:
        """Wait until ``predicate()``, which may be async, is true; return its value."""
        ends = time.monotonic() + within
        while True:
            value = predicate()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return value
            assert time.monotonic() < ends, f"not true within {within} s: {predicate}"
            await self.sleep(0.01)

    async def until_waiting(self, client: AnyClient, name: str, count: int) -> None:
        """Wait until the queue of a name has this number of waiters."""

        async def has_count() -> bool:
            return len((await client.inspect(name)).waiters) == count

        await self.until(has_count)

    def run(self, body: Callable[[World], Coroutine[Any, Any, None]], *, tidy: bool) -> None:
        """Run a case, then clean up; a ``tidy`` case must have left nothing behind."""
        self.start(functools.partial(self._run_and_clean_up, body, tidy))

    async def _run_and_clean_up(
        self, body: Callable[[World], Coroutine[Any, Any, None]], tidy: bool
    ) -> None:
        try:
            await body(self)
            assert all(task.done for task in self._tasks), "a task of the case is still running"
        finally:
            for child in self._children:
                child.dispose()
            for client in self._clients:
                await client.close()
        if tidy:
            await self._check_nothing_left()

    async def _check_nothing_left(self) -> None:
        await self.until(lambda: len(_keepers()) <= self._keepers, within=5)
        for namespace in sorted(self._namespaces):
            client = AnyClient(self._connect(LEASE, namespace))
            left = await client.names()
            await client.close()
            assert not left, f"left behind in the store: {left}"

    # The differences between the two APIs.

    @abstractmethod
    def start(self, work: Work) -> None: ...

    @abstractmethod
    def _connect(self, lease: float, namespace: str) -> sync.Client | aio.Client: ...

    @abstractmethod
    def _on(
        self, store: HookedEndpoint, lease: float, namespace: str
    ) -> sync.Client | aio.Client: ...

    @abstractmethod
    def _spawn(self, work: Work) -> AnyTask: ...

    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def blocking(self, work: Callable[[], T]) -> T:
        """Call a blocking function that is not part of lockfast."""

    @abstractmethod
    async def result(self, returned: Any) -> Any:
        """The result of a decorated function, sync or async, from what its call returned."""

    @abstractmethod
    async def step(self, verb: str, moment: str) -> None:
        """A hook that lets `interrupted` strike before and after every verb."""

    @abstractmethod
    async def interrupted(self, step: int, work: Work) -> bool:
        """Run ``work`` and interrupt it at its ``step``-th step: by a cancellation in asyncio, by
        KeyboardInterrupt in threads. Return False if it ended before that step."""


class BlockingWorld(World):
    api = "blocking"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._victim: tuple[int, int] | None = None  # the thread, and how many steps remain

    def start(self, work: Work) -> None:
        run(work())

    def _connect(self, lease: float, namespace: str) -> sync.Client:
        return sync.connect(self.url, lease=lease, namespace=namespace)

    def _on(self, store: HookedEndpoint, lease: float, namespace: str) -> sync.Client:
        return sync.Client._on(store, lease=lease, namespace=namespace)

    def _spawn(self, work: Work) -> AnyTask:
        return ThreadTask(work)

    def event(self) -> Event:
        return ThreadEvent()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def blocking(self, work: Callable[[], T]) -> T:
        return work()

    async def result(self, returned: Any) -> Any:
        return asyncio.run(returned) if asyncio.iscoroutine(returned) else returned

    async def step(self, verb: str, moment: str) -> None:
        if self._victim is not None and self._victim[0] == threading.get_ident():
            thread, left = self._victim
            self._victim = (thread, left - 1) if left else None
            if not left:
                raise KeyboardInterrupt

    async def interrupted(self, step: int, work: Work) -> bool:
        self._victim = (threading.get_ident(), step)
        try:
            await work()
        except KeyboardInterrupt:
            return True
        finally:
            self._victim = None
        return False


class AsyncioWorld(World):
    api = "asyncio"

    def start(self, work: Work) -> None:
        asyncio.run(work())

    def _connect(self, lease: float, namespace: str) -> aio.Client:
        return aio.connect(self.url, lease=lease, namespace=namespace)

    def _on(self, store: HookedEndpoint, lease: float, namespace: str) -> aio.Client:
        return aio.Client._on(store, lease=lease, namespace=namespace)

    def _spawn(self, work: Work) -> AnyTask:
        return AsyncioTask(work)

    def event(self) -> Event:
        return AsyncioEvent()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def result(self, returned: Any) -> Any:
        return await returned if asyncio.iscoroutine(returned) else returned

    async def step(self, verb: str, moment: str) -> None:
        if asyncio._get_running_loop() is not None:  # not on the keeper's thread
            await asyncio.sleep(0)

    async def interrupted(self, step: int, work: Work) -> bool:
        task = asyncio.ensure_future(cancelled_at(step, work()))
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        return task.cancelled()


WORLDS: dict[str, type[World]] = {world.api: world for world in (BlockingWorld, AsyncioWorld)}


def _keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lockfast-keeper"]

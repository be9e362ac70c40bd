"""Virtual time, and processes that run in it: the third runtime of the core.

One heap of events, one random source, no threads: a run is a function of its seed. A node is a
client's process. Its clock has an offset and a drift of its own, and continues while the node is
paused, as a real clock does. A crash closes its coroutines at their current await.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

from lockfast.model import Who

T = TypeVar("T")

SOON = 0.01  # seconds: about as long as a request and its reply take


class Cancelled(BaseException):
    """Thrown into a task to cancel it; like asyncio's, not an Exception."""


class _Suspend:
    """A port's request to the world: resume at ``until`` (true time) or by ``signal``."""

    __slots__ = ("signal", "until")

    def __init__(self, until: float, signal: SimSignal | None) -> None:
        self.until = until
        self.signal = signal

    def __await__(self) -> Generator[_Suspend, bool, bool]:
        return (yield self)


class World:
    """The clock, the events and the random source."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.time = 0.0
        self.current: Task | None = None
        self.crashes: list[BaseException] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action, args))

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.at(self.time + delay, action, *args)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        events = self._events
        while events and events[0][0] <= until and not done():
            self.time, _, action, args = heapq.heappop(events)
            action(*args)
        if not done():
            self.time = max(self.time, until)

    def start(self, node: Node, work: Coroutine[Any, Any, Any]) -> Task:
        task = Task(node, work)
        node.tasks.append(task)
        self.after(0.0, self.resume, task, 0, False)
        return task

    def resume(self, task: Task, step: int, value: bool | BaseException) -> None:
        """Resume a task, unless something else has since (then its step differs)."""
        node = task.node
        if task.done or step != task.step or node.dead:
            return
        if node.paused_until > self.time:
            self.at(node.paused_until, self.resume, task, step, value)
            return
        task.step += 1
        self.current = task
        try:
            if isinstance(value, BaseException):
                suspend = task.work.throw(value)
            else:
                suspend = task.work.send(value if step else None)
        except StopIteration:
            task.done = True
        except Cancelled:
            task.done = True
        except Exception as error:  # the core let it escape: a violation
            task.done = True
            self.crashes.append(error)
        else:
            if suspend.signal is not None:
                suspend.signal.waiter = (task, task.step)
            if suspend.until != float("inf"):
                self.at(suspend.until, self.resume, task, task.step, False)
            if task.step == task.cancel_at:
                self.after(self.dice.random() * SOON, self._cancel_there, task, task.step)
        finally:
            self.current = None

    def cancel(self, task: Task) -> None:
        """Cancel a task at its current await, unless that is shielded clean-up."""
        if not task.done and not task.shields:
            self.after(0.0, self.resume, task, task.step, Cancelled())

    def _cancel_there(self, task: Task, step: int) -> None:
        if task.step == step:
            self.cancel(task)


class Task:
    """One coroutine on a node. ``step`` counts how often it was resumed; ``cancel_at`` is the step
    at whose await it is cancelled, so that any await can be the one. ``asked`` are the claim ids of
    its current call, and ``call`` identifies that call."""

    __slots__ = ("asked", "call", "cancel_at", "done", "node", "shields", "step", "work")

    def __init__(self, node: Node, work: Coroutine[Any, Any, Any]) -> None:
        self.node = node
        self.work = work
        self.step = 0
        self.done = False
        self.shields = 0
        self.cancel_at = 0
        self.asked: list[str] = []
        self.call: object = None


class Node:
    """A client's process: it may be paused, crashed or cut off, and its clock drifts."""

    def __init__(self, world: World, name: str, rate: float, offset: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = offset
        self.paused_until = 0.0
        self.cut_until = 0.0
        self.latest = 0.0  # when the last message in order arrives
        self.dead = False
        self.died_at = 0.0
        self.tasks: list[Task] = []

    def now(self) -> float:
        return self.offset + self.world.time * self.rate

    def crash(self) -> None:
        self.dead = True
        self.died_at = self.world.time
        for task in self.tasks:
            if not task.done:
                task.done = True
                task.work.close()


class SimSignal:
    __slots__ = ("node", "waiter", "woken")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.woken = False
        self.waiter: tuple[Task, int] | None = None

    def set(self) -> None:
        self.woken = True
        if self.waiter is not None:
            task, step = self.waiter
            self.waiter = None
            self.node.world.after(0.0, self.node.world.resume, task, step, True)

    async def wait(self, timeout: float | None) -> bool:
        if not self.woken:
            world, rest = self.node.world, float("inf")
            if timeout is not None:
                rest = world.time + max(timeout, 0.0) / self.node.rate
            await _Suspend(rest, self)
            self.waiter = None
        woken, self.woken = self.woken, False
        return woken


class SimRuntime:
    """The runtime port on a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now = node.now

    def signal(self) -> SimSignal:
        return SimSignal(self.node)

    def mutex(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def sleep(self, seconds: float) -> None:
        world = self.node.world
        await _Suspend(world.time + max(seconds, 0.0) / self.node.rate, None)

    async def shielded(self, work: Coroutine[Any, Any, object], limit: float) -> None:
        task = self.node.world.current
        assert task is not None
        task.shields += 1
        try:
            await work
        finally:
            task.shields -= 1

    def stuck(self, holds: Mapping[tuple[str, object], T]) -> list[T]:
        return []

    def background(self, name: str, work: Callable[[], object]) -> None:
        work()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.node.world.start(self.node, work())

    def owner(self) -> object:
        return self.node.world.current

    def identity(self, label: str) -> tuple[object, str]:
        return self.node.world.current, Who(self.node.name, 1, "task", label).encoded()

    def stack(self) -> Callable[[], str]:
        return lambda: ""

"""Virtual time, and processes that live in it: the third runtime of the core.

One heap of events, one random source, no threads: a run is a function of its seed. A node is a
client's process. Its clock has an offset and a drift of its own and goes on while the node is
paused, as a real one does; a crash closes its coroutines where they stand.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from lockfast.model import Who

SOON = 0.01  # as long as a request and its reply take


class Cancelled(BaseException):
    """What a simulated task is cancelled with: like asyncio's, not an Exception."""


class _Suspend:
    """What a port yields to the world: wake me at ``until`` (true time) or by ``signal``."""

    __slots__ = ("signal", "until")

    def __init__(self, until: float, signal: SimSignal | None) -> None:
        self.until = until
        self.signal = signal

    def __await__(self) -> Generator[_Suspend, bool, bool]:
        return (yield self)


class World:
    """The clock, the events and the dice."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.time = 0.0
        self.current: Task | None = None
        self.crashes: list[BaseException] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[..., None], *said: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action, said))

    def after(self, delay: float, action: Callable[..., None], *said: Any) -> None:
        self.at(self.time + delay, action, *said)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        events = self._events
        while events and events[0][0] <= until and not done():
            self.time, _, action, said = heapq.heappop(events)
            action(*said)
        if not done():
            self.time = max(self.time, until)

    def start(self, node: Node, work: Coroutine[Any, Any, Any]) -> Task:
        task = Task(node, work)
        node.tasks.append(task)
        self.after(0.0, self.resume, task, 0, False)
        return task

    def resume(self, task: Task, turn: int, value: bool | BaseException) -> None:
        """Go on with a task, unless something else did since (its turn has passed)."""
        node = task.node
        if task.done or turn != task.turn or node.dead:
            return
        if node.paused_until > self.time:
            self.at(node.paused_until, self.resume, task, turn, value)
            return
        task.turn += 1
        self.current = task
        try:
            if isinstance(value, BaseException):
                wish = task.work.throw(value)
            else:
                wish = task.work.send(value if turn else None)
        except StopIteration:
            task.done = True
        except Cancelled:
            task.done = True
        except Exception as error:  # the core let something escape: a finding, not an accident
            task.done = True
            self.crashes.append(error)
        else:
            if wish.signal is not None:
                wish.signal.waiter = (task, task.turn)
            if wish.until != float("inf"):
                self.at(wish.until, self.resume, task, task.turn, False)
            if task.turn == task.cancel_at:
                self.after(self.dice.random() * SOON, self._cancel_there, task, task.turn)
        finally:
            self.current = None

    def cancel(self, task: Task) -> None:
        """Cancel it where it waits, unless it is clearing up just now."""
        if not task.done and not task.shields:
            self.after(0.0, self.resume, task, task.turn, Cancelled())

    def _cancel_there(self, task: Task, turn: int) -> None:
        if task.turn == turn:
            self.cancel(task)


class Task:
    """One coroutine on a node, and what it last asked a store for: ``asked`` are claim ids, and
    ``call`` is something that no other call has. ``cancel_at`` is the turn in which it is
    cancelled, when it waits: any await can be the one."""

    __slots__ = ("asked", "call", "cancel_at", "done", "node", "shields", "turn", "work")

    def __init__(self, node: Node, work: Coroutine[Any, Any, Any]) -> None:
        self.node = node
        self.work = work
        self.turn = 0
        self.done = False
        self.shields = 0
        self.cancel_at = 0
        self.asked: list[str] = []
        self.call: object = None


class Node:
    """A client's process: paused, crashed, cut off, with a clock that is not quite right."""

    def __init__(self, world: World, name: str, rate: float, offset: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = offset
        self.paused_until = 0.0
        self.cut_until = 0.0
        self.latest = 0.0  # when the last message that kept its order arrives
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
            task, turn = self.waiter
            self.waiter = None
            self.node.world.after(0.0, self.node.world.resume, task, turn, True)

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

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.node.world.start(self.node, work())

    def owner(self) -> object:
        return self.node.world.current

    def identity(self, label: str) -> tuple[object, str]:
        return self.node.world.current, Who(self.node.name, 1, "task", label).encoded()

    def stack(self) -> Callable[[], str]:
        return lambda: ""

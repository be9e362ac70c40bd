"""The network between the clients and the store: delay, loss, doubled messages, black holes,
restarts, and loss of data.

The server here is the production memory store under a clock of its own; `redis` has another.
Requests, replies and wake-ups travel separately, and each may be late, doubled or lost. The
messages of one client keep their order, as on a connection, except for the very late ones: a
request whose sender gave up may still arrive from an old connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lab.simulation.world import Node, SimSignal, World
from lockfast.core import law
from lockfast.core.law import Row
from lockfast.core.ports import Answer, Store, Wake
from lockfast.errors import BackendError
from lockfast.model import Busy, Capabilities, Claim, Gone, Granted, Snapshot
from lockfast.stores.memory import CAPABILITIES, Memory
from lockfast.stores.wakeups import Wakeups

QUICK = 0.004  # average delay of a message, in seconds
LATE = 0.4  # average delay of a very late message, in seconds


@dataclass(slots=True)
class Weather:
    """The current faults of the network."""

    delay: float = QUICK
    spike: float = 0.0  # chance that a message is very late
    loss: float = 0.0
    double: float = 0.0
    wakeup_delay: float = 0.0  # longest extra delay of a wake-up: a slow listener

    @property
    def fine(self) -> bool:
        return self.delay <= QUICK and not (self.spike or self.loss or self.double)

    def calm(self) -> None:
        self.spike = self.loss = self.double = self.wakeup_delay = 0.0


class Seen(NamedTuple):
    """The live rows of one name, as the witness finds them in the store."""

    holds: Sequence[Row]
    fair: Sequence[Row]
    unfair: Sequence[Row]


class Server(ABC):
    """A store behind the network. ``observe`` is called after every step, for the witness."""

    # True if leases are measured by the wall clock: then setting it ends or prolongs them.
    leases_by_wall = False
    # True if replicas can take over; and if the one that does may lack valid holds.
    fails_over = False
    forgets = False
    # The kinds of names that run on this server; None: all.
    kinds: frozenset[str] | None = None

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        self.world = world
        self.rate = rate
        self.weather = weather
        self.up = True
        self.restarts = 0
        self.wall_offset = 1.7e9
        self.nodes: dict[str, Node] = {}  # the client of each claim, by claim id
        self.observe: Callable[[str], None] = lambda name: None

    @classmethod
    def has(cls, kinds: Sequence[str]) -> bool:
        return cls.kinds is None or cls.kinds.issuperset(kinds)

    @abstractmethod
    def seen(self, name: str) -> Seen: ...

    @abstractmethod
    def amnesia(self) -> None:
        """Lose all data, the fence too, as by a restart without data, a flush, or a failover."""

    def fail_over(self) -> None:  # noqa: B027
        """Make a replica the master, with the data that it has."""

    def restarted(self) -> None:  # noqa: B027
        """Break the connections, after a restart."""

    @abstractmethod
    def store(self, node: Node, asked: Callable[[Claim], None]) -> Store:
        """Return the store of a client. ``asked`` is called with each claim that it sends."""

    def now(self) -> float:
        return self.world.time * self.rate

    def wall(self) -> float:
        return self.wall_offset + self.world.time * self.rate

    def travel_slowly(self, node: Node, action: Callable[..., None], *args: Any) -> None:
        """Carry a wake-up, which has an extra delay."""
        slow = self.world.dice.random() * self.weather.wakeup_delay
        self.world.after(slow, self.travel, node, action, *args)

    def travel(self, node: Node, action: Callable[..., None], *args: Any) -> None:
        """Carry one message to or from a node; ``action`` runs where it arrives, if it does."""
        world, weather, dice = self.world, self.weather, self.world.dice
        if node.cut_until > world.time or dice.random() < weather.loss:
            return
        for _ in range(2 if dice.random() < weather.double else 1):
            delay = dice.expovariate(1.0 / weather.delay)
            if dice.random() < weather.spike:
                world.after(dice.expovariate(1.0 / LATE), action, *args)
            else:
                node.latest = max(node.latest, world.time + delay)
                world.at(node.latest, action, *args)


async def ask(server: Server, node: Node, budget: float, handle: Callable[[], Any]) -> Any:
    """Send a request, run ``handle`` at the server, and return the reply, if it arrives in time."""
    signal = SimSignal(node)
    answers: list[Any] = []

    def replied(answer: Any) -> None:
        if not answers:
            answers.append(answer)
            signal.set()

    def arrived() -> None:
        if server.up:
            answer = handle()
            server.travel(node, replied, answer)

    server.travel(node, arrived)
    await signal.wait(budget)
    if not answers:
        raise BackendError("the simulated store did not answer in time")
    return answers[0]


def wakeup_arrived(node: Node, action: Callable[..., None], *args: Any) -> None:
    """Deliver a wake-up: not to a dead process, and to a paused one when it continues."""
    if node.dead:
        return
    if node.paused_until > node.world.time:
        late = node.world.dice.expovariate(20.0)  # unread for a while
        node.world.at(node.paused_until + late, wakeup_arrived, node, action, *args)
        return
    action(*args)


class MemoryServer(Server):
    """The memory store, which runs the law itself."""

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        super().__init__(world, rate, weather)
        self.memory = Memory(self.now, self.wall)
        self.listeners: dict[str, SimStore] = {}

    def amnesia(self) -> None:
        self.memory = Memory(self.now, self.wall)

    def store(self, node: Node, asked: Callable[[Claim], None]) -> Store:
        return SimStore(node, self, asked)

    def seen(self, name: str) -> Seen:
        book, now = self.memory._names.get(name), self.now()
        if book is None:
            return Seen((), (), ())
        kinds = (book._holds, book._waiters[True], book._waiters[False])
        return Seen(*([row for row in kind.values() if row.ends > now] for kind in kinds))

    def execute(self, name: str, verb: Callable[..., Any], *args: Any) -> Any:
        answer, wakeups = self.memory.step(name, verb, *args)
        self.observe(name)
        for wakeup in wakeups:
            listener = self.listeners.get(wakeup[0])
            if listener is not None:
                node, deliver = listener.node, listener.deliver
                self.travel_slowly(node, wakeup_arrived, node, deliver, *wakeup)
        return answer


class SimStore(Store):
    """The store port on a node. Each verb is a request, and a reply if none of them is lost."""

    suspends = True

    def __init__(self, node: Node, server: MemoryServer, asked: Callable[[Claim], None]) -> None:
        self.node = node
        self.server = server
        self._wakeups = Wakeups()
        self._signal = SimSignal(node)
        self._asked = asked
        self.deliver = self._wakeups.deliver

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _ask(self, budget: float, handle: Callable[[], Any]) -> Any:
        return await ask(self.server, self.node, budget, handle)

    async def claim(self, claims: Sequence[Claim], budget: float) -> list[Answer]:
        execute = self.server.execute
        for claim in claims:
            self._asked(claim)
            self.server.listeners[claim.id] = self
            self.server.nodes[claim.id] = self.node

        def handle() -> list[Answer]:
            answers: list[Answer] = []
            for claim in claims:
                answers.append(execute(claim.name, law.claim, claim))
                if not isinstance(answers[-1], Granted):
                    break
            return answers

        answers: list[Answer] = await self._ask(budget, handle)
        return answers

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        execute = self.server.execute
        answers: list[Granted | Busy | Gone | BackendError] = await self._ask(
            budget, lambda: [execute(claim.name, law.renew, claim) for claim in claims]
        )
        return answers

    async def release(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        execute = self.server.execute
        answers: list[bool] = await self._ask(
            budget, lambda: [execute(claim.name, law.release, claim) for claim in claims]
        )
        return answers

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        execute = self.server.execute
        answer = await self._ask(budget, lambda: execute(claim.name, law.leave, claim))
        assert isinstance(answer, Snapshot)
        return answer

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        execute = self.server.execute
        answer = await self._ask(budget, lambda: execute(claim.name, law.transfer, claim, attached))
        assert isinstance(answer, Granted | Gone)
        return answer

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        execute = self.server.execute
        answer = await self._ask(budget, lambda: execute(claim.name, law.shrink, claim))
        assert isinstance(answer, Granted | Gone)
        return answer

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        execute = self.server.execute
        return int(await self._ask(budget, lambda: execute(name, law.resize, expected, slots)))

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self._wakeups.watch(claim.id, wake)
        return self.node.world.dice.random() < 0.5

    def unwatch(self, claim: Claim) -> None:
        self._wakeups.unwatch(claim.id)

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        execute = self.server.execute
        answer = await self._ask(budget, lambda: execute(name, law.look, name))
        assert isinstance(answer, Snapshot)
        return answer

    async def names(self, prefix: str, budget: float) -> list[str]:
        return list(await self._ask(budget, lambda: self.server.memory.names(prefix)))

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        execute = self.server.execute
        return bool(await self._ask(budget, lambda: execute(name, law.break_hold, fence)))

    async def listen(self, timeout: float | None) -> None:
        await self._signal.wait(timeout)

    def interrupt(self) -> None:
        self._signal.set()

    def close(self) -> None:
        """Do nothing: there are no connections."""

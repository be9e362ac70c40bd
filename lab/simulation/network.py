"""Between the clients and the store: delay, loss, doubles, black holes, restarts, amnesia.

The server here is the production memory store under a clock of its own; `redis` has another. What
is asked, answered and rung travels separately and each may be late, doubled or lost. What one
client sends and hears keeps its order, as on a connection, but for what comes very late: a request
that was given up on may still arrive from an old connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lab.simulation.world import Node, SimSignal, World
from lockfast.core import law
from lockfast.core.law import Row
from lockfast.core.ports import Backend, Wake
from lockfast.errors import BackendError
from lockfast.model import Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.memory import CAPABILITIES, MemoryStore
from lockfast.stores.wakeups import Wakeups

QUICK = 0.004  # seconds, on average, that a message takes
LATE = 0.4  # seconds, on average, that a message takes which is very late


@dataclass(slots=True)
class Weather:
    """How bad the network is just now."""

    delay: float = QUICK
    spike: float = 0.0  # chance of a message that is very late
    loss: float = 0.0
    double: float = 0.0
    bell_delay: float = 0.0  # how long a bell may take on top: a listener that is slow to hear

    @property
    def fine(self) -> bool:
        return self.delay <= QUICK and not (self.spike or self.loss or self.double)

    def calm(self) -> None:
        self.spike = self.loss = self.double = self.bell_delay = 0.0


class Seen(NamedTuple):
    """What the witness sees of one name: live rows, as they are, whatever the law thinks."""

    holds: Sequence[Row]
    fair: Sequence[Row]
    unfair: Sequence[Row]


class Server(ABC):
    """A store behind the network. ``observe`` is told of every step, for the witness."""

    # Does the wall clock measure leases too? Then setting it ends or prolongs them.
    leases_by_wall = False
    # Has it replicas that take over? And is it so that they may have forgotten what was believed?
    fails_over = False
    forgets = False
    # The kinds of names that it can be asked for here; None: all.
    kinds: frozenset[str] | None = None

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        self.world = world
        self.rate = rate
        self.weather = weather
        self.up = True
        self.restarts = 0
        self.wall_offset = 1.7e9
        self.nodes: dict[str, Node] = {}  # whose claim that is, by its id
        self.observe: Callable[[str], None] = lambda name: None

    @classmethod
    def has(cls, kinds: Sequence[str]) -> bool:
        return cls.kinds is None or cls.kinds.issuperset(kinds)

    @abstractmethod
    def seen(self, name: str) -> Seen: ...

    @abstractmethod
    def amnesia(self) -> None:
        """A restart without data, a flush, a failover that forgot: all is gone, the fence too."""

    def fail_over(self) -> None:  # noqa: B027
        """A replica takes over, with what it has."""

    def restarted(self) -> None:  # noqa: B027
        """Connections do not outlive it, where there are any."""

    @abstractmethod
    def backend(self, node: Node, asked: Callable[[Claim], None]) -> Backend:
        """A client's way to this store."""

    def now(self) -> float:
        return self.world.time * self.rate

    def wall(self) -> float:
        return self.wall_offset + self.world.time * self.rate

    def travel_slowly(self, node: Node, action: Callable[..., None], *said: Any) -> None:
        """A bell: it may be heard late on top."""
        slow = self.world.dice.random() * self.weather.bell_delay
        self.world.after(slow, self.travel, node, action, *said)

    def travel(self, node: Node, action: Callable[..., None], *said: Any) -> None:
        """One message, to or from that node."""
        world, weather, dice = self.world, self.weather, self.world.dice
        if node.cut_until > world.time or dice.random() < weather.loss:
            return
        for _ in range(2 if dice.random() < weather.double else 1):
            delay = dice.expovariate(1.0 / weather.delay)
            if dice.random() < weather.spike:
                world.after(dice.expovariate(1.0 / LATE), action, *said)
            else:
                node.latest = max(node.latest, world.time + delay)
                world.at(node.latest, action, *said)


async def ask(server: Server, node: Node, budget: float, handle: Callable[[], Any]) -> Any:
    """A request travels, ``handle`` is done at the server, and the reply travels back, or not."""
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


def heard(node: Node, action: Callable[..., None], *said: Any) -> None:
    """A bell arrived. A paused or dead process hears nothing now; a paused one later."""
    if node.dead:
        return
    if node.paused_until > node.world.time:
        late = node.world.dice.expovariate(20.0)  # it lies unread for a while
        node.world.at(node.paused_until + late, heard, node, action, *said)
        return
    action(*said)


class MemoryServer(Server):
    """The memory store, which is the law itself."""

    def __init__(self, world: World, rate: float, weather: Weather) -> None:
        super().__init__(world, rate, weather)
        self.store = MemoryStore(self.now, self.wall)
        self.ears: dict[str, SimBackend] = {}

    def amnesia(self) -> None:
        self.store = MemoryStore(self.now, self.wall)

    def backend(self, node: Node, asked: Callable[[Claim], None]) -> Backend:
        return SimBackend(node, self, asked)

    def seen(self, name: str) -> Seen:
        book, now = self.store._names.get(name), self.now()
        if book is None:
            return Seen((), (), ())
        kinds = (book._holds, book._waiters[True], book._waiters[False])
        return Seen(*([row for row in kind.values() if row.ends > now] for kind in kinds))

    def execute(self, name: str, verb: Callable[..., Any], *said: Any) -> Any:
        answer, wakeups = self.store.step(name, verb, *said)
        self.observe(name)
        for bell in wakeups:
            ear = self.ears.get(bell[0])
            if ear is not None:
                self.travel_slowly(ear.node, heard, ear.node, ear.woken, *bell)
        return answer


class SimBackend:
    """The backend port on a node: every verb is a request, and maybe a reply."""

    def __init__(self, node: Node, server: MemoryServer, asked: Callable[[Claim], None]) -> None:
        self.node = node
        self.server = server
        self._wakeups = Wakeups()
        self._ear = SimSignal(node)
        self._asked = asked
        self.woken = self._wakeups.deliver

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _ask(self, budget: float, handle: Callable[[], Any]) -> Any:
        return await ask(self.server, self.node, budget, handle)

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        self._asked(claim)
        self.server.ears[claim.id] = self
        self.server.nodes[claim.id] = self.node
        execute = self.server.execute
        answer = await self._ask(budget, lambda: execute(claim.name, law.claim, claim))
        assert isinstance(answer, Granted | Busy | Differs)
        return answer

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        execute = self.server.execute
        for claim in claims:
            self._asked(claim)
            self.server.ears[claim.id] = self
            self.server.nodes[claim.id] = self.node

        def handle() -> list[Granted | Busy | Differs]:
            answers: list[Granted | Busy | Differs] = []
            for claim in claims:
                answers.append(execute(claim.name, law.claim, claim))
                if not isinstance(answers[-1], Granted):
                    break
            return answers

        answers: list[Granted | Busy | Differs] = await self._ask(budget, handle)
        return answers

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        execute = self.server.execute
        answers: list[Granted | Busy | Gone] = await self._ask(
            budget, lambda: [execute(claim.name, law.renew, claim) for claim in claims]
        )
        return answers

    async def release(self, claim: Claim, budget: float) -> bool:
        execute = self.server.execute
        return bool(await self._ask(budget, lambda: execute(claim.name, law.release, claim)))

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
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
        return list(await self._ask(budget, lambda: self.server.store.names(prefix)))

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        execute = self.server.execute
        return bool(await self._ask(budget, lambda: execute(name, law.break_hold, fence)))

    async def listen(self, timeout: float | None) -> None:
        await self._ear.wait(timeout)

    def interrupt(self) -> None:
        self._ear.set()

    def close(self) -> None:
        """Nothing is open."""

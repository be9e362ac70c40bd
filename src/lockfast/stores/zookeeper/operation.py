"""What the verbs have in common: requests within one budget, and the steps that several of them
take: find our node again, list a name, make its parent, read and bury what has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from lockfast.errors import BackendError
from lockfast.stores.zookeeper.nodes import (
    DETACHED,
    SESSION,
    WAITS,
    Facts,
    Foreign,
    Node,
    contenders,
    digest_of,
    escaped,
    in_order,
    read,
)
from lockfast.stores.zookeeper.registry import Desk, Place
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Kind,
    No,
    Put,
    Request,
    Stat,
    Sync,
)

NEVER = float("inf")
LEAST = 0.001
MANY = 500  # in one go: more would keep others of this client waiting


class Transport(Protocol):
    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]: ...


class Listed(NamedTuple):
    """The nodes of a name in order, and its size (0: there is nobody)."""

    nodes: list[Node]
    size: int

    def at(self, name: str) -> int:
        """Where a node of that name stands; -1: nowhere."""
        return next((at for at, node in enumerate(self.nodes) if node.name == name), -1)


class Seen(NamedTuple):
    """A node that was read."""

    node: Node
    facts: Facts
    stat: Stat

    @property
    def fence(self) -> int:
        return self.facts.fence or self.stat.czxid

    @property
    def since(self) -> float:
        return self.facts.since or self.stat.ctime / 1e3

    @property
    def ends(self) -> float:
        """When it ends by its lease, on the server's wall clock. What waits does not."""
        return NEVER if self.facts.state == WAITS else self.stat.mtime / 1e3 + self.facts.lease


class Turn:
    """One verb's requests, over in its budget."""

    def __init__(self, transport: Transport, desk: Desk, budget: float) -> None:
        self.desk = desk
        self._transport = transport
        self._budget = budget
        self._until = desk.clock() + budget
        self._asked = False

    async def ask(self, *requests: Request) -> list[Any]:
        now = self.desk.clock()
        if now >= self._until and self._asked:
            raise BackendError(f"{self.desk.session.where} was too slow: no time was left")
        answers = await self._transport.ask(requests, max(self._until - now, LEAST))
        now = self.desk.clock()
        if not self._asked and now >= self._until:
            self._until = now + self._budget / 2  # it was spent on opening the session
        self._asked = True
        return answers

    def parent(self, name: str) -> str:
        return f"{self.desk.root}/{escaped(name)}"

    # ---- lists -------------------------------------------------------------------------------

    async def look(self, parent: str) -> Listed:
        (answer,) = await self.ask(Children(parent))
        return await self.listed(parent, answer)

    async def listed(self, parent: str, answer: Any) -> Listed:
        """What a list says, in order. The size is that of the first node, unless somebody changed
        it while that node, or any other that is still there, existed (see `changes.resize`)."""
        if answer is No.NODE:
            return Listed([], 0)
        names, stat = answer
        try:
            nodes = in_order(names)
        except Foreign as foreign:
            raise self.foreign(parent, foreign) from None
        size = nodes[0].slots if nodes else 0
        if nodes and stat.version > 0:
            (got, *stats) = await self.ask(
                Get(parent), *(Exists(f"{parent}/{node.name}") for node in nodes)
            )
            if got is not No.NODE:
                text, resized = got
                if any(stat is not None and stat.czxid < resized.mzxid for stat in stats):
                    size = int(text)
        return Listed(nodes, size)

    def foreign(self, parent: str, what: Foreign) -> BackendError:
        return BackendError(
            f"{self.desk.session.where} has under {parent} what lockfast did not write: "
            f"{str(what)!r}. It was left as it is: use another name or chroot",
            transient=False,
        )

    # ---- nodes -------------------------------------------------------------------------------

    async def read(self, parent: str, nodes: Iterable[Node]) -> list[Seen]:
        """Their data; those that are gone meanwhile are left out."""
        asked, seen = list(nodes), []
        for start in range(0, len(asked), MANY):
            some = asked[start : start + MANY]
            answers = await self.ask(*(Get(f"{parent}/{node.name}") for node in some))
            seen += self.seen(parent, some, answers)
        return seen

    def seen(self, parent: str, nodes: Sequence[Node], answers: Sequence[Any]) -> list[Seen]:
        try:
            return [
                Seen(node, read(answer[0]), answer[1])
                for node, answer in zip(nodes, answers, strict=True)
                if answer is not No.NODE
            ]
        except Foreign as foreign:
            raise self.foreign(parent, foreign) from None

    def rest(self, seen: Seen) -> float:
        """How long it lasts unless it is renewed, by its lease. On the server's clock, which we saw
        when we wrote something last; since then ours ran."""
        now = self.desk.session.server_time()
        if seen.node.life == SESSION or now is None:
            return NEVER
        return seen.ends - now

    async def bury(self, parent: str, several: Iterable[Seen]) -> bool:
        """Remove those whose lease is over; whether there were any. Not if one was renewed: then it
        has another version."""
        over = [seen for seen in several if self.rest(seen) <= 0]
        if over:
            await self.ask(
                *(Delete(f"{parent}/{seen.node.name}", seen.stat.version) for seen in over)
            )
        return bool(over)

    async def know_the_time(self, within: float) -> float:
        """The server's wall clock. It tells the time only to who writes."""
        session = self.desk.session
        now = session.server_time(within)
        if now is None:
            (answer,) = await self.ask(Put(self.desk.root, b""))
            if answer is No.NODE:
                await self.make_root()
                await self.ask(Put(self.desk.root, b""))
            now = session.server_time()
        assert now is not None, "what was written just now has a date"
        return now

    # ---- our own -----------------------------------------------------------------------------

    async def find(self, waiter: Place) -> list[Node]:
        """An answer was lost: is our node there? A server that we came to since may lag behind, so
        it is brought up to date first. What another session of ours made is not ours. What there is
        besides: a node that we let go of, maybe."""
        _, answer = await self.ask(Sync(waiter.parent), Children(waiter.parent))
        if not waiter.unsure:
            return []  # it was still under way, and is answered by now
        mine = digest_of(waiter.claim_id)
        nodes = await self._own_kind(waiter, answer)
        ours = [node for node in nodes if node.digest == mine]
        got = (
            await self.ask(*(Get(f"{waiter.parent}/{node.name}") for node in ours)) if ours else []
        )
        lasts = waiter.life == DETACHED
        owner = 0 if lasts else self.desk.session.id
        granted, settled = waiter.granted, waiter.settled
        waiter.forget()
        let_go = []
        for node, one in zip(ours, got, strict=True):
            if one is No.NODE:
                continue
            if (node.life == DETACHED) == lasts and one[1].ephemeralOwner == owner:
                waiter.adopt(node.name, one[1].czxid, owner)
                waiter.granted, waiter.settled = granted, settled
                if not waiter.foreign:
                    (seen,) = self.seen(waiter.parent, [node], [one])
                    waiter.fence, waiter.since = seen.fence, seen.since
                    waiter.life, waiter.state = node.life, seen.facts.state
            elif node.life == DETACHED:
                let_go.append(node)
        waiter.unsure = False
        return let_go

    async def _own_kind(self, waiter: Place, answer: Any) -> list[Node]:
        if waiter.foreign:
            return [] if answer is No.NODE else contenders(answer[0])
        return (await self.listed(waiter.parent, answer)).nodes

    async def remove(self, waiter: Place) -> bool:
        """Our node, if there is one; whether there was."""
        there = False
        if waiter.under_way or waiter.unsure:
            let_go = await self.find(waiter)
            if let_go:
                await self.ask(*(Delete(f"{waiter.parent}/{node.name}") for node in let_go))
                there = True
        if waiter.name and self.desk.is_ours(waiter):
            (answer,) = await self.ask(Delete(waiter.path))
            there = answer is not No.NODE
        self.desk.drop(waiter)
        return there

    async def make_root(self) -> None:
        """The folder of all names, and what is above it."""
        parts = self.desk.root.strip("/").split("/")
        paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
        await self.ask(*(Create(path, b"", Kind.PERSISTENT) for path in paths))

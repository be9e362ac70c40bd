"""One operation of the backend: its requests within one budget, and the steps the verbs share: find
our node after a lost answer, list a name, create its parent, read nodes, delete expired ones."""

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
from lockfast.stores.zookeeper.registry import QueueEntry, Registry
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Kind,
    Put,
    Refusal,
    Request,
    Stat,
    Sync,
)

NEVER = float("inf")
MIN_BUDGET = 0.001
BATCH = 500  # requests at once: more would delay other callers of this client


class Transport(Protocol):
    async def ask(self, requests: Sequence[Request], budget: float) -> list[Any]: ...


class Listed(NamedTuple):
    """The nodes of a name in order, and its size (0: there are none)."""

    nodes: list[Node]
    size: int

    def at(self, name: str) -> int:
        """The index of the node with that name; -1: there is none."""
        return next((at for at, node in enumerate(self.nodes) if node.name == name), -1)


class SeenNode(NamedTuple):
    """A node with its data and its Stat, as they were read."""

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
        """When its lease ends, on the server's wall clock. The lease of a waiter has not begun."""
        return NEVER if self.facts.state == WAITS else self.stat.mtime / 1e3 + self.facts.lease


class Operation:
    """The requests of one verb, completed within its budget."""

    def __init__(self, transport: Transport, registry: Registry, budget: float) -> None:
        self.registry = registry
        self._transport = transport
        self._budget = budget
        self._until = registry.clock() + budget
        self._asked = False

    async def ask(self, *requests: Request) -> list[Any]:
        now = self.registry.clock()
        if now >= self._until and self._asked:
            raise BackendError(
                f"{self.registry.session.where} was too slow: the operation's budget is used up"
            )
        answers = await self._transport.ask(requests, max(self._until - now, MIN_BUDGET))
        now = self.registry.clock()
        if not self._asked and now >= self._until:
            self._until = now + self._budget / 2  # the budget went into opening the session
        self._asked = True
        return answers

    def parent(self, name: str) -> str:
        return f"{self.registry.root}/{escaped(name)}"

    # ---- lists -------------------------------------------------------------------------------

    async def list_nodes(self, parent: str) -> Listed:
        (answer,) = await self.ask(Children(parent))
        return await self.parse_list(parent, answer)

    async def parse_list(self, parent: str, answer: Any) -> Listed:
        """Parse the answer to `Children`. The size is that of the first node, unless `resize`
        changed it while that node, or any other that still exists, existed (see `amend`)."""
        if answer is Refusal.NO_NODE:
            return Listed([], 0)
        names, stat = answer
        try:
            nodes = in_order(names)
        except Foreign as foreign:
            raise self.foreign_error(parent, foreign) from None
        size = nodes[0].slots if nodes else 0
        if nodes and stat.version > 0:
            checks = [Exists(f"{parent}/{node.name}") for node in nodes]
            got, *stats = await self.ask(Get(parent), *checks)
            if got is not Refusal.NO_NODE:
                text, resized = got
                if any(stat is not None and stat.czxid < resized.mzxid for stat in stats):
                    size = int(text)
        return Listed(nodes, size)

    def foreign_error(self, parent: str, what: Foreign) -> BackendError:
        return BackendError(
            f"{self.registry.session.where} has a node under {parent} that lockfast did not write: "
            f"{str(what)!r}. It was left unchanged: use another name or chroot",
            transient=False,
        )

    # ---- nodes -------------------------------------------------------------------------------

    async def read(self, parent: str, nodes: Iterable[Node]) -> list[SeenNode]:
        """Read the data of the nodes; those that are gone meanwhile are left out."""
        asked, seen = list(nodes), []
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            answers = await self.ask(*(Get(f"{parent}/{node.name}") for node in some))
            seen += self.decode(parent, some, answers)
        return seen

    def decode(self, parent: str, nodes: Sequence[Node], answers: Sequence[Any]) -> list[SeenNode]:
        try:
            return [
                SeenNode(node, read(answer[0]), answer[1])
                for node, answer in zip(nodes, answers, strict=True)
                if answer is not Refusal.NO_NODE
            ]
        except Foreign as foreign:
            raise self.foreign_error(parent, foreign) from None

    def time_left(self, seen: SeenNode) -> float:
        """Seconds until its lease ends unless renewed; infinite for a node that only its session
        ends. By the server's clock as of our last write, carried forward by our own clock."""
        now = self.registry.session.server_time()
        if seen.node.lifetime == SESSION or now is None:
            return NEVER
        return seen.ends - now

    async def delete_expired(self, parent: str, nodes: Iterable[SeenNode]) -> bool:
        """Delete nodes whose lease is over, unless renewed meanwhile; True if there were any."""
        over = [seen for seen in nodes if self.time_left(seen) <= 0]
        if over:
            await self.ask(*(Delete(f"{parent}/{one.node.name}", one.stat.version) for one in over))
        return bool(over)

    async def server_time(self, within: float) -> float:
        """The server's wall clock, at most ``within`` seconds old: answers to writes carry it."""
        session = self.registry.session
        now = session.server_time(within)
        if now is None:
            (answer,) = await self.ask(Put(self.registry.root, b""))
            if answer is Refusal.NO_NODE:
                await self.make_root()
                await self.ask(Put(self.registry.root, b""))
            now = session.server_time()
        assert now is not None, "the answer to a write carries the server's time"
        return now

    # ---- our own node ------------------------------------------------------------------------

    async def find_own_node(self, entry: QueueEntry) -> list[Node]:
        """Find the entry's node after a lost answer. The server may lag behind the one that took
        the request, so a `Sync` comes first. A node of another session is not ours. Returns the
        claim's detached nodes, which a `detach` with a lost answer may have left."""
        _, answer = await self.ask(Sync(entry.parent), Children(entry.parent))
        if not entry.uncertain:
            return []  # the create was in flight, and its answer arrived before this one
        mine = digest_of(entry.claim_id)
        nodes = await self._nodes_of_layout(entry, answer)
        ours = [node for node in nodes if node.digest == mine]
        got = await self.ask(*(Get(f"{entry.parent}/{node.name}") for node in ours)) if ours else []
        lasts = entry.lifetime == DETACHED
        owner = 0 if lasts else self.registry.session.id
        granted, size_checked = entry.granted, entry.size_checked
        entry.reset()
        detached = []
        for node, one in zip(ours, got, strict=True):
            if one is Refusal.NO_NODE:
                continue
            if (node.lifetime == DETACHED) == lasts and one[1].ephemeralOwner == owner:
                entry.adopt(node.name, one[1].czxid, owner)
                entry.granted, entry.size_checked = granted, size_checked
                if not entry.foreign:
                    (seen,) = self.decode(entry.parent, [node], [one])
                    entry.fence, entry.since = seen.fence, seen.since
                    entry.lifetime, entry.state = node.lifetime, seen.facts.state
            elif node.lifetime == DETACHED:
                detached.append(node)
        entry.uncertain = False
        return detached

    async def _nodes_of_layout(self, entry: QueueEntry, answer: Any) -> list[Node]:
        if entry.foreign:
            return [] if answer is Refusal.NO_NODE else contenders(answer[0])
        return (await self.parse_list(entry.parent, answer)).nodes

    async def remove(self, entry: QueueEntry) -> bool:
        """Delete our node; True if there was one."""
        there = False
        if entry.in_flight or entry.uncertain:
            detached = await self.find_own_node(entry)
            if detached:
                await self.ask(*(Delete(f"{entry.parent}/{node.name}") for node in detached))
                there = True
        if entry.name and self.registry.is_ours(entry):
            (answer,) = await self.ask(Delete(entry.path))
            there = answer is not Refusal.NO_NODE
        self.registry.discard(entry)
        return there

    async def make_root(self) -> None:
        """Create the parent of all names, and the nodes above it."""
        parts = self.registry.root.strip("/").split("/")
        paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
        await self.ask(*(Create(path, b"", Kind.PERSISTENT) for path in paths))

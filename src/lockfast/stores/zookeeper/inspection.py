"""Operators' verbs: show the holders and waiters of a name, list names, break a hold."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.model import BARRIER, LATCH, Holder, Snapshot, Waiter, Who
from lockfast.stores.zookeeper.latches import counting
from lockfast.stores.zookeeper.nodes import DETACHED, HOLDS, PASSED, SESSION, unescaped
from lockfast.stores.zookeeper.operation import BATCH, Listed, Operation, SeenNode
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.requests import Children, Delete, Refusal

# Seconds for which a reading of the server's clock is accurate enough to show to an operator.
CLOCK_AGE = 5.0


async def inspect(operation: Operation, name: str) -> Snapshot:
    parent = operation.parent(name)
    listed = await operation.list_nodes(parent)
    now = await operation.server_time(CLOCK_AGE)
    living = await _living(operation, parent, listed, now)
    size = listed.size if living else 0
    holders = _holders(living, size)
    # All counts of a latch expire together, with the newest.
    newest = max((seen.ends for seen in living), default=0.0) if LATCH < size < BARRIER else None
    held = {seen.node.name for seen in holders}
    return Snapshot(
        name,
        size,
        tuple(
            Holder(
                Who.decoded(seen.facts.who),
                seen.fence,
                seen.node.take,
                seen.since,
                _remaining(operation, parent, seen, newest or seen.ends, now),
            )
            for seen in sorted(holders, key=lambda seen: seen.fence)
        ),
        tuple(
            Waiter(Who.decoded(seen.facts.who), seen.node.take, seen.since, seen.facts.fair)
            for seen in living
            if seen.node.name not in held
        ),
        now,
    )


async def _living(operation: Operation, parent: str, listed: Listed, now: float) -> list[SeenNode]:
    """The nodes whose lease is not over. The expired ones are deleted."""
    everybody = await operation.read(parent, listed.nodes)
    counters = {node.name for node in counting(listed.nodes)}
    newest = max((seen.ends for seen in everybody if seen.node.name in counters), default=0.0)
    living: list[SeenNode] = []
    dead: list[SeenNode] = []
    for at, seen in enumerate(everybody):
        ends = newest if seen.node.name in counters else seen.ends
        held = at < holding(listed.nodes, listed.size) or seen.node.lifetime == DETACHED
        over = seen.node.lifetime != SESSION and held and ends <= now
        (dead if over else living).append(seen)
    if dead:
        deletes = [Delete(f"{parent}/{seen.node.name}", seen.stat.version) for seen in dead]
        await operation.ask(*deletes)
        operation.registry.use_parent(parent)
    return living


def _holders(living: Sequence[SeenNode], size: int) -> list[SeenNode]:
    if size >= BARRIER:
        return [seen for seen in living if seen.facts.state == PASSED]
    if size >= LATCH:
        return [seen for seen in living if seen.node.take]
    count = holding([seen.node for seen in living], size)
    # A semaphore that was shrunk may have more holders than fit.
    return [seen for at, seen in enumerate(living) if at < count or seen.facts.state == HOLDS]


def _remaining(operation: Operation, parent: str, seen: SeenNode, ends: float, now: float) -> float:
    """Seconds until the hold ends by its lease or its session. Another client's session may have
    been renewed just now; of our own we know when."""
    registry = operation.registry
    lease = min(ends - now, seen.facts.lease)  # our reading of the server's clock is a bit late
    if seen.node.lifetime == DETACHED:
        return lease
    time_left = registry.session.timeout
    for entry in list(registry.entries.values()):
        if entry.name == seen.node.name and entry.parent == parent:
            time_left += entry.confirmed - registry.clock()
    return time_left if seen.node.lifetime == SESSION else min(time_left, lease)


async def names(operation: Operation, prefix: str) -> list[str]:
    """Names that are held or waited for. An empty parent is unused, and will be removed."""
    (answer,) = await operation.ask(Children(operation.registry.root))
    if answer is Refusal.NO_NODE:
        return []
    now = await operation.server_time(CLOCK_AGE)
    wanted = sorted(name for part in answer[0] if (name := unescaped(part)).startswith(prefix))
    found = []
    for start in range(0, len(wanted), BATCH):
        some = [name for name in wanted[start : start + BATCH] if name]
        lists = await operation.ask(*(Children(operation.parent(name)) for name in some))
        for name, one in zip(some, lists, strict=True):
            parent = operation.parent(name)
            listed = await operation.parse_list(parent, one)
            lives = any(node.lifetime == SESSION for node in listed.nodes)
            if lives or (listed.nodes and await _living(operation, parent, listed, now)):
                found.append(name)
    return found


async def break_hold(operation: Operation, name: str, fence: int) -> bool:
    """Delete the hold with this fence: no later node has it, since czxids only grow."""
    parent = operation.parent(name)
    listed = await operation.list_nodes(parent)
    living = await _living(operation, parent, listed, await operation.server_time(CLOCK_AGE))
    for seen in _holders(living, listed.size):
        if seen.fence == fence:
            (answer,) = await operation.ask(Delete(f"{parent}/{seen.node.name}"))
            operation.registry.use_parent(parent)
            return answer is not Refusal.NO_NODE
    return False

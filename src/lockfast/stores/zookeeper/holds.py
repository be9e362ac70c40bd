"""Changes to live holds, and the operators' verbs: hand over, shrink, resize, show, break.

ZooKeeper cannot rename a node or change its lifetime. So one transaction replaces the node by
another with the same sequence number and the same fence (in the data, since its own czxid is
newer): no client sees it missing or twice, and its position in the queue stays. The watch on the
old node fires, and the waiter lists the name again.

The new node is younger than a `resize` before it, so its name carries the size that the name has
now; the transaction is refused if that changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.model import BARRIER, LATCH, Claim, Gone, Granted, Holder, Snapshot, Waiter, Who
from lockfast.stores.steps import Steps
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.latches import counting
from lockfast.stores.zookeeper.nodes import (
    DETACHED,
    HOLDS,
    NEW,
    PASSED,
    SESSION,
    TIMED,
    Listed,
    SeenNode,
    digest_of,
    facts_of,
    holding,
    parsed,
    unescaped,
)
from lockfast.stores.zookeeper.queue import find_own_nodes, rewrite
from lockfast.stores.zookeeper.registry import BATCH, QueueEntry, Registry

GONE = Gone()
# Seconds for which a reading of the server's clock is accurate enough: to find expired leases, and
# to show remaining times to an operator.
CLOCK_AGE, SHOWN_CLOCK_AGE = 60.0, 5.0


# ---- hand over -----------------------------------------------------------------------------------


def detach(registry: Registry, claim: Claim) -> Steps[Granted | Gone]:
    """Move the hold from the session to a persistent node that only its lease ends."""
    entry = yield from _known(registry, claim)
    if entry is None:
        return (yield from renew_detached(registry, claim))  # perhaps detached, the answer lost
    name = yield from _replace(registry, claim, entry, zk.Kind.PERSISTENT, lifetime=DETACHED)
    registry.discard(entry)
    return Granted(entry.fence, claim.lease) if name else GONE


def attach(registry: Registry, claim: Claim) -> Steps[Granted | Gone]:
    """Move a detached hold to our session, unless another client, or caller, was faster. The same
    caller asks again after a lost answer. The hold keeps its lease, even if that is longer than the
    session: it ends what was attached for a caller that has given up."""
    entry = registry.entries.get(claim.id)
    if entry is not None and (
        entry.in_flight or not (entry.uncertain or entry.attached_by == claim.who)
    ):
        return GONE
    again = entry is not None and entry.uncertain
    entry = registry.entry(claim)
    entry.in_flight = True
    try:
        asked_at = registry.clock()
        if again:
            yield from find_own_nodes(registry, [entry])
        if entry.name:
            (answer,) = yield [rewrite(claim, entry, HOLDS)]
            done = answer is not zk.Refusal.NO_NODE
        else:
            entry.uncertain = True
            done = yield from _adopt_detached(registry, claim, entry)
            entry.uncertain = False
    finally:
        entry.in_flight = False
    if not done:
        registry.discard(entry)
        return GONE
    entry.size_checked = entry.granted = entry.marked = True
    entry.state, entry.confirmed, entry.attached_by = HOLDS, asked_at, claim.who
    return Granted(entry.fence, registry.valid_for(claim.lease))


def _adopt_detached(registry: Registry, claim: Claim, entry: QueueEntry) -> Steps[bool]:
    while True:
        alive = yield from _alive(registry, claim)
        if alive is None:
            return False
        seen, listed = alive
        name = seen.node.renamed(lifetime=TIMED, slots=listed.size)
        data = facts_of(claim, HOLDS, seen.fence, seen.since).encoded()
        entry.uncertain = True
        (answer,) = yield [
            zk.Transaction(
                (
                    zk.Check(entry.parent, listed.version),
                    zk.Delete(seen.node.path, seen.stat.version),
                    zk.Create(f"{entry.parent}/{name}", data, zk.Kind.EPHEMERAL),
                )
            )
        ]
        if answer is True:
            entry.adopt(name, seen.fence, registry.session.id)
            entry.lifetime, entry.since = TIMED, seen.since
            entry.size, entry.version = listed.size, listed.version
            return True
        if answer is not zk.Refusal.BAD_VERSION:
            return False


def renew_detached(registry: Registry, claim: Claim) -> Steps[Granted | Gone]:
    """Renew a permit or a detached hold."""
    alive = yield from _alive(registry, claim)
    return GONE if alive is None else Granted(alive[0].fence, claim.lease)


def release_detached(registry: Registry, claim: Claim) -> Steps[bool]:
    alive = yield from _alive(registry, claim)
    if alive is None:
        return False
    seen = alive[0]
    (answer,) = yield [zk.Delete(seen.node.path, seen.stat.version)]
    registry.use_parent(seen.node.parent)
    return answer not in (zk.Refusal.NO_NODE, zk.Refusal.BAD_VERSION)


def _alive(registry: Registry, claim: Claim) -> Steps[tuple[SeenNode, Listed] | None]:
    """The claim's detached hold, renewed, and the list with it; None if it is over. Only the answer
    to the renewal carries the server's time: a hold that had ended before is deleted, not
    revived."""
    parent, digest = registry.parent(claim.name), digest_of(claim.id)
    while True:
        listed = yield from registry.list_nodes(parent)
        nodes = [one for one in listed.nodes if one.digest == digest and one.lifetime == DETACHED]
        found = yield from registry.read_nodes(nodes)
        if not found:
            return None
        seen = found[0]
        facts = seen.facts._replace(lease=claim.lease)
        (stat,) = yield [zk.Put(seen.node.path, facts.encoded(), seen.stat.version)]
        if isinstance(stat, zk.Refusal):
            continue  # another client was faster: read it again
        if stat.mtime / 1e3 > seen.ends:
            yield [zk.Delete(seen.node.path, stat.version)]
            registry.use_parent(parent)
            return None
        return seen._replace(stat=stat), listed


# ---- shrink, resize ------------------------------------------------------------------------------


def shrink(registry: Registry, claim: Claim) -> Steps[Granted | Gone]:
    """Keep the hold with fewer slots."""
    entry = yield from _known(registry, claim)
    if entry is None:
        return GONE
    if claim.take < parsed(entry.name).take:
        name = yield from _replace(registry, claim, entry, zk.Kind.EPHEMERAL, take=claim.take)
        if not name:
            registry.discard(entry)
            return GONE
        entry.name = name
    return Granted(entry.fence, registry.valid_for(claim.lease))


def _known(registry: Registry, claim: Claim) -> Steps[QueueEntry | None]:
    """The entry of our node, found again if an answer was lost; None if there is none."""
    entry = registry.entries.get(claim.id)
    if entry is not None and (entry.uncertain or entry.in_flight):
        yield from find_own_nodes(registry, [entry])
    if entry is None or not entry.name or not registry.is_ours(entry):
        return None
    return entry


def _replace(
    registry: Registry, claim: Claim, entry: QueueEntry, kind: zk.Kind, **changes: Any
) -> Steps[str]:
    """Replace our node in one transaction; the name of the other, '' if ours was gone."""
    data = facts_of(claim, HOLDS, entry.fence, entry.since).encoded()
    while True:
        name = parsed(entry.name).renamed(slots=entry.size, **changes)
        size_kept = zk.Check(entry.parent, entry.version)
        create = zk.Create(f"{entry.parent}/{name}", data, kind)
        entry.uncertain = True
        (answer,) = yield [zk.Transaction((size_kept, zk.Delete(entry.path), create))]
        entry.uncertain = False
        if answer is True:
            return name
        if answer is not zk.Refusal.BAD_VERSION:
            return ""
        listed = yield from registry.list_nodes(entry.parent)
        if listed.at(entry.name) < 0:
            return ""
        entry.size, entry.version = listed.size, listed.version


def resize(registry: Registry, name: str, expected: int, slots: int) -> Steps[int]:
    """Write the new size on the parent; the size the name had.

    The written size counts as long as any node exists that is older than the write. Newer nodes
    carry the new size in their names, or they would have been refused. So when the last older node
    is gone, the names of the others give the size, and the data of the parent no longer counts.

    The write is one transaction with a write to the first node: if that node is gone, the name may
    be another client's lock by now. Holders that no longer fit keep their holds: their nodes are
    marked first, since the order no longer shows them as holders.
    """
    parent = registry.parent(name)
    yield from registry.server_time(CLOCK_AGE)
    while True:
        listed = yield from registry.list_nodes(parent)
        expiring = [node for node in listed.nodes if node.lifetime != SESSION]
        seen = yield from registry.read_nodes(expiring)
        if (yield from registry.delete_expired(seen)):
            continue
        if listed.size != expected or not listed.nodes:
            return listed.size
        if slots < expected:
            holders = listed.nodes[: holding(listed.nodes, listed.size)]
            seen = yield from registry.read_nodes(holders)
            yield [_marked(one, HOLDS) for one in seen if one.facts.state == NEW]
        found = yield from registry.read_nodes(listed.nodes)
        if not found or found[0].node != listed.nodes[0]:
            continue
        size = zk.Put(parent, str(slots).encode(), listed.version)
        (done,) = yield [zk.Transaction((_marked(found[0]), size))]
        if done is not True:
            continue
        if expected == 1:
            # A waiter for a single slot watches the node before it, as for a lock: wake it.
            yield [_marked(seen) for seen in found[1:]]
        return expected


def _marked(seen: SeenNode, state: str = "") -> zk.Put:
    """Write the data with this state, or the same data: in either case watches on it fire."""
    facts = seen.facts._replace(state=state or seen.facts.state)
    return zk.Put(seen.node.path, facts.encoded(), seen.stat.version)


# ---- for operators -------------------------------------------------------------------------------


def inspect(registry: Registry, name: str, layout: str = "") -> Steps[Snapshot]:
    listed = yield from registry.list_nodes(registry.parent(name, layout), bool(layout))
    if layout:
        now = registry.session.server_time() or 0.0
        living = yield from registry.read_nodes(listed.nodes[:BATCH], True)
    else:
        now = yield from registry.server_time(SHOWN_CLOCK_AGE)
        living = yield from _living(registry, listed, now)
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
                _remaining(registry, seen, newest or seen.ends, now),
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


def _living(registry: Registry, listed: Listed, now: float) -> Steps[list[SeenNode]]:
    """The nodes whose lease is not over. The expired ones are deleted."""
    everybody = yield from registry.read_nodes(listed.nodes)
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
        yield [zk.Delete(seen.node.path, seen.stat.version) for seen in dead]
        registry.use_parent(dead[0].node.parent)
    return living


def _holders(living: Sequence[SeenNode], size: int) -> list[SeenNode]:
    if size >= BARRIER:
        return [seen for seen in living if seen.facts.state == PASSED]
    if size >= LATCH:
        return [seen for seen in living if seen.node.take]
    count = holding([seen.node for seen in living], size)
    # A semaphore that was shrunk may have more holders than fit.
    return [seen for at, seen in enumerate(living) if at < count or seen.facts.state == HOLDS]


def _remaining(registry: Registry, seen: SeenNode, ends: float, now: float) -> float:
    """Seconds until the hold ends by its lease or its session. Another client's session may have
    been renewed just now; of our own we know when."""
    lease = min(ends - now, seen.facts.lease)  # our reading of the server's clock is a bit late
    if seen.node.lifetime == DETACHED:
        return lease
    left = registry.session.timeout
    for entry in list(registry.entries.values()):
        if entry.path == seen.node.path:
            left += entry.confirmed - registry.clock()
    return left if seen.node.lifetime == SESSION else min(left, lease)


def names(registry: Registry, prefix: str) -> Steps[list[str]]:
    """Names that are held or waited for. An empty parent is unused, and will be removed."""
    (answer,) = yield [zk.Children(registry.root)]
    if answer is zk.Refusal.NO_NODE:
        return []
    now = yield from registry.server_time(SHOWN_CLOCK_AGE)
    known = (unescaped(part) for part in answer[0])
    wanted = sorted(name for name in known if name and name.startswith(prefix))
    found = []
    for start in range(0, len(wanted), BATCH):
        some = wanted[start : start + BATCH]
        lists = yield [zk.Children(registry.parent(name)) for name in some]
        for name, one in zip(some, lists, strict=True):
            listed = yield from registry.parse_list(registry.parent(name), one)
            lives = any(node.lifetime == SESSION for node in listed.nodes)
            if lives or (listed.nodes and (yield from _living(registry, listed, now))):
                found.append(name)
    return found


def break_hold(registry: Registry, name: str, fence: int) -> Steps[bool]:
    """Delete the hold with this fence: no later node has it, since czxids only grow."""
    listed = yield from registry.list_nodes(registry.parent(name))
    now = yield from registry.server_time(SHOWN_CLOCK_AGE)
    living = yield from _living(registry, listed, now)
    for seen in _holders(living, listed.size):
        if seen.fence == fence:
            (answer,) = yield [zk.Delete(seen.node.path)]
            registry.use_parent(seen.node.parent)
            return answer is not zk.Refusal.NO_NODE
    return False

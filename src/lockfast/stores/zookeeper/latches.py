"""Latches and barriers (rule 7 of the law).

**A latch** of n is open when n counting nodes exist. They are persistent and sequential: the first
n count; a later one is deleted by the client that created it. All are deleted together when the
lease of the newest is over. Waiters watch the children: latches are not a hot path.

**A barrier** of n is passed by n nodes at once, the first n that have not passed. Any client that
sees n such nodes writes "passed" on all of them in one transaction, which fails if one of them left
or passed meanwhile. So groups have exactly n parties, and a party whose node is marked has passed,
however late it reads the mark. The last party to arrive always sees the others, because its node is
newer than theirs; so at least one client writes the marks. Each party watches its own node.
"""

from __future__ import annotations

from lockfast.core.law import REFRESH
from lockfast.errors import Unsupported
from lockfast.model import BARRIER, LATCH, Busy, Claim, Differs, Granted
from lockfast.stores.steps import Steps
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.nodes import DETACHED, PASSED, SESSION, Listed, Node
from lockfast.stores.zookeeper.queue import enqueue, find_own_nodes, remove
from lockfast.stores.zookeeper.registry import QueueEntry, Registry

BUSY = Busy(REFRESH, 0)
NEVER = float("inf")
# ZooKeeper refuses a request of a megabyte or more.
MAX_BYTES = 900_000
BYTES_PER_PARTY = 200


def claim(registry: Registry, claim: Claim) -> Steps[Granted | Busy | Differs]:
    counts = claim.slots < BARRIER and claim.take > 0
    new = claim.id not in registry.entries
    entry = registry.entry(claim)
    if counts:
        # A count has no entry after it is done. If its answer was lost, the node is found again.
        entry.lifetime, entry.uncertain = DETACHED, entry.uncertain or new
    kind = (DETACHED, zk.Kind.SEQUENTIAL) if counts else (SESSION, zk.Kind.EPHEMERAL_SEQUENTIAL)
    asked_at = registry.clock()
    while True:
        ((listed, _),) = yield from enqueue(registry, [claim], [entry], *kind)
        expired = yield from _delete_expired(registry, entry, listed)
        if expired or listed.at(entry.name) < 0:
            continue
        if not entry.size_checked and listed.size != claim.slots:
            yield from remove(registry, [entry])
            return Differs(listed.size)
        entry.size_checked = True
        if counts:
            return (yield from _count(registry, claim, entry, listed))
        passes = _pass_latch if claim.slots < BARRIER else _pass_barrier
        answer = yield from passes(registry, claim, entry, listed)
        if answer is None:
            continue
        if isinstance(answer, Granted):
            entry.granted, entry.armed, entry.confirmed = True, False, asked_at
        elif not claim.wait:
            yield from remove(registry, [entry])
        return answer


def counting(nodes: list[Node]) -> list[Node]:
    """The nodes that count a latch down."""
    return [node for node in nodes if LATCH < node.slots < BARRIER and node.take]


def _delete_expired(registry: Registry, entry: QueueEntry, listed: Listed) -> Steps[bool]:
    """Delete expired nodes, a latch's counts together with the newest; True if any."""
    older = listed.nodes[: max(listed.at(entry.name), 0)]
    last = counting(older)[-1:]
    expiring = last or [node for node in older if node.lifetime != SESSION]
    seen = yield from registry.read_nodes(expiring)
    if last and any(registry.time_left(one) <= 0 for one in seen):
        yield [zk.Delete(node.path) for node in counting(older)]
        return True
    return False if last else (yield from registry.delete_expired(seen))


def _count(
    registry: Registry, claim: Claim, entry: QueueEntry, listed: Listed
) -> Steps[Granted | Busy]:
    if entry.name in [node.name for node in counting(listed.nodes)[: claim.slots - LATCH]]:
        registry.discard(entry)  # a count belongs to no client
        return Granted(entry.fence, claim.lease)
    yield from remove(registry, [entry])  # the latch is open already
    return BUSY


def _pass_latch(
    registry: Registry, claim: Claim, entry: QueueEntry, listed: Listed
) -> Steps[Granted | Busy | None]:
    needed = claim.slots - LATCH
    if len(counting(listed.nodes)) < needed and claim.wait:
        (answer,) = yield [zk.Children(entry.parent, entry.arm(entry.parent))]
        listed = yield from registry.parse_list(entry.parent, answer)
        if listed.at(entry.name) < 0:
            return None
    if len(counting(listed.nodes)) >= needed:
        return Granted(entry.fence, registry.valid_for(claim.lease))
    entry.recheck_at = NEVER
    return BUSY


def _pass_barrier(
    registry: Registry, claim: Claim, entry: QueueEntry, listed: Listed
) -> Steps[Granted | Busy | None]:
    needed = claim.slots - BARRIER
    size = needed * (len(entry.path) + BYTES_PER_PARTY)
    if size > MAX_BYTES:
        raise Unsupported(
            f"a barrier of {needed} parties is too large for ZooKeeper: its transaction would be "
            f"{size} bytes, and {MAX_BYTES} are allowed. Use a shorter name, or fewer parties"
        )
    wake = entry.arm(entry.path) if claim.wait else None
    own, answer = yield [zk.Get(entry.path, wake), zk.Children(entry.parent)]
    if own is zk.Refusal.NO_NODE:
        return None
    granted = Granted(entry.fence, registry.valid_for(claim.lease))
    nodes = (yield from registry.parse_list(entry.parent, answer)).nodes
    if len(nodes) >= needed:
        seen = yield from registry.read_nodes(nodes)
        if any(one.node.name == entry.name and one.facts.state == PASSED for one in seen):
            return granted
        waiting = [one for one in seen if one.facts.state != PASSED][:needed]
        if len(waiting) == needed:
            marks = tuple(
                zk.Put(
                    one.node.path,
                    one.facts._replace(state=PASSED).encoded(),
                    one.stat.version,
                )
                for one in waiting
            )
            (done,) = yield [zk.Transaction(marks)]
            ours = any(one.node.name == entry.name for one in waiting)
            # Otherwise one of them left, or another client wrote the marks: list again.
            return granted if done is True and ours else None
    (mine,) = registry.decode([listed.nodes[listed.at(entry.name)]], [own])
    if mine.facts.state == PASSED:
        return granted
    entry.recheck_at = NEVER
    return BUSY


def leave(registry: Registry, claim: Claim, entry: QueueEntry) -> Steps[bool]:
    """Leave the queue; True if the claim had passed the latch or barrier before. A node that passed
    a barrier was written to, so a delete of version 0 fails, and we learn of it."""
    if entry.in_flight or entry.uncertain:
        yield from find_own_nodes(registry, [entry])
    crossed = entry.granted
    if entry.name and registry.is_ours(entry):
        untouched = 0 if claim.slots >= BARRIER else -1
        answer, deleted = yield [zk.Children(entry.parent), zk.Delete(entry.path, untouched)]
        listed = yield from registry.parse_list(entry.parent, answer)
        if deleted is zk.Refusal.BAD_VERSION:
            yield [zk.Delete(entry.path)]
            crossed = True
        elif claim.slots < BARRIER:
            crossed |= len(counting(listed.nodes)) >= claim.slots - LATCH
    registry.discard(entry)
    return crossed

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
from lockfast.stores.zookeeper.enqueue import enqueue
from lockfast.stores.zookeeper.nodes import DETACHED, PASSED, SESSION, Node
from lockfast.stores.zookeeper.operation import Listed, Operation
from lockfast.stores.zookeeper.registry import QueueEntry
from lockfast.stores.zookeeper.requests import (
    Children,
    Delete,
    Get,
    Kind,
    Put,
    Refusal,
    Transaction,
)

BUSY = Busy(REFRESH, 0)
NEVER = float("inf")
# ZooKeeper refuses a request of a megabyte or more.
MAX_BYTES = 900_000
BYTES_PER_PARTY = 200


async def claim(operation: Operation, claim: Claim) -> Granted | Busy | Differs:
    counts = claim.slots < BARRIER and claim.take > 0
    registry = operation.registry
    new = claim.id not in registry.entries
    entry = registry.entry(claim.id, operation.parent(claim.name))
    if counts:
        # A count has no entry after it is done. If its answer was lost, the node is found again.
        entry.lifetime, entry.uncertain = DETACHED, entry.uncertain or new
    kind = (DETACHED, Kind.SEQUENTIAL) if counts else (SESSION, Kind.EPHEMERAL_SEQUENTIAL)
    asked_at = registry.clock()
    while True:
        listed, _ = await enqueue(operation, claim, entry, *kind)
        if await _delete_expired(operation, entry, listed) or listed.at(entry.name) < 0:
            continue
        if not entry.size_checked and listed.size != claim.slots:
            await operation.remove(entry)
            return Differs(listed.size)
        entry.size_checked = True
        if counts:
            return await _count(operation, claim, entry, listed)
        passes = _pass_latch if claim.slots < BARRIER else _pass_barrier
        answer = await passes(operation, claim, entry, listed)
        if answer is None:
            continue
        if isinstance(answer, Granted):
            entry.granted, entry.armed, entry.confirmed = True, False, asked_at
        elif not claim.wait:
            await operation.remove(entry)
        return answer


def counting(nodes: list[Node]) -> list[Node]:
    """The nodes that count a latch down."""
    return [node for node in nodes if LATCH < node.slots < BARRIER and node.take]


async def _delete_expired(operation: Operation, entry: QueueEntry, listed: Listed) -> bool:
    """Delete expired nodes, a latch's counts together with the newest; True if any."""
    older = listed.nodes[: max(listed.at(entry.name), 0)]
    last = counting(older)[-1:]
    expiring = last or [node for node in older if node.lifetime != SESSION]
    read = await operation.read(entry.parent, expiring)
    over = [seen for seen in read if operation.time_left(seen) <= 0]
    if not over:
        return False
    if last:
        await operation.ask(*(Delete(f"{entry.parent}/{node.name}") for node in counting(older)))
        return True
    return await operation.delete_expired(entry.parent, over)


async def _count(
    operation: Operation, claim: Claim, entry: QueueEntry, listed: Listed
) -> Granted | Busy:
    if entry.name in [node.name for node in counting(listed.nodes)[: claim.slots - LATCH]]:
        operation.registry.discard(entry)  # a count belongs to no client
        return Granted(entry.fence, claim.lease)
    await operation.remove(entry)  # the latch is open already
    return BUSY


async def _pass_latch(
    operation: Operation, claim: Claim, entry: QueueEntry, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - LATCH
    if len(counting(listed.nodes)) < needed and claim.wait:
        (answer,) = await operation.ask(Children(entry.parent, entry.arm(entry.parent)))
        listed = await operation.parse_list(entry.parent, answer)
        if listed.at(entry.name) < 0:
            return None
    if len(counting(listed.nodes)) >= needed:
        return Granted(entry.fence, operation.registry.valid_for(claim.lease))
    entry.recheck_at = NEVER
    return BUSY


async def _pass_barrier(
    operation: Operation, claim: Claim, entry: QueueEntry, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - BARRIER
    size = needed * (len(entry.path) + BYTES_PER_PARTY)
    if size > MAX_BYTES:
        raise Unsupported(
            f"a barrier of {needed} parties is too large for ZooKeeper: its transaction would be "
            f"{size} bytes, and {MAX_BYTES} are allowed. Use a shorter name, or fewer parties"
        )
    wake = entry.arm(entry.path) if claim.wait else None
    own, answer = await operation.ask(Get(entry.path, wake), Children(entry.parent))
    if own is Refusal.NO_NODE:
        return None
    granted = Granted(entry.fence, operation.registry.valid_for(claim.lease))
    nodes = (await operation.parse_list(entry.parent, answer)).nodes
    if len(nodes) >= needed:
        seen = await operation.read(entry.parent, nodes)
        if any(one.node.name == entry.name and one.facts.state == PASSED for one in seen):
            return granted
        waiting = [one for one in seen if one.facts.state != PASSED][:needed]
        if len(waiting) == needed:
            marks = tuple(
                Put(
                    f"{entry.parent}/{one.node.name}",
                    one.facts._replace(state=PASSED).encoded(),
                    one.stat.version,
                )
                for one in waiting
            )
            (done,) = await operation.ask(Transaction(marks))
            ours = any(one.node.name == entry.name for one in waiting)
            # Otherwise one of them left, or another client wrote the marks: list again.
            return granted if done is True and ours else None
    (mine,) = operation.decode(entry.parent, [listed.nodes[listed.at(entry.name)]], [own])
    if mine.facts.state == PASSED:
        return granted
    entry.recheck_at = NEVER
    return BUSY


async def leave(operation: Operation, claim: Claim, entry: QueueEntry) -> bool:
    """Leave the queue; True if the claim had passed the latch or barrier before. A node that passed
    a barrier was written to, so a delete of version 0 fails, and we learn of it."""
    if entry.in_flight or entry.uncertain:
        await operation.find_own_node(entry)
    if not entry.name or not operation.registry.is_ours(entry):
        operation.registry.discard(entry)
        return entry.granted
    untouched = 0 if claim.slots >= BARRIER else -1
    answer, deleted = await operation.ask(Children(entry.parent), Delete(entry.path, untouched))
    listed = await operation.parse_list(entry.parent, answer)
    if deleted is Refusal.BAD_VERSION:
        await operation.ask(Delete(entry.path))
        crossed = True
    else:
        opened = len(counting(listed.nodes)) >= claim.slots - LATCH
        crossed = entry.granted or (claim.slots < BARRIER and opened)
    operation.registry.discard(entry)
    return crossed

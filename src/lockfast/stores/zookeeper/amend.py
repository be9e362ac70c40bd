"""Changes to a live hold: detach and attach, shrink, and resize its name.

ZooKeeper cannot rename a node or change its lifetime. So one transaction replaces the node by
another with the same sequence number and the same fence (in the data, since its own czxid is
newer): no client sees it missing or twice, and its position in the queue stays. The watch on the
old node fires, and the waiter lists the name again.
"""

from __future__ import annotations

from lockfast.model import Claim, Gone, Granted
from lockfast.stores.zookeeper.nodes import (
    DETACHED,
    HOLDS,
    NEW,
    SESSION,
    TIMED,
    digest_of,
    facts_of,
    parsed,
)
from lockfast.stores.zookeeper.operation import Listed, Operation, SeenNode
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.registry import QueueEntry
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Delete,
    Kind,
    Put,
    Refusal,
    Transaction,
)

GONE = Gone()
# Seconds for which a reading of the server's clock is accurate enough.
CLOCK_AGE = 60.0


async def detach(operation: Operation, claim: Claim) -> Granted | Gone:
    """Move the hold from the session to a persistent node that only its lease ends."""
    entry = await _known(operation, claim)
    if entry is None:
        return await renew_detached(operation, claim)  # perhaps detached, and the answer lost
    name = parsed(entry.name).renamed(lifetime=DETACHED)
    data = facts_of(claim, HOLDS, entry.fence, entry.since).encoded()
    create = Create(f"{entry.parent}/{name}", data, Kind.PERSISTENT)
    entry.uncertain = True
    (answer,) = await operation.ask(Transaction((Delete(entry.path), create)))
    operation.registry.discard(entry)
    return Granted(entry.fence, claim.lease) if answer is True else GONE


async def attach(operation: Operation, claim: Claim) -> Granted | Gone:
    """Move a detached hold to our session, unless another client was faster."""
    seen = await _alive(operation, claim)
    if seen is None:
        return GONE
    registry = operation.registry
    parent = operation.parent(claim.name)
    lifetime = TIMED if claim.lease < registry.session.timeout else SESSION
    name = seen.node.renamed(lifetime=lifetime)
    data = facts_of(claim, HOLDS, seen.fence, seen.since).encoded()
    delete = Delete(f"{parent}/{seen.node.name}", seen.stat.version)
    create = Create(f"{parent}/{name}", data, Kind.EPHEMERAL)
    (answer,) = await operation.ask(Transaction((delete, create)))
    if answer is not True:
        return GONE
    entry = registry.entry(claim.id, parent)
    entry.adopt(name, seen.fence, registry.session.id)
    entry.lifetime, entry.state, entry.since = lifetime, HOLDS, seen.since
    entry.size_checked = entry.granted = entry.marked = True
    entry.confirmed = registry.clock()
    return Granted(seen.fence, registry.valid_for(claim.lease))


async def renew_detached(operation: Operation, claim: Claim) -> Granted | Gone:
    """Renew a permit or a detached hold."""
    seen = await _alive(operation, claim)
    return GONE if seen is None else Granted(seen.fence, claim.lease)


async def release_detached(operation: Operation, claim: Claim) -> bool:
    parent = operation.parent(claim.name)
    seen = await _alive(operation, claim)
    if seen is None:
        return False
    (answer,) = await operation.ask(Delete(f"{parent}/{seen.node.name}", seen.stat.version))
    operation.registry.use_parent(parent)
    return answer not in (Refusal.NO_NODE, Refusal.BAD_VERSION)


async def _alive(operation: Operation, claim: Claim) -> SeenNode | None:
    """The claim's detached hold, renewed; None if it is over. Only the answer to the renewal
    carries the server's time: a hold that had ended before is deleted, not revived."""
    parent, digest = operation.parent(claim.name), digest_of(claim.id)
    while True:
        listed = await operation.list_nodes(parent)
        nodes = [one for one in listed.nodes if one.digest == digest and one.lifetime == DETACHED]
        found = await operation.read(parent, nodes)
        if not found:
            return None
        seen = found[0]
        path = f"{parent}/{seen.node.name}"
        facts = seen.facts._replace(lease=claim.lease)
        (stat,) = await operation.ask(Put(path, facts.encoded(), seen.stat.version))
        if isinstance(stat, Refusal):
            continue  # another client was faster: read it again
        if stat.mtime / 1e3 > seen.ends:
            await operation.ask(Delete(path, stat.version))
            operation.registry.use_parent(parent)
            return None
        return seen._replace(stat=stat)


async def shrink(operation: Operation, claim: Claim) -> Granted | Gone:
    """Keep the hold with fewer slots."""
    entry = await _known(operation, claim)
    if entry is None:
        return GONE
    name = parsed(entry.name).renamed(take=min(parsed(entry.name).take, claim.take))
    if name != entry.name:
        data = facts_of(claim, HOLDS, entry.fence, entry.since).encoded()
        create = Create(f"{entry.parent}/{name}", data, Kind.EPHEMERAL)
        entry.uncertain = True
        (answer,) = await operation.ask(Transaction((Delete(entry.path), create)))
        entry.uncertain = False
        if answer is not True:
            operation.registry.discard(entry)
            return GONE
        entry.name = name
    return Granted(entry.fence, operation.registry.valid_for(claim.lease))


async def _known(operation: Operation, claim: Claim) -> QueueEntry | None:
    """The entry of our node, found again if an answer was lost; None if there is none."""
    entry = operation.registry.entries.get(claim.id)
    if entry is not None and (entry.uncertain or entry.in_flight):
        await operation.find_own_node(entry)
    if entry is None or not entry.name or not operation.registry.is_ours(entry):
        return None
    return entry


async def resize(operation: Operation, name: str, expected: int, slots: int) -> int:
    """Write the new size on the parent; the size the name had.

    The written size counts as long as any node exists that is older than the write. Newer nodes
    carry the new size in their names, or they would have been refused. So when the last older node
    is gone, the names of the others give the size, and the data of the parent no longer counts.

    The write is one transaction with a write to the first node: if that node is gone, the name may
    be another client's lock by now. Holders that no longer fit keep their holds: their nodes are
    marked first, since the order no longer shows them as holders.
    """
    parent = operation.parent(name)
    await operation.server_time(CLOCK_AGE)
    while True:
        (answer,) = await operation.ask(Children(parent))
        listed = await operation.parse_list(parent, answer)
        expiring = [node for node in listed.nodes if node.lifetime != SESSION]
        if await operation.delete_expired(parent, await operation.read(parent, expiring)):
            continue
        if listed.size != expected or not listed.nodes:
            return listed.size
        if slots < expected:
            await _mark_holders(operation, parent, listed)
        found = await operation.read(parent, listed.nodes)
        if not found or found[0].node != listed.nodes[0]:
            continue
        size = Put(parent, str(slots).encode(), answer[1].version)
        (done,) = await operation.ask(Transaction((_touch(parent, found[0]), size)))
        if done is not True:
            continue
        if expected == 1 and len(found) > 1:
            # A waiter for a single slot watches the node before it, as for a lock: wake it.
            await operation.ask(*(_touch(parent, seen) for seen in found[1:]))
        return expected


async def _mark_holders(operation: Operation, parent: str, listed: Listed) -> None:
    holders = await operation.read(parent, listed.nodes[: holding(listed.nodes, listed.size)])
    marks = [
        Put(_at(parent, seen), seen.facts._replace(state=HOLDS).encoded(), seen.stat.version)
        for seen in holders
        if seen.facts.state == NEW
    ]
    if marks:
        await operation.ask(*marks)


def _touch(parent: str, seen: SeenNode) -> Put:
    """Rewrite the same data, so that watches on the node fire."""
    return Put(_at(parent, seen), seen.facts.encoded(), seen.stat.version)


def _at(parent: str, seen: SeenNode) -> str:
    return f"{parent}/{seen.node.name}"

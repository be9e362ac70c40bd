"""Put a claim into the queue, whatever became of an earlier attempt with the same id."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.model import Claim
from lockfast.stores.zookeeper.nodes import NEW, SESSION, TIMED, Node, facts_of, prefix_of
from lockfast.stores.zookeeper.operation import Listed, Operation
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.registry import QueueEntry, Registry
from lockfast.stores.zookeeper.requests import Children, Create, Kind, Refusal, Request


async def enqueue(
    operation: Operation,
    claim: Claim,
    entry: QueueEntry,
    lifetime: str = "",
    kind: Kind = Kind.EPHEMERAL_SEQUENTIAL,
) -> tuple[Listed, bool]:
    """Create the claim's node unless it exists; the list with it, and whether it is new. A list
    requested after the create, in the same session, contains our node, or it was deleted: make
    another."""
    registry = operation.registry
    while True:
        if entry.uncertain:
            await operation.find_own_node(entry)
        if entry.name or entry.in_flight:
            listed = await operation.list_nodes(entry.parent)
            if entry.name and listed.at(entry.name) >= 0:
                return listed, False
            if entry.name:
                entry.reset()
            continue
        entry.lifetime = lifetime or lifetime_of(registry, claim)
        requests = _create_requests(registry, claim, entry, kind)
        answers = await operation.ask(*requests)
        if answers[-2] is not Refusal.NO_NODE:
            registry.use_parent(entry.parent)
            return await operation.parse_list(entry.parent, answers[-1]), True
        registry.forget_parent(entry.parent)
        if len(requests) == 3 and answers[0] is Refusal.NO_NODE:
            await operation.make_root()


async def enqueue_batch(
    operation: Operation, claims: Sequence[Claim], entries: Sequence[QueueEntry]
) -> list[Listed | None]:
    """`enqueue` claims that are all new in one batch; None where it must be tried again."""
    requests, registry = [], operation.registry
    for claim, entry in zip(claims, entries, strict=True):
        entry.lifetime = lifetime_of(registry, claim)
        requests.append(_create_requests(registry, claim, entry, Kind.EPHEMERAL_SEQUENTIAL))
    answers = await operation.ask(*(request for batch in requests for request in batch))
    listed: list[Listed | None] = []
    for batch, entry in zip(requests, entries, strict=True):
        own, answers = answers[: len(batch)], answers[len(batch) :]
        if own[-2] is Refusal.NO_NODE:
            registry.forget_parent(entry.parent)
            listed.append(None)
        else:
            registry.use_parent(entry.parent)
            listed.append(await operation.parse_list(entry.parent, own[-1]))
    return listed


async def is_taken(operation: Operation, claim: Claim) -> bool:
    """Is the name taken? Asked before a claim where the last was refused: otherwise clients that
    poll a free name would find each other's nodes, and none would get it. It also writes less."""
    registry, parent = operation.registry, operation.parent(claim.name)
    if not registry.is_contended(parent) or claim.id in registry.entries:
        return False
    listed = await operation.list_nodes(parent)
    last = Node(2**63, "", SESSION, claim.take, claim.slots, "")
    count = holding([*listed.nodes, last], listed.size)
    expiring = any(node.lifetime != SESSION for node in listed.nodes[:count])
    if listed.size == claim.slots and count <= len(listed.nodes) and not expiring:
        return True
    registry.mark_contended(parent, False)
    return False


def lifetime_of(registry: Registry, claim: Claim) -> str:
    return TIMED if claim.lease < registry.session.timeout else SESSION


def _create_requests(
    registry: Registry, claim: Claim, entry: QueueEntry, kind: Kind
) -> list[Request]:
    """Requests that create the parent, unless it existed a moment ago, create our node, and list
    the name. That the parent exists already is no error."""
    requests: list[Request] = []
    if not registry.knows_parent(entry.parent):
        requests.append(Create(entry.parent, b"", Kind.CONTAINER))
    prefix = f"{entry.parent}/{prefix_of(claim, entry.lifetime)}"
    data = facts_of(claim, NEW).encoded()
    return [*requests, Create(prefix, data, kind, entry), Children(entry.parent)]

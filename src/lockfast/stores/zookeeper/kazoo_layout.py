"""The layout of kazoo's Lock and Curator's mutex, on one path.

The path is the lock's name itself. A child whose name ends in ten digits is a contender, and the
one with the lowest number holds. Our nodes are named like kazoo's, `<32 hex
digits>__lock__0000000001`, so that kazoo sees them; Curator's are `_c_<guid>-lock-0000000001`. All
exclude each other. Their nodes end with their session, and so do ours: no other client would
enforce a lease. Our own process enforces it.
"""

from __future__ import annotations

from typing import Any

from lockfast.core.law import REFRESH
from lockfast.errors import ConfigurationError
from lockfast.model import Busy, Capabilities, Claim, Granted, Holder, Snapshot, Waiter, Who
from lockfast.stores.zookeeper.nodes import Node, contenders, digest_of
from lockfast.stores.zookeeper.operation import BATCH, Operation
from lockfast.stores.zookeeper.registry import QueueEntry
from lockfast.stores.zookeeper.requests import Children, Create, Get, Kind, Refusal

KAZOO = "kazoo"
CAPABILITIES = Capabilities(store="zookeeper", across="network", overtakes=False, wakes="notify")
NEVER = float("inf")


def path_of(operation: Operation, full_name: str) -> str:
    """The name without our namespace, as a path under the chroot."""
    name = full_name.partition(":")[2].strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigurationError(
            f"{name!r} is not a path: use a name such as 'app/lock', as with kazoo"
        )
    return f"{operation.registry.root.rpartition('/')[0]}/{name}"


async def claim(operation: Operation, claim: Claim) -> Granted | Busy:
    registry = operation.registry
    asked_at = registry.clock()
    entry = registry.entry(claim.id, path_of(operation, claim.name))
    entry.foreign = True
    while True:
        nodes = await _enqueue(operation, claim, entry)
        at = next((at for at, node in enumerate(nodes) if node.name == entry.name), -1)
        if at < 0:
            entry.reset()
            continue
        if at == 0:
            entry.granted, entry.armed, entry.confirmed = True, False, asked_at
            return Granted(entry.fence, registry.valid_for(claim.lease))
        if not claim.wait:
            await operation.remove(entry)
            return Busy(REFRESH, 0)
        entry.recheck_at = NEVER
        ahead = f"{entry.parent}/{nodes[at - 1].name}"
        (answer,) = await operation.ask(Get(ahead, entry.arm(ahead)))
        if answer is not Refusal.NO_NODE:
            return Busy(REFRESH, 0)


async def _enqueue(operation: Operation, claim: Claim, entry: QueueEntry) -> list[Node]:
    """Create our node unless it exists, as `enqueue.enqueue` does; the nodes in order."""
    while True:
        if entry.uncertain:
            await operation.find_own_node(entry)
        if entry.name or entry.in_flight:
            (answer,) = await operation.ask(Children(entry.parent))
            if answer is Refusal.NO_NODE:
                entry.reset()
            elif entry.name:
                return contenders(answer[0])
            continue
        prefix = f"{entry.parent}/{digest_of(claim.id)}__lock__"
        create = Create(prefix, claim.who.encode(), Kind.EPHEMERAL_SEQUENTIAL, entry)
        created, answer = await operation.ask(create, Children(entry.parent))
        if created is not Refusal.NO_NODE:
            return contenders(answer[0])
        await _make_parents(operation, entry.parent)


async def _make_parents(operation: Operation, path: str) -> None:
    """Create the path; its last node as a container, which the server removes when it is empty."""
    parts = path.strip("/").split("/")
    above = ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]
    creates = [Create(one, b"", Kind.PERSISTENT) for one in above]
    await operation.ask(*creates, Create(path, b"", Kind.CONTAINER))


async def inspect(operation: Operation, name: str) -> Snapshot:
    parent = path_of(operation, name)
    (answer,) = await operation.ask(Children(parent))
    nodes = [] if answer is Refusal.NO_NODE else contenders(answer[0])[:BATCH]
    reads = [Get(f"{parent}/{node.name}") for node in nodes]
    answers = await operation.ask(*reads) if reads else []
    seen = [got for got in answers if got is not Refusal.NO_NODE]
    holders = tuple(
        Holder(_who(got), got[1].czxid, 1, got[1].ctime / 1e3, operation.registry.session.timeout)
        for got in seen[:1]
    )
    waiters = tuple(Waiter(_who(got), 1, got[1].ctime / 1e3, True) for got in seen[1:])
    now = operation.registry.session.server_time() or 0.0
    return Snapshot(name, 1 if seen else 0, holders, waiters, now)


def _who(got: Any) -> Who:
    return Who.decoded(got[0].decode(errors="replace"))

"""The law of slots, decided by the order of nodes.

**The holders are the longest run of nodes, from the first on, whose takes fit into the slots.**
No node behind one that does not fit is considered. That is the law of fair claims, and it needs no
separate grant: every client that reads the list reaches the same result. Stale lists are safe:

1. A list read after our own node was created contains every node before ours except those that
   ended: ZooKeeper answers a session in order, and every server applies changes in one order.
2. A node that ends, or takes fewer slots, only lets more in; a new node comes last. So a stale
   list errs on the safe side, and a holder stays a holder as long as its node exists.

Hence ``fair=False`` is served in arrival order too: overtaking would break 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockfast.model import ALL_SLOTS
from lockfast.stores.zookeeper.nodes import SESSION, Node


class Position(NamedTuple):
    """The position of a node in the queue. A node that does not hold waits for a change of
    ``ahead`` (None: of any holder); ``expiring`` are the nodes it waits for that may end by their
    lease."""

    holds: bool
    shared: bool = False  # a semaphore: more than one may hold, but not all
    followed: bool = False  # other nodes are behind it
    ahead: Node | None = None
    expiring: tuple[Node, ...] = ()


def holding(nodes: Sequence[Node], size: int) -> int:
    """The number of holders: the first nodes that fit into ``size`` slots together."""
    free = size
    for count, node in enumerate(nodes):
        if node.take > free:
            return count
        free -= node.take
    return len(nodes)


def position_of(nodes: Sequence[Node], at: int, size: int) -> Position:
    """The position of node ``at``. Each waiter watches one thing, so that a change wakes one:

    - a lock's waiter, and a writer, watch the node before them;
    - a reader watches the last writer before it: other readers do not block it;
    - the first waiter of a semaphore watches all holders; each other one watches the node before
      it, which is written to when it becomes a holder.
    """
    count = holding(nodes, size)
    shared = 1 < size != ALL_SLOTS
    if at < count:
        return Position(True, shared, at + 1 < len(nodes))
    if shared and at == count:
        expiring = tuple(node for node in nodes[:count] if node.lifetime != SESSION)
        return Position(False, shared, expiring=expiring)
    before = at - 1
    if size == ALL_SLOTS and nodes[at].take < ALL_SLOTS:
        while before > 0 and nodes[before].take < ALL_SLOTS:
            before -= 1
    ahead = nodes[before]
    expiring = (ahead,) if before < count and ahead.lifetime != SESSION else ()
    return Position(False, shared, ahead=ahead, expiring=expiring)

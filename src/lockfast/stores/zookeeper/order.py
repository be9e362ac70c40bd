"""The law of slots, told by the order of nodes.

**The holders are the longest run of nodes, from the first on, whose takes fit into the slots.**
Nobody skips one that does not fit. That is the law where all are fair, and it needs no step in
which somebody is granted something: whoever reads the list knows. It is safe although lists may be
old:

1. A list that is read after our own node was made has all nodes before ours, but for those that
   ended: ZooKeeper answers a session in order, and every server applies changes in one order.
2. Nodes that end, or that take less, only let more in; nodes that come stand behind. So an old list
   errs on the safe side, and who holds goes on holding as long as its node is there.

Hence ``fair=False`` is served in the order of arrival too: to overtake would break 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockfast.model import ALL_SLOTS
from lockfast.stores.zookeeper.nodes import SESSION, Node


class Standing(NamedTuple):
    """Where a node stands. If it does not hold: what must change first is ``ahead`` (None: any of
    ``mortal`` and all others that hold). ``mortal`` are those in the way whose lease may end."""

    holds: bool
    shared: bool = False  # a semaphore: several may hold, but not all
    followed: bool = False  # others stand behind it
    ahead: Node | None = None
    mortal: tuple[Node, ...] = ()


def holding(nodes: Sequence[Node], size: int) -> int:
    """How many, from the first on, hold."""
    free = size
    for count, node in enumerate(nodes):
        if node.take > free:
            return count
        free -= node.take
    return len(nodes)


def standing(nodes: Sequence[Node], at: int, size: int) -> Standing:
    """Of the node at that index. Each watches one thing, so that a change wakes one:

    - of a lock, and a writer: the node before it, whatever it is;
    - a reader: the last writer before it; other readers are not in its way;
    - of a semaphore: the first that waits watches all that hold; the others the one before, which
      writes on its node when it begins to hold.
    """
    count = holding(nodes, size)
    shared = 1 < size != ALL_SLOTS
    if at < count:
        return Standing(True, shared, at + 1 < len(nodes))
    if shared and at == count:
        mortal = tuple(node for node in nodes[:count] if node.life != SESSION)
        return Standing(False, shared, mortal=mortal)
    before = at - 1
    if size == ALL_SLOTS and nodes[at].take < ALL_SLOTS:
        while before > 0 and nodes[before].take < ALL_SLOTS:
            before -= 1
    ahead = nodes[before]
    mortal = (ahead,) if before < count and ahead.life != SESSION else ()
    return Standing(False, shared, ahead=ahead, mortal=mortal)

"""The encoding of claims as nodes, and the law of slots as the order of nodes.

A name is one parent node, `<chroot>/lockfast/<escaped name>`. Each claim on it is one child. The
child's *name* contains all that the law needs, so one list of children decides who holds:

    s-1-5-77ab…-0000000012       lifetime, take, slots, digest of the claim's id, number

The claim's id is a secret (it authorizes a release), so only its digest is written. The number is
ZooKeeper's sequence number: the arrival order. The lifetime is how the node ends other than by a
release:

    s   with its session (an ephemeral node)
    t   with its session or its lease, whichever ends first: the lease is shorter than the session
    d   with its lease alone (a persistent node): detached holds, permits, counts of a latch

The *data* is one line, for operators and for clients that need more than the name:

    h 2000 0 0 f host 4711 MainThread label

state; lease in ms; fence and since (ms), 0 where they are the node's own czxid and ctime; fair or
unfair; who. The states are

    n   new: if it was granted at once, its lease began when the node was created
    w   waiting: its lease has not begun
    h   holding: its lease began when this data was written
    p   passed the barrier

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

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from lockfast.model import ALL_SLOTS, Claim
from lockfast.stores.zookeeper.requests import Stat

NEVER = float("inf")
ROOT = "lockfast"
SESSION, TIMED, DETACHED = "s", "t", "d"
NEW, WAITS, HOLDS, PASSED = "n", "w", "h", "p"

# Printable ASCII except characters with a meaning in a path or an escape. Others are escaped.
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/%")
# The nodes of kazoo and Curator (see `queue`): ten digits, with a sign after 2^31
# contenders. The hyphen of Curator's `lock-` is no sign, or all its nodes would come before ours.
_CONTENDER = re.compile(r"(.*?(?:__lock__|lock-)(?=-?\d{10}$)|.*?)(-[12]\d{9}|\d{10})").fullmatch
_OURS = re.compile(r"([0-9a-f]{32})__lock__").fullmatch
_NODE = re.compile(r"([std])-(\d+)-(\d+)-([0-9a-f]{32})-(-?\d{10})").fullmatch


class Node(NamedTuple):
    """A child of a name, parsed from its node name."""

    number: int
    name: str
    lifetime: str
    take: int
    slots: int
    digest: str
    parent: str = ""

    @property
    def path(self) -> str:
        return f"{self.parent}/{self.name}"

    def renamed(self, *, lifetime: str = "", take: int = -1, slots: int = 0) -> str:
        """The name of a node that replaces this one, with the same number."""
        take, slots = self.take if take < 0 else take, slots or self.slots
        return f"{lifetime or self.lifetime}-{take}-{slots}-{self.digest}-{self.number:010d}"


class Facts(NamedTuple):
    """The data of a node."""

    state: str
    lease: float
    fence: int
    since: float
    fair: bool
    who: str

    def encoded(self) -> bytes:
        # Rounded up: no other client may consider it over before its owner does.
        lease, since = math.ceil(self.lease * 1e3), round(self.since * 1e3)
        fair = "f" if self.fair else "u"
        return f"{self.state} {lease} {self.fence} {since} {fair} {self.who}".encode()


class Foreign(Exception):
    """A node that lockfast did not write, under a name of ours."""


@functools.lru_cache(maxsize=4096)
def escaped(name: str) -> str:
    """The name as a path's part; injective. Its colon prevents '.' and '..', which are refused."""
    return quote(name, safe=_SAFE)


def unescaped(part: str) -> str:
    """The name; '' if `escaped` never returns this part."""
    name = unquote(part, errors="replace")
    return name if escaped(name) == part else ""


def digest_of(claim_id: str) -> str:
    return hashlib.blake2b(claim_id.encode(), digest_size=16).hexdigest()


def prefix_of(claim: Claim, lifetime: str) -> str:
    """The name of a claim's node without its number."""
    return f"{lifetime}-{claim.take}-{claim.slots}-{digest_of(claim.id)}-"


@functools.lru_cache(maxsize=4096)  # each waiter reads the same names again and again
def parsed(name: str, parent: str = "") -> Node:
    match = _NODE(name)
    if match is None:
        raise Foreign(name)
    lifetime, take, slots, digest, number = match.groups()
    return Node(int(number), name, lifetime, int(take), int(slots), digest, parent)


def in_order(names: Iterable[str], parent: str) -> list[Node]:
    return sorted([parsed(name, parent) for name in names])


def contenders(names: Iterable[str], parent: str) -> list[Node]:
    """The nodes in order on a path that kazoo or Curator uses too. Other children are ignored."""
    found = []
    for name in names:
        match = _CONTENDER(name)
        if match is not None:
            ours = _OURS(match[1])
            digest = ours[1] if ours else ""
            found.append(Node(int(match[2]), name, SESSION, 1, 1, digest, parent))
    return sorted(found)


def facts_of(claim: Claim, state: str, fence: int = 0, since: float = 0.0) -> Facts:
    return Facts(state, claim.lease, fence, since, claim.fair, claim.who)


def read(data: bytes, foreign: bool = False) -> Facts:
    """The data of a node. kazoo and Curator write an identifier, or nothing."""
    if foreign:
        return Facts(NEW, NEVER, 0, 0.0, True, data.decode(errors="replace"))
    try:
        state, lease, fence, since, fair, who = data.decode().split(" ", 5)
        return Facts(state, int(lease) / 1e3, int(fence), int(since) / 1e3, fair == "f", who)
    except ValueError:
        raise Foreign(data[:40].decode(errors="replace")) from None


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


class Listed(NamedTuple):
    """The nodes of a name in order, its size (0: there are none), and the version of its parent's
    data, to which `resize` writes."""

    nodes: list[Node]
    size: int
    version: int = 0

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

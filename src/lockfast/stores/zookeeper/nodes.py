"""The encoding of claims: the path of a name, and the name and the data of a node.

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
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from lockfast.model import Claim

ROOT = "lockfast"
SESSION, TIMED, DETACHED = "s", "t", "d"
NEW, WAITS, HOLDS, PASSED = "n", "w", "h", "p"

# Printable ASCII except characters with a meaning in a path or an escape. Others are escaped.
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/%")
# The nodes of kazoo and Curator (see `kazoo_layout`): ten digits, with a sign after 2^31
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

    def renamed(self, *, lifetime: str = "", take: int = -1) -> str:
        """The name of a node that replaces this one, with the same number."""
        take = self.take if take < 0 else take
        return f"{lifetime or self.lifetime}-{take}-{self.slots}-{self.digest}-{self.number:010d}"


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


def parsed(name: str) -> Node:
    match = _NODE(name)
    if match is None:
        raise Foreign(name)
    lifetime, take, slots, digest, number = match.groups()
    return Node(int(number), name, lifetime, int(take), int(slots), digest)


def in_order(names: Iterable[str]) -> list[Node]:
    return sorted(parsed(name) for name in names)


def contenders(names: Iterable[str]) -> list[Node]:
    """The nodes in order on a path that kazoo or Curator uses too. Other children are ignored."""
    found = []
    for name in names:
        match = _CONTENDER(name)
        if match is not None:
            ours = _OURS(match[1])
            found.append(Node(int(match[2]), name, SESSION, 1, 1, ours[1] if ours else ""))
    return sorted(found)


def facts_of(claim: Claim, state: str, fence: int = 0, since: float = 0.0) -> Facts:
    return Facts(state, claim.lease, fence, since, claim.fair, claim.who)


def read(data: bytes) -> Facts:
    try:
        state, lease, fence, since, fair, who = data.decode().split(" ", 5)
        return Facts(state, int(lease) / 1e3, int(fence), int(since) / 1e3, fair == "f", who)
    except ValueError:
        raise Foreign(data[:40].decode(errors="replace")) from None

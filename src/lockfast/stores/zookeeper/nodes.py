"""How a claim is written down: the path of its name, and the name and the data of its node.

A name is one parent, `<chroot>/lockfast/<escaped name>`. Each claim on it is one child, whose
*name* says all that the law needs, so that one list of children tells who holds:

    s-1-5-77ab…-0000000012       life, take, slots, digest of the claim's id, number

The claim's id is a secret (who knows it may release), so only its digest is written. The number is
ZooKeeper's, and is the order of arrival. The life is how it ends besides by release:

    s   with its session (an ephemeral node)
    t   with its session, or its lease, whichever is first: the lease is shorter than the session
    d   with its lease alone (a persistent node): detached holds, permits, what counts down a latch

The *data* is one line for people and for who must know more:

    h 2000 0 0 f host 4711 MainThread label

state, lease in ms, fence and since (ms), 0 where they are the node's own czxid and ctime, fair or
unfair, who. The states are

    n   new: if it was granted at once, its lease began when it was made
    w   it waits: its lease has not begun
    h   it holds, and its lease began when this was written
    p   it passed the barrier
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

# Everything printable in ASCII that means nothing in a path or here. What is left over is escaped.
_SAFE = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/%")
# Of kazoo and Curator: see `foreign`.
# A number has ten digits, and after 2^31 contenders a sign. A line before it that is none, as in
# Curator's `lock-`, must not be taken for one: then all its nodes would stand before ours.
_CONTENDER = re.compile(r"(.*?(?:__lock__|lock-)(?=-?\d{10}$)|.*?)(-[12]\d{9}|\d{10})").fullmatch
_OURS = re.compile(r"([0-9a-f]{32})__lock__").fullmatch
_NODE = re.compile(r"([std])-(\d+)-(\d+)-([0-9a-f]{32})-(-?\d{10})").fullmatch


class Node(NamedTuple):
    """A child of a name, as its name tells."""

    number: int
    name: str
    life: str
    take: int
    slots: int
    digest: str

    def renamed(self, *, life: str = "", take: int = -1) -> str:
        """The name of a node that stands in its place, with its number."""
        take = self.take if take < 0 else take
        return f"{life or self.life}-{take}-{self.slots}-{self.digest}-{self.number:010d}"


class Facts(NamedTuple):
    """What the data of a node says."""

    state: str
    lease: float
    fence: int
    since: float
    fair: bool
    who: str

    def encoded(self) -> bytes:
        # Rounded up: nobody may think that it ends before its owner does.
        lease, since = math.ceil(self.lease * 1e3), round(self.since * 1e3)
        fair = "f" if self.fair else "u"
        return f"{self.state} {lease} {self.fence} {since} {fair} {self.who}".encode()


class Foreign(Exception):
    """A node that lockfast did not write, under a name of ours."""


@functools.lru_cache(maxsize=4096)
def escaped(name: str) -> str:
    """A name as one part of a path. Injective: `unescaped` is its inverse. A full name has a colon
    in it, so it is never '.' or '..', which ZooKeeper refuses."""
    return quote(name, safe=_SAFE)


def unescaped(part: str) -> str:
    """The name, or '' if nothing that we escaped looks like this."""
    name = unquote(part, errors="replace")
    return name if escaped(name) == part else ""


def digest_of(claim_id: str) -> str:
    return hashlib.blake2b(claim_id.encode(), digest_size=16).hexdigest()


def prefix_of(claim: Claim, life: str) -> str:
    """What a claim's node is called before its number."""
    return f"{life}-{claim.take}-{claim.slots}-{digest_of(claim.id)}-"


def parsed(name: str) -> Node:
    match = _NODE(name)
    if match is None:
        raise Foreign(name)
    life, take, slots, digest, number = match.groups()
    return Node(int(number), name, life, int(take), int(slots), digest)


def in_order(names: Iterable[str]) -> list[Node]:
    return sorted(parsed(name) for name in names)


def contenders(names: Iterable[str]) -> list[Node]:
    """The same on a path that kazoo or Curator uses too; what is none is not looked at."""
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

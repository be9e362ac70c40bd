"""The nouns: what is asked of a store, what it answers, and what it shows. Frozen, no I/O.

Times: ``lease``, ``retry_after`` and ``remaining`` are seconds that pass; ``since`` is a moment, in
seconds since the epoch on the store's wall clock, for people to read, never to decide by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

# The size of a name tells its kind too, so that two kinds can never share a name unnoticed: the
# numbers up to here are those of locks (1) and semaphores (n).
MOST_PERMITS = 2**31 - 2
# A name of slots without end: readers take one each, a writer takes all of them.
ALL_SLOTS = 2**31 - 1
# Plus how many must count down. Each takes one slot for good; those who wait take none, and are let
# through when all slots are taken.
LATCH = 2**32
# Plus how many parties. They stand in the queue until they are so many, and leave it together.
BARRIER = 2**33
# The layout of a lock that other libraries write too; the other one is ours, and has no name.
SIMPLE = "simple"


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks, for people: the host, the process, the thread or task, and a label of their own."""

    host: str
    pid: int
    thread: str
    label: str = ""

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"{self.host}, pid {self.pid}, {self.thread}{label}"

    def encoded(self) -> str:
        """One line that an operator can read in the store, and that ``decoded`` takes apart."""
        return " ".join(
            (quote(self.host), str(self.pid), quote(self.thread), quote(self.label))
        ).rstrip()

    @classmethod
    def decoded(cls, text: str) -> Who:
        """The inverse of ``encoded``; foreign text is shown as it is, never refused."""
        parts = text.split(" ")
        if len(parts) in (3, 4) and parts[1].isdigit():
            label = unquote(parts[3]) if len(parts) == 4 else ""
            return cls(unquote(parts[0]), int(parts[1]), unquote(parts[2]), label)
        return cls("unknown", 0, text)


class Claim(NamedTuple):
    """One attempt to get something. ``id`` cannot be guessed, and asking twice with it is harmless.

    ``slots`` is the size of the name (1 for a lock, n for a semaphore, ALL_SLOTS for a read-write
    lock; see above), ``take`` how many of them this claim wants. ``wait`` False asks once and
    leaves no place.
    A tuple, not a dataclass like its neighbours: one is made for every acquire, in a third of the
    time.
    """

    name: str
    id: str  # a secret
    who: str
    lease: float
    slots: int = 1
    take: int = 1
    fair: bool = True
    wait: bool = True
    layout: str = ""

    def __repr__(self) -> str:
        return f"<Claim on {self.name!r}, {self.take} of {self.slots}>"


def kind_of(slots: int) -> str:
    """What a name of this size is, for messages."""
    if slots >= BARRIER:
        return f"a barrier of {slots - BARRIER}"
    if slots >= LATCH:
        return f"a latch of {slots - LATCH}"
    if slots == ALL_SLOTS:
        return "a read-write lock"
    return "a lock" if slots == 1 else f"a semaphore of {slots}"


class Granted(NamedTuple):
    """Yes: under this fence, for ``lease`` seconds from when the store decided. A tuple, as a claim
    is."""

    fence: int
    lease: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Not now. ``retry_after`` is when asking again makes sense; ``fence`` is the last one that the
    store had given out when it said so: a bell with a lower fence is older than this answer."""

    retry_after: float
    fence: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The store knows no hold and no place of this claim (any more)."""


@dataclass(frozen=True, slots=True)
class Differs:
    """The name is in use with another number of slots."""

    slots: int


@dataclass(frozen=True, slots=True)
class Holder:
    """One live hold, as an operator sees it."""

    who: Who
    fence: int
    take: int
    since: float
    remaining: float


@dataclass(frozen=True, slots=True)
class Waiter:
    """One live claim that waits, as an operator sees it."""

    who: Who
    take: int
    since: float
    fair: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Who holds a name and who waits for it, in order, at one moment of the store. ``crossed``
    tells one who left that it had been granted just before."""

    name: str
    slots: int
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    now: float = 0.0
    crossed: bool = False


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, what it tells of itself, under which term (its fence), and since when."""

    who: Who
    metadata: str
    term: int
    since: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do; the same questions for every store."""

    store: str
    across: str  # "process", "host" or "network": how far a lock reaches
    fair: bool = True  # False: those who wait are served nearly in order, as well as it can
    overtakes: bool = True  # who asks with fair=False; else it is served in order too
    fences: bool = True
    # How a waiter learns of its turn: "push": with the grant; "notify": it looks whose turn it is;
    # "ask": it is rung, and asks.
    wakes: str = "push"
    survives_restart: bool = False
    # How many replicas must acknowledge a claim: a number, "majority" or "all". 0: nobody waits.
    replicas: int | str = 0
    frees_dead_process: bool = False  # at once, not only when the lease ends
    # A hold cannot be believed in for longer than this after the store last heard of us, whatever
    # its lease: it ends with a session that all holds of a client share. 0: there is no such thing.
    session: float = 0.0
    longest_lease: float = float("inf")  # a longer one is refused
    # What is refused when it is made ("semaphore", "permits", "latch", "barrier"), and why.
    refuses: Mapping[str, str] = field(default_factory=dict)
    # `client.transaction_lock`: held by an open transaction of the user's.
    transaction_locks: bool = False
    # What `client.lock(name, layout=…)` can be told, and what such a lock can do.
    layouts: Mapping[str, Capabilities] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one client did so far. Histogram bucket i counts durations below 2**i microseconds."""

    acquired: int
    reentered: int
    contended: int
    timed_out: int
    lost: int
    released: int
    renewals: int
    renew_errors: int
    held: int
    waiting: int
    wait_time: tuple[int, ...]
    hold_time: tuple[int, ...]

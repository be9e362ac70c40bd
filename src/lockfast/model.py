"""Values that travel between clients and stores: claims, answers, snapshots. Frozen, no I/O.

Times: ``lease``, ``retry_after`` and ``remaining`` are durations in seconds; ``since`` is a moment,
in seconds since the epoch on the store's wall clock, for people to read, never to decide by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

# The size of a name also encodes its kind, so that two kinds can never share a name unnoticed.
# Sizes up to this one are those of locks (1) and semaphores (n).
MOST_PERMITS = 2**31 - 2
# The size of a read-write lock: a reader takes one slot, a writer takes all of them.
ALL_SLOTS = 2**31 - 1
# Plus the number of counts: the size of a latch. Each count-down takes one slot for good; waiters
# take none, and pass when all slots are taken.
LATCH = 2**32
# Plus the number of parties: the size of a barrier. The parties wait in the queue until they are
# complete, and leave it together.
BARRIER = 2**33
# The layout of a lock that other libraries also write. lockfast's own layout has no name ("").
SIMPLE = "simple"


@dataclass(frozen=True, slots=True)
class Who:
    """A claim's owner, for people: host, process, thread or task, and the user's label."""

    host: str
    pid: int
    thread: str
    label: str = ""

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"{self.host}, pid {self.pid}, {self.thread}{label}"

    def encoded(self) -> str:
        """One line that an operator can read in the store, and that ``decoded`` parses."""
        # A thread's name may be any text, lone surrogates included.
        host, thread, label = (
            quote(part, errors="backslashreplace") for part in (self.host, self.thread, self.label)
        )
        return f"{host} {self.pid} {thread} {label}".rstrip()

    @classmethod
    def decoded(cls, text: str) -> Who:
        """Parse the text of ``encoded``; foreign text is shown unchanged, never refused."""
        parts = text.split(" ")  # a fifth part tells attempts to attach a hold apart
        if len(parts) in (3, 4, 5) and parts[1].isdigit():
            label = unquote(parts[3]) if len(parts) > 3 else ""
            return cls(unquote(parts[0]), int(parts[1]), unquote(parts[2]), label)
        return cls("unknown", 0, text)


class Claim(NamedTuple):
    """One attempt to acquire a name. ``id`` cannot be guessed, and sending it twice is harmless.

    ``slots`` is the size of the name (1 for a lock, n for a semaphore, ALL_SLOTS for a read-write
    lock; see above), ``take`` is how many of them this claim wants. A claim with ``wait`` False is
    never queued. This is a tuple, not a dataclass like the other values: every acquire makes one,
    in a third of the time.
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
    """The kind of a name of this size, for messages."""
    if slots >= BARRIER:
        return f"a barrier of {slots - BARRIER}"
    if slots >= LATCH:
        return f"a latch of {slots - LATCH}"
    if slots == ALL_SLOTS:
        return "a read-write lock"
    return "a lock" if slots == 1 else f"a semaphore of {slots}"


class Granted(NamedTuple):
    """The claim holds the name under this fence, for ``lease`` seconds from when the store decided.
    A tuple, as `Claim` is."""

    fence: int
    lease: float


@dataclass(frozen=True, slots=True)
class Busy:
    """The name is taken. Ask again after ``retry_after`` seconds. ``fence`` is the last one that
    the store had issued by then: a wake-up with a lower fence is older than this answer."""

    retry_after: float
    fence: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The store has no hold and no waiter of this claim (any more)."""


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
    """One live waiter, as an operator sees it."""

    who: Who
    take: int
    since: float
    fair: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The holders and waiters of a name, in order, at one moment of the store. ``crossed``: the
    claim had just been granted (in the answer to its withdrawal)."""

    name: str
    slots: int
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    now: float = 0.0
    crossed: bool = False


@dataclass(frozen=True, slots=True)
class Leader:
    """The current leader of an election, its metadata, its term (the fence), and since when."""

    who: Who
    metadata: str
    term: int
    since: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities and limits of a store, in the same terms for every store."""

    store: str
    across: str  # "process", "host" or "network": how far a lock reaches
    fair: bool = True  # False: waiters are served in arrival order on a best-effort basis
    overtakes: bool = True  # a claim with fair=False; else it is served in order too
    fences: bool = True
    # How a waiter learns of its grant. "push": the wake-up carries the grant; "notify": woken, it
    # checks whether it is first; "ask": woken, it claims again.
    wakes: str = "push"
    survives_restart: bool = False
    # How many replicas must acknowledge a claim: a number, "majority" or "all". 0: none.
    replicas: int | str = 0
    frees_dead_process: bool = False  # at once, not only when the lease ends
    # The time-out of the session that all holds of a client share, in seconds: no hold stays valid
    # for longer than this after the store last received a message, whatever its lease. 0: the store
    # has no sessions.
    session: float = 0.0
    longest_lease: float = float("inf")  # a longer one is refused
    # Primitives that cannot be created ("semaphore", "permits", "latch", "barrier"), and why.
    refuses: Mapping[str, str] = field(default_factory=dict)
    # `client.transaction_lock` works: a lock held by an open transaction of the user's.
    transaction_locks: bool = False
    # The values that `client.lock(name, layout=…)` accepts, and the abilities of such locks.
    layouts: Mapping[str, Capabilities] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of one client so far. Histogram bucket i counts durations below 2**i µs."""

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

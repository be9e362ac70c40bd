"""What one client holds and waits for right now, and what it counted: the state that its threads,
its tasks and its keeper share.

Everything here changes under the runtime's mutex and does no I/O. A hold goes HELD → RELEASED,
LOST or DETACHED, once and for good. A lost hold stays in the ledger until its owner has unwound, so
that re-entry after a loss is refused instead of believed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from lockfast.core.law import REFRESH
from lockfast.core.ports import Runtime, Signal
from lockfast.errors import HoldLost
from lockfast.model import ALL_SLOTS, Claim, Granted, Statistics

if TYPE_CHECKING:
    from lockfast.core.listeners import Listeners
    from lockfast.events import Acquired

# Our clock may run slower than the store's by this much before belief outlives the lease. Quartz
# is good for 0.0001, a virtual machine under load for less than 0.005.
DRIFT = 0.01
# The part of a lease that we may believe in, counted from before it was asked for.
BELIEF = 1.0 - DRIFT
NEVER = float("-inf")
HISTOGRAM_BUCKETS = 40
MOST_BITS = 64  # of a duration in µs: half a million years
SLACK = 0.001


class State(enum.Enum):
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"
    DETACHED = "detached"


# Looked at many times in every cycle: a name of a module is found much faster than an enum's.
HELD, RELEASED, LOST, DETACHED = State


class Alarm(NamedTuple):
    """When a hold has lasted longer than its user thinks it should; what its holder does then."""

    at: float
    after: float
    stack: Callable[[], str]


class Held:
    """A granted claim, its count of re-entries, and until when we may believe in it.

    ``deadline`` counts from before the request that got or renewed it was sent, never from the
    reply: a reply that took long must not lengthen belief. ``confirmed`` is when that request was
    sent, ``uncertain_since`` when the store last failed to say that we hold it.
    """

    __slots__ = (
        "acquired_at",
        "alarm",
        "callbacks",
        "cause",
        "claim",
        "confirmed",
        "count",
        "deadline",
        "due",
        "early",
        "ends_by",
        "fence",
        "foreign",
        "lasted",
        "owner",
        "renews",
        "state",
        "stop_body",
        "told",
        "uncertain_since",
        "unknown",
        "writes",
    )

    def __init__(
        self, claim: Claim, owner: object, fence: int, now: float, renews: bool, ends_by: float
    ) -> None:
        self.claim = claim
        self.owner = owner
        self.fence = fence
        self.count = 1
        # Of a read-write lock: how many of these entries are a writer's.
        self.writes = 1 if claim[5] == ALL_SLOTS else 0
        self.state = HELD
        self.cause = ""
        self.unknown = False  # its release was sent and never answered
        self.foreign = False  # a parent's, seen in a fork's child
        self.acquired_at = now
        self.renews = renews
        self.ends_by = ends_by
        self.uncertain_since = NEVER
        # Since when, until when and when again: `believe` says it at once.
        self.confirmed: float
        self.deadline: float
        self.due: float
        self.early: float
        self.callbacks: list[Callable[[], None]] | None = None
        # Called like those, and before them; of the block that the owner itself has entered.
        self.stop_body: Callable[[], None] | None = None
        self.alarm: Alarm | None = None
        self.told: Acquired | None = None  # those who listen know of its beginning, not of its end
        self.lasted: float  # of what has ended and was told of

    def extend_validity(self, sent: float, lease: float) -> None:
        """Granted or renewed by a request that left at ``sent``. Renew after a third of the lease;
        up to a tenth of that earlier if the keeper is sending others anyway. What is not renewed is
        confirmed all the same, to the end of its time, where the store gave less than was asked."""
        self.confirmed = sent
        ends_by = self.ends_by
        deadline = sent + lease * BELIEF
        self.deadline = deadline if deadline < ends_by else ends_by
        if (self.renews or lease < self.claim.lease) and sent + lease < ends_by - SLACK:
            self.due = sent + lease / 3
            self.early = sent + lease * 0.3
        else:
            self.due = self.early = self.deadline

    def extend_validity_from_wakeup(self, sent: float, now: float, first_lease: float) -> None:
        """Granted by a bell: the short first lease is to be extended soon, unless it is released
        sooner, which is the common case and then costs nothing."""
        self.extend_validity(sent, first_lease)
        self.due = self.early = now + max((self.deadline - now) / 3, 0.0)

    def is_certain(self, now: float) -> bool:
        """Is it more than belief that it is held, or that it is not? A confirmation that was asked
        for before the doubt says nothing about now. What our own clock ended is certain again."""
        if self.unknown:
            return False
        return (
            self.uncertain_since <= self.confirmed or self.state is not HELD or now >= self.deadline
        )

    def why_over(self) -> str:
        """Why our own clock says that it is over."""
        if not self.renews and self.deadline > self.ends_by - self.claim.lease / 10:
            return f"its lease of {self.claim.lease:g} s is over and it is not renewed"
        if self.deadline >= self.ends_by - self.claim.lease * DRIFT - SLACK:
            return "its max_hold is over"
        return (
            f"its lease of {self.claim.lease:g} s ran out before a renewal succeeded "
            "(the store unreachable, or this process or its keeper paused)"
        )

    def loss(self) -> HoldLost:
        """The error that tells of it."""
        return HoldLost(
            f"the hold on {shown(self.claim.name)} with fence {self.fence} is lost: {self.cause}. "
            "Somebody else may hold it now: stop, and let the resource refuse this fence",
            name=bare(self.claim.name),
            fence=self.fence,
        )


class Waiting:
    """A claim that stands in the queue. ``last`` is the newest request that was answered "still
    waiting": when it was sent, and the last fence that the store had given by then. A grant with a
    higher fence came after that request, so belief may count from it. A bell with a lower one is a
    late bell of a grant that is over, and is not believed."""

    __slots__ = ("claim", "due", "early", "last", "news", "signal")
    fence: ClassVar[int] = 0
    ends_by: ClassVar[float] = float("inf")
    deadline: ClassVar[float] = float("inf")

    def __init__(self, claim: Claim, signal: Signal) -> None:
        self.claim = claim
        self.signal = signal
        self.last = (float("-inf"), 0)
        self.due = self.early = float("inf")
        self.news: tuple[float | None, Granted | None] | None = None

    def still(self, sent: float, now: float, retry_after: float, fence: int) -> None:
        self.last = (sent, fence)
        # With a short lease the first lease is short too: refresh so often that a bell's grant
        # leaves time to believe in.
        wait = min(retry_after, REFRESH, self.claim.lease / 3)
        self.due = now + wait
        # Up to half of that earlier if the keeper is sending others anyway: after two rounds all
        # who wait are refreshed together, however they arrived. Not who is to ask when a hold ends.
        self.early = now + (wait / 2 if retry_after >= REFRESH else wait)

    def wake(self, grant: Granted | None) -> None:
        """The bell, from any thread. A grant is never overwritten by a bare ring."""
        if grant is not None or self.news is None:
            self.news = (None, grant)
        self.signal.set()

    def granted(self, sent: float, grant: Granted) -> None:
        """The keeper's refresh was answered with the grant itself."""
        self.news = (sent, grant)
        self.signal.set()


class Ledger:
    """All of it, by claim id for the keeper and by (name, owner) for re-entry."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.mutex = runtime.mutex()
        self.listeners: Listeners | None = None
        self.closed = False
        self.by_owner: dict[tuple[str, object], Held] = {}
        self.kept: dict[str, Held] = {}
        self.waiting: dict[str, Waiting] = {}
        self.asking: set[str] = set()  # claims that somebody is in the middle of
        # Claims that were given up and whose leaving was not answered, and how long to go on.
        self.abandoned: dict[str, tuple[Claim, float]] = {}
        self.reentered = self.contended = self.timed_out = 0
        self.lost = self.renewals = self.renew_errors = 0
        # How many holds were waited for, and how many lasted, so many µs (by their bits).
        self.wait_time = [0] * MOST_BITS
        self.hold_time = [0] * MOST_BITS

    def enter(self, held: Held, waited: float) -> None:
        """A new hold. Under the mutex."""
        claim = held.claim
        self.by_owner[claim[0], held.owner] = held
        self.kept[claim[1]] = held
        self.wait_time[int(waited * 1e6).bit_length()] += 1

    @property
    def acquired(self) -> int:
        """How many holds there were so far."""
        return sum(self.wait_time)

    @property
    def released(self) -> int:
        """How many of them have ended, and were not lost."""
        return sum(self.hold_time) - self.lost

    def end(self, held: Held, state: State, now: float, cause: str = "") -> None:
        """Out of the keeper's hands. Under the mutex, and only while it is HELD."""
        held.state = state
        self.kept.pop(held.claim[1], None)
        if state is LOST:
            held.cause = cause
            self.lost += 1
        else:
            self.forget(held)
        lasted = now - held.acquired_at
        self.hold_time[int(lasted * 1e6).bit_length()] += 1
        if held.told is not None:
            held.lasted = lasted

    def lost_unnoticed(self, held: Held, cause: str) -> HoldLost:
        """It was given back, and the store did not know it any more. Not under the mutex."""
        with self.mutex:
            held.cause = cause
            self.lost += 1
        return held.loss()

    def forget(self, held: Held) -> None:
        """Its owner has unwound. Under the mutex."""
        key = (held.claim[0], held.owner)
        if self.by_owner.get(key) is held:
            del self.by_owner[key]

    def lose(self, held: Held, cause: str) -> None:
        """Mark it lost and tell, once. Not under the mutex: what is told runs foreign code."""
        with self.mutex:
            if held.state is not HELD:
                return
            self.end(held, LOST, self.runtime.now(), cause)
        self.tell(held)

    def tell(self, held: Held) -> None:
        """It has ended: tell those who asked, once. Not under the mutex."""
        self.call_back(held)
        self.emit_end(held)

    def call_back(self, held: Held) -> None:
        """Tell those who asked about this hold."""
        stop = held.stop_body  # which its task may take back at any time
        if stop is not None:
            stop()
        if held.callbacks:
            with self.mutex:
                callbacks, held.callbacks = held.callbacks or [], None
            for callback in callbacks:
                callback()

    def emit_end(self, held: Held) -> None:
        """Tell those who listen to everything."""
        began, held.told = held.told, None
        if began is not None:
            assert self.listeners is not None, "who told of its beginning"
            self.listeners.ended(held, began)

    def on_end(self, held: Held, callback: Callable[[], None]) -> None:
        """Call it when the hold has ended, however; at once if it has already."""
        with self.mutex:
            if held.state is HELD:
                if held.callbacks is None:
                    held.callbacks = []
                held.callbacks.append(callback)
                return
        callback()

    def off_end(self, held: Held, callback: Callable[[], None]) -> None:
        """Call it no more."""
        with self.mutex:
            if held.callbacks and callback in held.callbacks:
                held.callbacks.remove(callback)

    def statistics(self) -> Statistics:
        with self.mutex:
            return Statistics(
                self.acquired,
                self.reentered,
                self.contended,
                self.timed_out,
                self.lost,
                self.released,
                self.renewals,
                self.renew_errors,
                len(self.kept),
                len(self.waiting),
                _shown_buckets(self.wait_time),
                _shown_buckets(self.hold_time),
            )


def bare(full_name: str) -> str:
    """The name as the user wrote it, without the client's namespace."""
    return full_name.partition(":")[2]


def shown(full_name: str) -> str:
    return repr(bare(full_name))


def _shown_buckets(counts: list[int]) -> tuple[int, ...]:
    """What lasted longer than the last one's time is counted there, too."""
    last = HISTOGRAM_BUCKETS - 1
    return (*counts[:last], sum(counts[last:]))

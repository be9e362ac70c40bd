"""The ledger of one client: its holds, its waiters and its counters, shared by its threads, tasks
and keeper.

Everything here changes under the runtime's mutex and does no I/O. A hold goes HELD → RELEASED,
LOST or DETACHED, once and for good. A lost hold stays in the ledger until its owner has unwound, so
that re-entry after a loss is refused.
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

# By how much our clock may run slower than the store's before validity outlives the lease. Quartz
# drifts by 0.0001, the clock of a virtual machine under load by less than 0.005.
DRIFT = 0.01
# The part of a lease for which a hold is valid, counted from before the request was sent.
VALID_FRACTION = 1.0 - DRIFT
NEVER = float("-inf")
HISTOGRAM_BUCKETS = 40
MOST_BITS = 64  # of a duration in µs: half a million years
SLACK = 0.001


class State(enum.Enum):
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"
    DETACHED = "detached"


# Read many times in every cycle: a module's global is found much faster than an enum's member.
HELD, RELEASED, LOST, DETACHED = State


class Alarm(NamedTuple):
    """A hold's ``warn_after``: when to warn, after how many seconds, the owner's stack."""

    at: float
    after: float
    stack: Callable[[], str]


class Held:
    """A granted claim, its count of re-entries, and until when it is valid.

    ``deadline`` counts from before the request that acquired or renewed the hold was sent, never
    from the reply: a slow reply must not lengthen validity. ``confirmed`` is when that request was
    sent, ``uncertain_since`` when the store last failed to confirm the hold.
    """

    __slots__ = (
        "acquired_at",
        "acquired_event",
        "alarm",
        "amending",
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
        # How many of the entries are a writer's (of a read-write lock).
        self.writes = 1 if claim[5] == ALL_SLOTS else 0
        self.state = HELD
        self.cause = ""
        self.unknown = False  # the release was sent and never answered
        self.foreign = False  # it belongs to the parent process, and this is a forked child
        self.acquired_at = now
        self.renews = renews
        self.ends_by = ends_by
        self.uncertain_since = NEVER
        # How many requests of the owner that change the lease are under way; rule 8 of the keeper.
        self.amending = 0
        # `extend_validity`, called right after, sets these four.
        self.confirmed: float
        self.deadline: float
        self.due: float
        self.early: float
        self.callbacks: list[Callable[[], None]] | None = None
        # Called before the callbacks; stops the block that the owner has entered.
        self.stop_body: Callable[[], None] | None = None
        self.alarm: Alarm | None = None
        self.acquired_event: Acquired | None = None  # emitted; the event of the end is still due
        self.lasted: float  # set at the end

    def extend_validity(self, sent: float, lease: float) -> None:
        """Count validity from ``sent``, when the request that acquired or renewed the hold left.

        The next renewal is due after a third of the lease, and up to a tenth of that earlier if
        the keeper is sending others anyway. A hold that is not to be renewed is nevertheless
        confirmed until its end if the store granted a shorter lease than was asked for."""
        self.confirmed = sent
        ends_by = self.ends_by
        deadline = sent + lease * VALID_FRACTION
        self.deadline = deadline if deadline < ends_by else ends_by
        if (self.renews or lease < self.claim.lease) and sent + lease < ends_by - SLACK:
            self.due = sent + lease / 3
            self.early = sent + lease * 0.3
        else:
            self.due = self.early = self.deadline

    def extend_validity_from_wakeup(self, sent: float, now: float, first_lease: float) -> None:
        """Count validity of a hold granted by a wake-up. Its short first lease must be extended
        soon, unless the hold is released before that, which is common and then costs nothing."""
        self.extend_validity(sent, first_lease)
        self.due = self.early = now + max((self.deadline - now) / 3, 0.0)

    def is_certain(self, now: float) -> bool:
        """True if the state of the hold is known, be it held or ended. A confirmation that was
        requested before the hold became uncertain says nothing about now. A hold that expired by
        our own clock is certain again."""
        if self.unknown:
            return False
        return (
            self.uncertain_since <= self.confirmed or self.state is not HELD or now >= self.deadline
        )

    def expiry_reason(self) -> str:
        """The reason why the hold has expired by our own clock."""
        if not self.renews and self.deadline > self.ends_by - self.claim.lease / 10:
            return f"its lease of {self.claim.lease:g} s is over and it is not renewed"
        if self.deadline >= self.ends_by - self.claim.lease * DRIFT - SLACK:
            return "its max_hold is over"
        return (
            f"its lease of {self.claim.lease:g} s ran out before a renewal succeeded "
            "(the store unreachable, or this process or its keeper paused)"
        )

    def loss(self) -> HoldLost:
        """The error to raise for this lost hold."""
        return HoldLost(
            f"the hold on {shown(self.claim.name)} with fence {self.fence} is lost: {self.cause}. "
            "Another owner may hold it now: stop, and let the resource refuse this fence",
            name=bare(self.claim.name),
            fence=self.fence,
        )


class Waiting:
    """A claim that waits in the queue.

    ``last`` describes the newest request that was answered "still waiting": when it was sent, and
    the last fence that the store had issued by then. A grant with a higher fence was made after
    that request, so validity may count from it. A wake-up with a lower fence is a late message of a
    grant that has ended, and is ignored. ``delivered`` is the latest wake-up: the time from which
    validity counts (None: from ``last``) and the grant, if it carries one.
    """

    __slots__ = ("claim", "delivered", "due", "early", "last", "signal")
    fence: ClassVar[int] = 0
    ends_by: ClassVar[float] = float("inf")
    deadline: ClassVar[float] = float("inf")

    def __init__(self, claim: Claim, signal: Signal) -> None:
        self.claim = claim
        self.signal = signal
        self.last = (float("-inf"), 0)
        self.due = self.early = float("inf")
        self.delivered: tuple[float | None, Granted | None] | None = None

    def still(self, sent: float, now: float, retry_after: float, fence: int) -> None:
        """Record the answer "still waiting" to a request that left at ``sent``."""
        self.last = (sent, fence)
        # With a short lease the first lease is short too: refresh often enough that a grant that
        # arrives by wake-up is still valid for a while.
        wait = min(retry_after, REFRESH, self.claim.lease / 3)
        self.due = now + wait
        # Up to half of that earlier if the keeper is sending others anyway: after two rounds all
        # waiters are refreshed together, whenever they arrived. This does not hold for a waiter
        # that is to ask when a lease expires.
        self.early = now + (wait / 2 if retry_after >= REFRESH else wait)

    def wake(self, grant: Granted | None) -> None:
        """Deliver a wake-up, from any thread. One without a grant never replaces a grant."""
        if grant is not None or self.delivered is None:
            self.delivered = (None, grant)
        self.signal.set()

    def granted(self, sent: float, grant: Granted) -> None:
        """Deliver the grant that answered the keeper's refresh, which left at ``sent``."""
        self.delivered = (sent, grant)
        self.signal.set()


class Ledger:
    """A client's holds and waiters, by claim id and, for re-entry, by (name, owner)."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.mutex = runtime.mutex()
        self.listeners: Listeners | None = None
        self.closed = False
        self.by_owner: dict[tuple[str, object], Held] = {}
        self.kept: dict[str, Held] = {}
        self.waiting: dict[str, Waiting] = {}
        self.asking: set[str] = set()  # ids of claims whose acquisition is under way
        # Claims to withdraw because their `leave` was not answered, and until when to try.
        self.withdrawals: dict[str, tuple[Claim, float]] = {}
        self.reentered = self.contended = self.timed_out = 0
        self.lost = self.renewals = self.renew_errors = 0
        # Histograms by bit length of the duration in µs: before a hold was acquired, and of holds.
        self.wait_time = [0] * MOST_BITS
        self.hold_time = [0] * MOST_BITS

    @property
    def acquired(self) -> int:
        """The number of holds acquired so far."""
        return sum(self.wait_time)

    @property
    def released(self) -> int:
        """The number of holds that have ended and were not lost."""
        return sum(self.hold_time) - self.lost

    def end(self, held: Held, state: State, now: float, cause: str = "") -> None:
        """End a HELD hold, so that the keeper stops renewing it. Under the mutex. If this is
        interrupted before the state has changed, it can be repeated."""
        self.kept.pop(held.claim[1], None)
        if state is LOST:
            held.cause = cause
        elif self.by_owner.get(key := (held.claim[0], held.owner)) is held:
            del self.by_owner[key]
        held.lasted = lasted = now - held.acquired_at
        # After all that others rely on: it is read without the mutex, and a loss needs its cause.
        held.state = state
        self.lost += state is LOST
        self.hold_time[int(lasted * 1e6).bit_length()] += 1

    def lost_before_release(self, held: Held, cause: str) -> HoldLost:
        """Count as lost a hold that the store did not know any more when it was released, and
        return the error to raise. Not under the mutex."""
        with self.mutex:
            held.cause = cause
            self.lost += 1
        return held.loss()

    def forget(self, held: Held) -> None:
        """Remove a hold whose owner has unwound. Under the mutex."""
        key = (held.claim[0], held.owner)
        if self.by_owner.get(key) is held:
            del self.by_owner[key]

    def lose(self, held: Held, cause: str) -> None:
        """Mark the hold as lost and notify, once. Not under the mutex: that runs user code."""
        with self.mutex:
            if held.state is not HELD:
                return
            self.end(held, LOST, self.runtime.now(), cause)
        self.notify_end(held)

    def notify_end(self, held: Held) -> None:
        """Run the callbacks of an ended hold and emit the event, once. Not under the mutex."""
        self.run_callbacks(held)
        self.emit_end(held)

    def run_callbacks(self, held: Held) -> None:
        """Stop the owner's block, and run the callbacks registered for this hold."""
        stop = held.stop_body  # read once: its task may reset it at any time
        if stop is not None:
            stop()
        if held.callbacks:
            with self.mutex:
                callbacks, held.callbacks = held.callbacks or [], None
            for callback in callbacks:
                callback()

    def emit_end(self, held: Held) -> None:
        """Emit the event of the hold's end to the client's listeners."""
        began, held.acquired_event = held.acquired_event, None
        if began is not None:
            assert self.listeners is not None, "the listeners that got the Acquired event"
            self.listeners.ended(held, began)

    def on_end(self, held: Held, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the hold has ended for any reason; at once if it has."""
        with self.mutex:
            if held.state is HELD:
                if held.callbacks is None:
                    held.callbacks = []
                held.callbacks.append(callback)
                return
        callback()

    def off_end(self, held: Held, callback: Callable[[], None]) -> None:
        """Unregister a callback of `on_end`."""
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
    """The published buckets. The last one also counts everything longer."""
    last = HISTOGRAM_BUCKETS - 1
    return (*counts[:last], sum(counts[last:]))

"""A client's record of its own nodes, and of the parents it has used.

The sync API, the async API and the keeper share one session, and so they share one registry. Any
thread may change it, one field at a time. An entry belongs to the caller that claims; the session's
thread only reports the outcome of a create, or that a watch fired.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from lockfast.stores.wakeups import Wakeups
from lockfast.stores.zookeeper.nodes import NEW, SESSION
from lockfast.stores.zookeeper.requests import Delete, Refusal, Request, Stat, WatchCallback

log = logging.getLogger("lockfast")

NEVER = float("inf")
# How long an unused parent is kept: the next claim on it needs one write less. A client that dies
# earlier leaves it to the server, which removes empty containers after a minute or two.
LINGER = 2.0
MAX_PARENTS = 2000
MAX_CONTENDED = 1000
# A hold is valid for this part of the session's time-out after its last request. A follower may die
# before it reports that to the leader, up to half a tick later; a time-out is two ticks at least.
VALID_FRACTION = 0.75


class Session(Protocol):
    """The part of `session.Session` that the registry needs."""

    timeout: float
    where: str

    @property
    def id(self) -> int: ...

    @property
    def connected(self) -> bool: ...

    def server_time(self, within: float = NEVER) -> float | None: ...

    def unwatch(self, paths: Iterable[str], wake: WatchCallback) -> None: ...


class QueueEntry:
    """The node of one claim, as far as the client knows: a waiter's or a holder's."""

    __slots__ = (
        "armed", "claim_id", "confirmed", "fence", "foreign", "granted", "in_flight", "lifetime",
        "marked", "name", "owner", "parent", "recheck_at", "since", "size_checked", "state",
        "uncertain", "wakeups", "watched",
    )  # fmt: skip

    def __init__(self, claim_id: str, parent: str, wakeups: Wakeups) -> None:
        self.claim_id = claim_id
        self.parent = parent
        self.wakeups = wakeups
        self.in_flight = False  # the create request was sent and is not answered
        self.uncertain = False  # a create or a change may have happened: its answer was lost
        self.confirmed = -NEVER  # when the last request that confirmed the hold was sent
        self.lifetime = SESSION
        self.foreign = False  # on a path that kazoo or Curator uses too
        self.watched: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Record that the claim has no node."""
        self.name = ""
        self.fence = self.owner = 0
        self.since = 0.0
        self.state = NEW
        self.size_checked = False  # the claim has the kind and size of the other nodes
        self.granted = False
        self.marked = False  # the data of its node records that it holds
        self.armed = False  # a watch will wake the waiter when it should ask again
        self.recheck_at = NEVER  # ask again at this time all the same: a lease ahead may have ended

    @property
    def path(self) -> str:
        return f"{self.parent}/{self.name}"

    def arm(self, path: str) -> WatchCallback:
        """Arm the entry for a watch on this path; the callback to pass with the request."""
        self.armed = True
        self.watched.add(path)
        return self.wake

    def sent(self) -> None:
        self.in_flight = True

    def created(self, answer: tuple[str, Stat] | Refusal | None) -> None:
        """Record the outcome of a create, on the session's thread; None: unknown."""
        if isinstance(answer, tuple):
            path, stat = answer
            self.since = stat.ctime / 1e3
            self.adopt(path.rpartition("/")[2], stat.czxid, stat.ephemeralOwner)
        elif answer is None:
            self.uncertain = True
        self.in_flight = False

    def adopt(self, name: str, fence: int, owner: int) -> None:
        self.name, self.fence, self.owner = name, fence, owner
        self.uncertain = False

    def wake(self, event: object) -> None:
        """Wake the waiter, on the session's thread. Only if armed, since `Wakeups` would keep a
        wake-up without a waiter."""
        if self.armed:
            self.armed = False
            self.wakeups.deliver(self.claim_id, None)


class Registry:
    """The queue entries, parents and wake-ups of one client."""

    def __init__(self, session: Session, root: str, clock: Callable[[], float]) -> None:
        self.session = session
        self.root = root
        self.clock = clock
        self.wakeups = Wakeups()
        self.entries: dict[str, QueueEntry] = {}
        self._parents: dict[str, float] = {}
        self._contended: dict[str, None] = {}
        self._uncertain_listeners: list[weakref.WeakMethod[Callable[[], None]]] = []

    # ---- queue entries -----------------------------------------------------------------------

    def entry(self, claim_id: str, parent: str) -> QueueEntry:
        """The claim's entry, or a new one. A node of an ended session is forgotten."""
        entry = self.entries.get(claim_id)
        if entry is None:
            entry = self.entries[claim_id] = QueueEntry(claim_id, parent, self.wakeups)
        elif entry.name and not self.is_ours(entry):
            entry.reset()
        return entry

    def is_ours(self, entry: QueueEntry) -> bool:
        """Was the node made in the current session, or in none (0), so that no session ends it?"""
        return entry.owner in (self.session.id, 0)

    def discard(self, entry: QueueEntry) -> None:
        """Remove the entry of a node that is gone for good."""
        self.entries.pop(entry.claim_id, None)
        entry.armed = False
        self.session.unwatch(entry.watched, entry.wake)
        self.use_parent(entry.parent)

    def valid_for(self, lease: float) -> float:
        """The seconds for which a hold is valid that was requested just now."""
        return min(lease, self.session.timeout * VALID_FRACTION)

    # ---- events of the session, on its thread ------------------------------------------------

    def on_uncertain(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, while its object lives, when all holds may be lost at once."""
        self._uncertain_listeners.append(weakref.WeakMethod(listener))

    def suspended(self) -> None:
        """Report that the connection is lost, and the state of the session unknown."""
        if held := sum(entry.granted for entry in list(self.entries.values())):
            log.warning(
                "lockfast: the connection to %s is lost. Whether %d holds still exist is unknown; "
                "each stays valid for %.1f s after it was last confirmed",
                self.session.where,
                held,
                self.session.timeout * VALID_FRACTION,
            )
        self._emit_uncertain()

    def lost(self) -> None:
        """Report that the session has ended: no entry of it is ours any more."""
        for entry in list(self.entries.values()):
            if entry.owner:
                entry.owner = -1  # the id of no session, past or future
        self._emit_uncertain()
        self.wakeups.wake_all()

    def _emit_uncertain(self) -> None:
        for weak in list(self._uncertain_listeners):
            listener = weak()
            if listener is None:
                self._uncertain_listeners.remove(weak)
            else:
                listener()

    # ---- parents -----------------------------------------------------------------------------

    def knows_parent(self, parent: str) -> bool:
        """Did the parent exist a moment ago? Then a claim need not create it."""
        return parent in self._parents

    def use_parent(self, parent: str) -> None:
        self._parents.pop(parent, None)  # so that the dict is in the order of last use
        self._parents[parent] = self.clock()

    def forget_parent(self, parent: str) -> None:
        self._parents.pop(parent, None)

    def next_sweep(self) -> float:
        """Seconds until there is something to sweep."""
        first = next(iter(self._parents.values()), NEVER)
        return first + LINGER - self.clock()

    def sweep(self, everything: bool = False) -> list[Request]:
        """Requests that delete unused parents. One that others use is not empty, and stays."""
        now, most = self.clock(), len(self._parents) - MAX_PARENTS
        swept: list[Request] = []
        for parent, used in list(self._parents.items()):
            if used + LINGER > now and not everything and len(swept) >= most:
                break
            if self._parents.pop(parent, None) is not None:
                swept.append(Delete(parent))
        return swept

    # ---- contended names ---------------------------------------------------------------------

    def is_contended(self, parent: str) -> bool:
        """Was the last claim on it refused?"""
        return parent in self._contended

    def mark_contended(self, parent: str, contended: bool = True) -> None:
        if not contended:
            self._contended.pop(parent, None)
        else:
            if len(self._contended) >= MAX_CONTENDED:
                self._contended.pop(next(iter(self._contended)), None)
            self._contended[parent] = None

    # ---- fork --------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        self.entries.clear()
        self._parents.clear()
        self._contended.clear()
        self.wakeups.clear()

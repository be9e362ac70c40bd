"""What one client knows of its own nodes, and of the parents that it has used.

The session is one for both colours and the keeper, and so is this. It changes on any thread, a
field at a time: a place belongs to whoever asks for its claim, and the session's thread only tells
it what became of its node, or that a bell rang.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from lockfast.stores.wakeups import Wakeups
from lockfast.stores.zookeeper.nodes import NEW, SESSION
from lockfast.stores.zookeeper.requests import Delete, No, Request, Ring, Stat

log = logging.getLogger("lockfast")

NEVER = float("inf")
# How long a parent that we use no more is kept: the next claim on it needs one write less. Who dies
# before leaves it to the server, which removes containers after a minute or two.
LINGER = 2.0
MOST_PARENTS = 2000
MOST_CROWDED = 1000
# The part of a session's time-out that may be believed in after the server heard of us. A follower
# tells the leader of it up to half a tick later, and may die before; a time-out is two ticks at
# least.
BELIEVABLE = 0.75


class Session(Protocol):
    """What the desk needs of it."""

    timeout: float
    where: str

    @property
    def id(self) -> int: ...

    @property
    def connected(self) -> bool: ...

    def server_time(self, within: float = NEVER) -> float | None: ...

    def unwatch(self, paths: Iterable[str], wake: Ring) -> None: ...


class Place:
    """One claim's node, as far as we know."""

    __slots__ = (
        "armed",
        "claim_id",
        "confirmed",
        "fence",
        "foreign",
        "granted",
        "life",
        "marked",
        "name",
        "owner",
        "parent",
        "recheck_at",
        "settled",
        "since",
        "state",
        "under_way",
        "unsure",
        "wakeups",
        "watched",
    )

    def __init__(self, claim_id: str, parent: str, wakeups: Wakeups) -> None:
        self.claim_id = claim_id
        self.parent = parent
        self.wakeups = wakeups
        self.under_way = False  # its node is being made
        self.unsure = False  # its node was made, or changed, or not: the answer was lost
        self.confirmed = -NEVER  # when we asked for it last, and got it
        self.life = SESSION
        self.foreign = False  # on a path that kazoo or Curator uses too
        self.watched: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """It has no node."""
        self.name = ""
        self.fence = self.owner = 0
        self.since = 0.0
        self.state = NEW
        self.settled = False  # it fits to the others' kind and size
        self.granted = False
        self.marked = False  # its node says that it holds
        self.armed = False  # we are rung when it is worth asking again
        self.recheck_at = NEVER  # but look again at that time: what is in the way may have ended

    @property
    def path(self) -> str:
        return f"{self.parent}/{self.name}"

    def watching(self, path: str) -> Ring:
        """Ring us when something happens there."""
        self.armed = True
        self.watched.add(path)
        return self.wake

    def sent(self) -> None:
        self.under_way = True

    def made(self, answer: tuple[str, Stat] | No | None) -> None:
        """On the session's thread: its node was made, refused, or nobody knows."""
        if isinstance(answer, tuple):
            path, stat = answer
            self.since = stat.ctime / 1e3
            self.adopt(path.rpartition("/")[2], stat.czxid, stat.ephemeralOwner)
        elif answer is None:
            self.unsure = True
        self.under_way = False

    def adopt(self, name: str, fence: int, owner: int) -> None:
        self.name, self.fence, self.owner = name, fence, owner
        self.unsure = False

    def wake(self, event: object) -> None:
        """On the session's thread: ask again. Not when nobody waits: bells are kept a while."""
        if self.armed:
            self.armed = False
            self.wakeups.wake(self.claim_id, None)


class Desk:
    def __init__(self, session: Session, root: str, clock: Callable[[], float]) -> None:
        self.session = session
        self.root = root
        self.clock = clock
        self.wakeups = Wakeups()
        self.waiters: dict[str, Place] = {}
        self._parents: dict[str, float] = {}
        self._crowded: dict[str, None] = {}
        self._tell: list[weakref.WeakMethod[Callable[[], None]]] = []

    # ---- places ------------------------------------------------------------------------------

    def waiter(self, claim_id: str, parent: str) -> Place:
        """The claim's, made if there is none. A node of another session is not ours any more: that
        session has ended, and its nodes with it."""
        waiter = self.waiters.get(claim_id)
        if waiter is None:
            waiter = self.waiters[claim_id] = Place(claim_id, parent, self.wakeups)
        elif waiter.name and not self.is_ours(waiter):
            waiter.forget()
        return waiter

    def is_ours(self, waiter: Place) -> bool:
        """Made in the session that lives; or in none (0), which no session's end takes away."""
        return waiter.owner in (self.session.id, 0)

    def drop(self, waiter: Place) -> None:
        """Its node is gone, for good."""
        self.waiters.pop(waiter.claim_id, None)
        waiter.armed = False
        self.session.unwatch(waiter.watched, waiter.wake)
        self.use(waiter.parent)

    def grantable(self, lease: float) -> float:
        """For how long something may be believed in that was asked for just now."""
        return min(lease, self.session.timeout * BELIEVABLE)

    # ---- what the session tells, on its thread -----------------------------------------------

    def on_uncertain(self, tell: Callable[[], None]) -> None:
        """Call it, as long as its object lives, when all that is held may be lost at once."""
        self._tell.append(weakref.WeakMethod(tell))

    def suspended(self) -> None:
        held = sum(waiter.granted for waiter in list(self.waiters.values()))
        if held:
            log.warning(
                "lockfast: the connection to %s is lost. Whether %d are still held is unknown; "
                "they are believed in for %.1f s after they were last confirmed",
                self.session.where,
                held,
                self.session.timeout * BELIEVABLE,
            )
        self._tell_doubt()

    def lost(self) -> None:
        for waiter in list(self.waiters.values()):
            if waiter.owner:
                waiter.owner = -1  # of no session that will ever be
        self._tell_doubt()
        self.wakeups.wake_all()

    def _tell_doubt(self) -> None:
        for weak in list(self._tell):
            tell = weak()
            if tell is None:
                self._tell.remove(weak)
            else:
                tell()

    # ---- parents -----------------------------------------------------------------------------

    def knows(self, parent: str) -> bool:
        """Was it there a moment ago? Then it may be used without making it."""
        return parent in self._parents

    def use(self, parent: str) -> None:
        self._parents.pop(parent, None)  # so that they stand in the order of use
        self._parents[parent] = self.clock()

    def misses(self, parent: str) -> None:
        self._parents.pop(parent, None)

    def next_sweep(self) -> float:
        """In how many seconds there will be something to sweep."""
        first = next(iter(self._parents.values()), NEVER)
        return first + LINGER - self.clock()

    def sweep(self, everything: bool = False) -> list[Request]:
        """Remove parents that we use no more. One that others use is not empty, and stays."""
        now, most = self.clock(), len(self._parents) - MOST_PARENTS
        swept: list[Request] = []
        for parent, used in list(self._parents.items()):
            if used + LINGER > now and not everything and len(swept) >= most:
                break
            if self._parents.pop(parent, None) is not None:
                swept.append(Delete(parent))
        return swept

    # ---- crowds ------------------------------------------------------------------------------

    def is_crowded(self, parent: str) -> bool:
        """Did we ask in vain there?"""
        return parent in self._crowded

    def crowds(self, parent: str, crowded: bool = True) -> None:
        if not crowded:
            self._crowded.pop(parent, None)
        else:
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded.pop(next(iter(self._crowded)), None)
            self._crowded[parent] = None

    # ---- fork --------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        self.waiters.clear()
        self._parents.clear()
        self._crowded.clear()
        self.wakeups.clear()

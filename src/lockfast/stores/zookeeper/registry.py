"""A client's record of its own nodes, and of the parents it has used.

The sync API, the async API and the keeper share one session, and so they share one registry. Any
thread may change it, one field at a time. An entry belongs to the caller that claims; the session's
thread only reports the outcome of a create, or that a watch fired.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Claim
from lockfast.stores.steps import Steps
from lockfast.stores.wakeups import Wakeups
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.nodes import (
    NEW,
    SESSION,
    Foreign,
    Listed,
    Node,
    SeenNode,
    contenders,
    escaped,
    in_order,
    read,
)

if TYPE_CHECKING:
    from lockfast.stores.zookeeper.session import Session

log = logging.getLogger("lockfast")

NEVER = float("inf")
# How long an unused parent is kept: the next claim on it needs one write less. A client that dies
# earlier leaves it to the server, which removes empty containers after a minute or two.
LINGER = 2.0
MAX_PARENTS = 2000
BATCH = 500  # requests at once: more would delay other callers of this client
MAX_CONTENDED = 1000
# A hold is valid for this part of the session's time-out after its last request. A follower may die
# before it reports that to the leader, up to half a tick later; a time-out is two ticks at least.
VALID_FRACTION = 0.75


class QueueEntry:
    """The node of one claim, as far as the client knows: a waiter's or a holder's."""

    __slots__ = (
        "armed", "attached_by", "claim_id", "confirmed", "fence", "foreign", "granted", "in_flight",
        "lifetime", "marked", "name", "owner", "parent", "recheck_at", "since", "size",
        "size_checked", "state", "uncertain", "version", "wakeups", "watched",
    )  # fmt: skip

    def __init__(self, claim_id: str, parent: str, foreign: bool, wakeups: Wakeups) -> None:
        self.claim_id = claim_id
        self.parent = parent
        self.foreign = foreign  # on a path that kazoo or Curator uses too
        self.wakeups = wakeups
        self.in_flight = False  # the create request was sent and is not answered
        self.uncertain = False  # a create or a change may have happened: its answer was lost
        self.confirmed = -NEVER  # when the last request that confirmed the hold was sent
        self.lifetime = SESSION
        self.attached_by = ""  # the caller that attached the hold, as the claim describes it
        self.watched: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Record that the claim has no node."""
        self.name = ""
        self.fence = self.owner = 0
        self.since = 0.0
        self.state = NEW
        self.size_checked = False  # the claim has the kind and size of the other nodes
        self.size = self.version = 0  # of the name and of its parent's data, as last listed
        self.granted = False
        self.marked = False  # the data of its node records that it holds
        self.armed = False  # a watch will wake the waiter when it should ask again
        self.recheck_at = NEVER  # ask again at this time all the same: a lease ahead may have ended

    @property
    def path(self) -> str:
        return f"{self.parent}/{self.name}"

    def arm(self, path: str) -> zk.WatchCallback:
        """Arm the entry for a watch on this path; the callback to pass with the request."""
        self.armed = True
        self.watched.add(path)
        return self.wake

    def sent(self) -> None:
        self.in_flight = True

    def created(self, answer: tuple[str, zk.Stat] | zk.Refusal | None) -> None:
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
        session.report_to(self)

    def parent(self, name: str, layout: str = "") -> str:
        """The path of a name. In kazoo's layout it is the name without our namespace."""
        if not layout:
            return f"{self.root}/{escaped(name)}"
        name = name.partition(":")[2].strip("/")
        if not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ConfigurationError(
                f"{name!r} is not a path: use a name such as 'app/lock', as with kazoo"
            )
        return f"{self.root.rpartition('/')[0]}/{name}"

    # ---- queue entries -----------------------------------------------------------------------

    def entry(self, claim: Claim) -> QueueEntry:
        """The claim's entry, or a new one. A node of an ended session is forgotten."""
        entry = self.entries.get(claim.id)
        if entry is None:
            parent = self.parent(claim.name, claim.layout)
            entry = QueueEntry(claim.id, parent, bool(claim.layout), self.wakeups)
            self.entries[claim.id] = entry
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
        if not entry.foreign:  # kazoo ensures its path once, and must find it later
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
        """Seconds until there is something to sweep. Without a connection, nothing can be swept: a
        sweep is tried now and then."""
        first = next(iter(self._parents.values()), NEVER)
        return max(first + LINGER - self.clock(), 0.0 if self.session.connected else LINGER)

    def sweep(self, everything: bool = False) -> None:
        """Delete unused parents, without waiting for the answers. One that others use is not empty,
        and stays. The server removes those that we forget, for they are containers."""
        if not self.session.connected:
            return
        now, most = self.clock(), len(self._parents) - MAX_PARENTS
        swept: list[zk.Request] = []
        for parent, used in list(self._parents.items()):
            if used + LINGER > now and not everything and len(swept) >= most:
                break
            if self._parents.pop(parent, None) is not None:
                swept.append(zk.Delete(parent))
        if swept:
            self.session.send(swept, _nobody_waits)

    # ---- nodes, read by steps of a verb ---------------------------------------------------------

    def list_nodes(self, parent: str, foreign: bool = False) -> Steps[Listed]:
        (answer,) = yield [zk.Children(parent)]
        return (yield from self.parse_list(parent, answer, foreign))

    def parse_list(self, parent: str, answer: Any, foreign: bool = False) -> Steps[Listed]:
        """Parse the answer to `Children`. The size is that of the first node, unless `resize`
        changed it while that node, or any other that still exists, existed (see `holds`)."""
        if answer is zk.Refusal.NO_NODE:
            return Listed([], 0)
        names, stat = answer
        if foreign:
            return Listed(contenders(names, parent), 1)
        try:
            nodes = in_order(names, parent)
        except Foreign as what:
            raise self._foreign_error(parent, what) from None
        size = nodes[0].slots if nodes else 0
        if nodes and stat.version > 0:
            checks = [zk.Exists(node.path) for node in nodes]
            got, *stats = yield [zk.Get(parent), *checks]
            if got is not zk.Refusal.NO_NODE:
                text, resized = got
                if any(stat is not None and stat.czxid < resized.mzxid for stat in stats):
                    size = int(text)
        return Listed(nodes, size, stat.version)

    def read_nodes(self, nodes: Iterable[Node], foreign: bool = False) -> Steps[list[SeenNode]]:
        """Read the data of the nodes; those that are gone meanwhile are left out."""
        asked, seen = list(nodes), []
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            answers = yield [zk.Get(node.path) for node in some]
            seen += self.decode(some, answers, foreign)
        return seen

    def decode(
        self, nodes: Sequence[Node], answers: Sequence[Any], foreign: bool = False
    ) -> list[SeenNode]:
        try:
            return [
                SeenNode(node, read(answer[0], foreign), answer[1])
                for node, answer in zip(nodes, answers, strict=True)
                if answer is not zk.Refusal.NO_NODE
            ]
        except Foreign as what:
            raise self._foreign_error(nodes[0].parent, what) from None

    def _foreign_error(self, parent: str, what: Foreign) -> BackendError:
        return BackendError(
            f"{self.session.where} has a node under {parent} that lockfast did not write: "
            f"{str(what)!r}. It was left unchanged: use another name or chroot",
            transient=False,
        )

    def time_left(self, seen: SeenNode) -> float:
        """Seconds until its lease ends unless renewed; infinite for a node that only its session
        ends. By the server's clock as of our last write, carried forward by our own clock."""
        now = self.session.server_time()
        return NEVER if seen.node.lifetime == SESSION or now is None else seen.ends - now

    def delete_expired(self, nodes: Iterable[SeenNode]) -> Steps[bool]:
        """Delete nodes whose lease is over, unless renewed meanwhile; True if there were any."""
        over = [seen for seen in nodes if self.time_left(seen) <= 0]
        yield [zk.Delete(one.node.path, one.stat.version) for one in over]
        return bool(over)

    def server_time(self, within: float) -> Steps[float]:
        """The server's wall clock, at most ``within`` seconds old: answers to writes carry it."""
        now = self.session.server_time(within)
        if now is None:
            touch = zk.Put(self.root, b"")
            (answer,) = yield [touch]
            if answer is zk.Refusal.NO_NODE:
                yield [*make_path(self.root), touch]
            now = self.session.server_time()
        assert now is not None, "the answer to a write carries the server's time"
        return now

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


def _nobody_waits() -> None:
    """The answers of a sweep are of no interest."""


def make_path(path: str) -> list[zk.Request]:
    """Requests that create a node and the nodes above it, unless they exist."""
    parts = path.strip("/").split("/")
    paths = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts)) if parts[0]]
    return [zk.Create(path, b"", zk.Kind.PERSISTENT) for path in paths]

"""Base class of both clients: everything that neither blocks nor awaits.

``@client.locked`` on an ``async def`` needs the async counterpart of a sync client, and on a
``def`` vice versa. Both find the other's class in `APIS`.
"""

from __future__ import annotations

import atexit
import copy
import logging
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from lockfast import clock, forks
from lockfast.api.hold import checked_on_lost
from lockfast.core.ledger import bare
from lockfast.core.listeners import Listener, Listeners
from lockfast.core.locks import Core
from lockfast.core.ports import Runtime, Store
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, Unsupported
from lockfast.inputs import (
    Seconds,
    checked_label,
    checked_lease,
    checked_name,
    checked_namespace,
    checked_options,
    checked_switch,
    checked_timeout,
)
from lockfast.model import Capabilities, Snapshot, Statistics
from lockfast.runtime.threads import BlockingRuntime, run
from lockfast.stores import Endpoint

if TYPE_CHECKING:
    from lockfast.api.primitives import Named

log = logging.getLogger("lockfast")
L = TypeVar("L", bound=Listener)
T = TypeVar("T")
C = TypeVar("C", bound="BaseClient")
N = TypeVar("N", bound="Named[Any]")

# 30 s, renewed every 10 s: long enough to outlast a garbage collection, a deploy or a failover,
# short enough to wait for after a crash. Redisson uses the same numbers.
DEFAULT_LEASE = 30.0
DEFAULT_NAMESPACE = "default"
EXIT_LIMIT = 0.8  # seconds that releases at exit may take
MAX_PLAIN_LOCKS = 1000  # lock objects with default options, kept for reuse

CONNECT_KEYWORDS = ("lease", "namespace", "warn_after", "replicas")


class RedisClient(Protocol):
    """Client of redis-py: of one server or of a cluster, blocking or for asyncio."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class KazooClient(Protocol):
    """Client of kazoo."""

    def add_listener(self, listener: Any) -> Any: ...


class Engine(Protocol):
    """Engine of SQLAlchemy, blocking or for asyncio."""

    @property
    def dialect(self) -> Any: ...


# The stores that `connect` accepts. A function makes connections to a database.
Where = (
    str | RedisClient | Sequence[RedisClient] | KazooClient | Engine | Callable[[], object] | None
)

APIS: dict[str, type[BaseClient]] = {}
_cores: weakref.WeakSet[Core] = weakref.WeakSet()


class BaseClient:
    """A client of one store: creates locks and tracks the holds of this process."""

    _api: str
    _on_lost_choices: tuple[str, ...]  # values of ``on_lost`` besides None and functions
    _open_stores: Callable[[Endpoint], tuple[Runtime, Store, Store]]

    def __init__(
        self,
        endpoint: Endpoint,
        runtime: Runtime,
        store: Store,
        keeper_store: Store,
        *,
        lease: Seconds,
        namespace: str,
        warn_after: Seconds | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._lease = checked_lease(lease)
        if self._lease == DEFAULT_LEASE:  # the default, not a choice of the user
            self._lease = min(self._lease, store.capabilities.longest_lease)
        self._store = store
        self._keeper_store = keeper_store
        self._checked_longest(self._lease)
        self._warn_after = None
        if warn_after is not None:
            self._warn_after = checked_lease(warn_after, what="warn_after")
        self._namespace = checked_namespace(namespace)
        self._core = Core(runtime, store, new_secret, keeper_runtime(runtime), keeper_store)
        self._counterparts: dict[str, BaseClient] = {}
        self._listeners: Listeners | None = None
        self._plain_locks: dict[str, Any] = {}
        _cores.add(self._core)
        forks.register(self._core)
        weakref.finalize(self._core, _shut, store, keeper_store).atexit = False

    @classmethod
    def _on(
        cls,
        endpoint: Endpoint,
        *,
        lease: Seconds,
        namespace: str,
        warn_after: Seconds | None = None,
    ) -> Self:
        """Return a client on a store that is already open."""
        runtime, store, keeper_store = cls._open_stores(endpoint)
        return cls(
            endpoint,
            runtime,
            store,
            keeper_store,
            lease=lease,
            namespace=namespace,
            warn_after=warn_after,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Features of this store: fairness, fences, how far a lock reaches, layouts. No I/O."""
        return self._store.capabilities

    def statistics(self) -> Statistics:
        """Counters of this client since it was created: holds, waits, losses, renewals. No I/O."""
        return self._core.ledger.statistics()

    def on_event(self, listener: L) -> L:
        """Call ``listener`` with each event of `lockfast.events` from now on; return ``listener``.

        The listener runs in the thread or task where the event happens, so it must not block. Its
        exceptions are logged once and do not reach the lock's user. Register listeners before the
        first acquire: holds that already exist emit no events. Can be used as a decorator.
        """
        if not callable(listener):
            raise ConfigurationError(
                f"on_event({listener!r}): the listener must be a function that takes an event"
            )
        if self._listeners is None:
            self._listeners = Listeners(self.capabilities.store)
        self._listeners.add(listener)
        for api in (self, *self._counterparts.values()):
            api._core.listen(self._listeners)
        return listener

    def _counterpart(self, api: str) -> BaseClient:
        """Return the client of the given API on the same store: this one, or its counterpart."""
        if api == self._api:
            return self
        if api not in self._counterparts:
            counterpart = APIS[api]._on(
                self._endpoint,
                lease=self._lease,
                namespace=self._namespace,
                warn_after=self._warn_after,
            )
            if self._listeners is not None:
                counterpart._core.listen(self._listeners)
            self._counterparts[api] = counterpart
        return self._counterparts[api]

    def _disconnect(self) -> None:
        """Disconnect, also the counterparts, which functions decorated for the other API use."""
        for counterpart in self._counterparts.values():
            run(counterpart._core.close(counterpart._keeper_store, EXIT_LIMIT, exiting=True))
            _shut(counterpart._store, counterpart._keeper_store)
        _shut(self._store, self._keeper_store)

    def __repr__(self) -> str:
        return f"<{self._api} lockfast client of {self._endpoint.url}>"

    def _full(self, name: str) -> str:
        return f"{self._namespace}:{checked_name(name)}"

    def _terms(self, name: str, **options: Any) -> Terms:
        """Check the options and return the terms."""
        return self._terms_of(name, checked_options("", options, options))

    def _chosen(
        self, call: str, name: str, options: Mapping[str, Any], kind: type
    ) -> tuple[Terms, float | None, Any]:
        """Check the options, which are of this kind; return the terms, timeout and ``on_lost``."""
        checked = checked_options(call, options, kind.__annotations__)
        on_lost = self._checked_on_lost(checked.get("on_lost"))
        return self._terms_of(name, checked), checked.get("timeout"), on_lost

    def _terms_of(self, name: str, checked: Mapping[str, Any]) -> Terms:
        lease, limit = checked.get("lease"), checked.get("max_hold")
        seconds = self._lease if lease is None else self._checked_longest(lease)
        return Terms(
            self._full(name),
            # The store need not keep the hold for longer than max_hold allows.
            seconds if limit is None else min(seconds, limit),
            checked.get("renew", lease is None),
            limit,
            checked.get("fair", True),
            owner=checked.get("owner"),
            label=checked.get("label", ""),
            layout=self._checked_layout(checked["layout"]) if "layout" in checked else "",
            warn_after=checked.get("warn_after", self._warn_after),
        )

    def _checked_on_lost(self, on_lost: object) -> Any:
        return checked_on_lost(on_lost, self._on_lost_choices)

    def _plain_lock(self, make: Callable[[Any, Terms], T], name: str) -> T:
        """Create the lock with default options of a name, or reuse it: any number of threads and
        tasks may share one lock object, and most calls pass only a name."""
        lock: T | None = self._plain_locks.get(name) if type(name) is str else None
        if lock is None:
            terms = Terms(self._full(name), self._lease, True, warn_after=self._warn_after)
            if len(self._plain_locks) >= MAX_PLAIN_LOCKS:
                self._plain_locks.clear()
            lock = self._plain_locks[name] = make(self, terms)
        return lock

    def _run_terms(self, name: str, at_most: float | None, label: str) -> Terms:
        """Return the terms of a `once_every` run, whose names have a namespace of their own: the
        function may want to take a lock of the same name."""
        lease = self._lease if at_most is None else min(self._lease, at_most)
        return Terms(
            f"{self._namespace}+once:{checked_name(name)}",
            lease,
            True,
            at_most,
            owner=object(),
            label=checked_label(label),
            template=name,
            warn_after=self._warn_after,
        )

    def _with_template(self, template: str, lock: N) -> N:
        """Return the lock with the template of its name, which events carry for the listeners."""
        if self._core.ledger.listeners is not None:
            lock = copy.copy(lock)  # the lock object may be shared
            lock._terms = lock._terms._replace(template=template)
        return lock

    def _transaction(
        self, name: str, connection: object, timeout: Seconds | None, advisory: bool
    ) -> Coroutine[Any, Any, int]:
        """Return the coroutine that takes the lock and returns its fence."""
        if not self.capabilities.transaction_locks:
            raise Unsupported(
                f"{self._endpoint.url} has no transactions that could hold a lock: "
                "transaction_lock() needs PostgreSQL, MariaDB or MySQL"
            )
        self._core.refuse_if_closed()
        return self._store.transaction(
            self._full(name),
            name,
            connection,
            checked_timeout(timeout),
            checked_switch("advisory", advisory),
        )

    def _checked_longest(self, lease: float) -> float:
        """Return the lease, or raise `Unsupported` if the store does not grant one that long."""
        longest = self._store.capabilities.longest_lease
        if lease > longest:
            raise Unsupported(
                f"lease={lease:g}: {self._store.capabilities.store} grants at most {longest:g} s "
                "at once; a hold is renewed, so it may last longer than its lease"
            )
        return lease

    def _checked_layout(self, layout: object) -> str:
        known = self._store.capabilities.layouts
        if not isinstance(layout, str) or layout not in known:
            offered = ", ".join(map(repr, known)) or "no other layout than its own"
            raise Unsupported(f"layout={layout!r}: {self._endpoint.url} has {offered}")
        return layout

    def _refuse_unless_offered(self, kind: str) -> None:
        """Raise `Unsupported` with the reason if this store does not offer such an object."""
        why = self._store.capabilities.refuses.get(kind)
        if why:
            raise Unsupported(why)

    def _without_namespace(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, name=bare(snapshot.name))

    def _attach_terms(self, terms: Terms, text: object) -> tuple[Terms, str, int]:
        """Parse the text of a detached hold into terms, claim id and fence."""
        parts = text.split(":") if isinstance(text, str) else []
        try:
            version, claim_id, fence, lease, slots, take = parts
            if version != "lf1":
                raise ValueError
            attached = Terms(
                terms.name,
                checked_lease(float(lease)),
                terms.renew,
                terms.max_hold,
                slots=int(slots),
                take=int(take),
                # Each hold of a semaphore has an owner of its own.
                owner=object() if terms.owner is None and int(slots) > 1 else terms.owner,
                label=terms.label,
                warn_after=terms.warn_after,
            )
            return attached, claim_id, int(fence)
        except ValueError:
            raise ConfigurationError(
                "attach() takes the unchanged text that hold.detach() returned"
            ) from None


class DefaultClient(Generic[C]):
    """Callable that returns the default client, connecting to ``$LOCKFAST_URL`` on the first call.

    A closed default client is replaced by a new one on the next call.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self.client: C | None = None
        self._connect = connect
        self._mutex = forks.ForkSafeMutex()

    def __call__(self) -> C:
        with self._mutex.lock:
            if self.client is None or self.client._core.closed:
                self.client = self._connect()
            return self.client


def new_secret() -> str:
    """Return 128 random bits as hex digits: the unguessable part of claim ids."""
    return secrets.token_hex(16)


def keeper_runtime(runtime: Runtime) -> Any:
    """Return the runtime of the keeper, which is a thread under asyncio too."""
    return runtime if hasattr(runtime, "spawn") else BlockingRuntime()


def _shut(*stores: Store) -> None:
    for store in stores:
        store.close()


@atexit.register
def _at_exit() -> None:
    """Release the remaining holds within a second, so that a deploy leaves no lock behind."""
    until = clock.now() + EXIT_LIMIT
    for core in list(_cores):
        if core.closed:
            continue
        try:
            run(core.close(core.keeper.store, max(until - clock.now(), 0.05), exiting=True))
            _shut(core.keeper.store)
        except Exception:  # the interpreter is exiting: log the error and let it exit
            text = "lockfast: could not release all holds at exit; they end with their leases"
            log.exception(text)

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
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Self, TypeVar

from lockfast import clock, forks
from lockfast.core.ledger import bare
from lockfast.core.listeners import Listener, Listeners
from lockfast.core.locks import Core
from lockfast.core.ports import Backend, Runtime
from lockfast.core.terms import Terms
from lockfast.errors import ConfigurationError, Unsupported
from lockfast.inputs import (
    Seconds,
    checked_label,
    checked_lease,
    checked_name,
    checked_namespace,
    checked_owner,
    checked_switch,
    checked_timeout,
    refuse_foreign,
)
from lockfast.model import Capabilities, Snapshot, Statistics
from lockfast.runtime.threads import BlockingRuntime, run
from lockfast.stores import Store

log = logging.getLogger("lockfast")
L = TypeVar("L", bound=Listener)
T = TypeVar("T")

# 30 s, renewed every 10 s: long enough to outlast a garbage collection, a deploy or a failover,
# short enough to wait for after a crash. Redisson uses the same numbers.
DEFAULT_LEASE = 30.0
DEFAULT_NAMESPACE = "default"
EXIT_LIMIT = 0.8  # seconds that releases at exit may take
MAX_PLAIN_LOCKS = 1000  # lock objects with default options, kept for reuse

LOCK_KEYWORDS = (
    "timeout", "lease", "renew", "max_hold", "fair", "owner", "label", "on_lost", "layout",
    "warn_after",
)  # fmt: skip
CONNECT_KEYWORDS = ("lease", "namespace", "warn_after", "replicas")

APIS: dict[str, type[BaseClient]] = {}
_cores: weakref.WeakSet[Core] = weakref.WeakSet()


class BaseClient:
    """A client of one store: creates locks and tracks the holds of this process."""

    api: str

    def __init__(
        self, store: Store, runtime: Runtime, backend: Backend, keeper_backend: Backend, *,
        lease: Seconds, namespace: str, warn_after: Seconds | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.lease = checked_lease(lease)
        if self.lease == DEFAULT_LEASE:  # the default, not a choice of the user
            self.lease = min(self.lease, backend.capabilities.longest_lease)
        _checked_longest(backend.capabilities, self.lease)
        self.warn_after = checked_warn_after(warn_after)
        self.namespace = checked_namespace(namespace)
        self._keeper_backend = keeper_backend
        self._backend = backend
        self.core = Core(runtime, backend, new_secret, keeper_runtime(runtime), keeper_backend)
        self._counterparts: dict[str, BaseClient] = {}
        self._listeners: Listeners | None = None
        self._plain_locks: dict[str, Any] = {}
        _cores.add(self.core)
        forks.register(self.core)
        weakref.finalize(self.core, _shut, backend, keeper_backend).atexit = False

    @classmethod
    def on(
        cls, store: Store, *, lease: Seconds, namespace: str, warn_after: Seconds | None = None
    ) -> Self:
        raise TypeError("implemented by the sync and the async client")

    def _on_lost(self, on_lost: object) -> object:
        """Return ``on_lost`` if this API accepts it, else raise ConfigurationError."""
        raise TypeError("implemented by the sync and the async client")

    @property
    def capabilities(self) -> Capabilities:
        """Features of this store: fairness, fences, how far a lock reaches, layouts. No I/O."""
        return self._backend.capabilities

    def statistics(self) -> Statistics:
        """Counters of this client since it was created: holds, waits, losses, renewals. No I/O."""
        return self.core.ledger.statistics()

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
            api.core.listen(self._listeners)
        return listener

    def counterpart(self, api: str) -> BaseClient:
        """Return the client of the given API on the same store: this one, or its counterpart."""
        if api == self.api:
            return self
        if api not in self._counterparts:
            counterpart = APIS[api].on(
                self.store, lease=self.lease, namespace=self.namespace, warn_after=self.warn_after
            )
            if self._listeners is not None:
                counterpart.core.listen(self._listeners)
            self._counterparts[api] = counterpart
        return self._counterparts[api]

    def _close_counterparts(self) -> None:
        """Close the counterparts, which hold the locks of functions decorated for the other API."""
        for counterpart in self._counterparts.values():
            run(counterpart.core.close(counterpart._keeper_backend, EXIT_LIMIT, exiting=True))
            _shut(counterpart._backend, counterpart._keeper_backend)

    def __repr__(self) -> str:
        return f"<{self.api} lockfast client of {self.store.url}>"

    def _full(self, name: str) -> str:
        return f"{self.namespace}:{checked_name(name)}"

    def _terms(
        self, call: str, name: str, lease: Seconds | None, renew: bool | None,
        max_hold: Seconds | None, fair: bool, owner: object, label: str, foreign: dict[str, Any],
        layout: str | None = None, known: tuple[str, ...] = LOCK_KEYWORDS,
        warn_after: Seconds | None = None,
    ) -> Terms:  # fmt: skip
        if foreign:
            refuse_foreign(call, foreign, known)
        renews = lease is None if renew is None else checked_switch("renew", renew)
        seconds = self.lease
        if lease is not None:
            seconds = _checked_longest(self._backend.capabilities, checked_lease(lease))
        limit = None if max_hold is None else checked_lease(max_hold, what="max_hold")
        return Terms(
            self._full(name),
            # The store need not keep the hold for longer than max_hold allows.
            seconds if limit is None else min(seconds, limit),
            renews,
            limit,
            True if fair is True else checked_switch("fair", fair),
            owner=None if owner is None else checked_owner(owner),
            label="" if label == "" else checked_label(label),
            layout="" if layout is None else self._checked_layout(layout),
            warn_after=self.warn_after if warn_after is None else checked_warn_after(warn_after),
        )

    def _lock(
        self, make: Callable[[Any, Terms, float | None, object], T], name: str,
        timeout: Seconds | None, lease: Seconds | None, renew: bool | None,
        max_hold: Seconds | None, fair: bool, owner: object, label: str, on_lost: object,
        layout: str | None, warn_after: Seconds | None, foreign: dict[str, Any],
    ) -> T:  # fmt: skip
        """Create a lock, or reuse the one of this name if all options have their defaults.

        The common call passes only a name. Defaults need no check, and any number of threads and
        tasks may share one lock object, so such a lock is kept.
        """
        plain = (
            timeout is None and lease is None and renew is None and max_hold is None
            and fair is True and owner is None and label == "" and on_lost is None
            and layout is None and warn_after is None and not foreign
        )  # fmt: skip
        if plain:
            lock: T | None = self._plain_locks.get(name) if type(name) is str else None
            if lock is None:
                terms = Terms(self._full(name), self.lease, True, warn_after=self.warn_after)
                if len(self._plain_locks) >= MAX_PLAIN_LOCKS:
                    self._plain_locks.clear()
                lock = self._plain_locks[name] = make(self, terms, None, None)
            return lock
        terms = self._terms(
            "lock()", name, lease, renew, max_hold, fair, owner, label, foreign, layout,
            warn_after=warn_after,
        )  # fmt: skip
        return make(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

    def _run_terms(self, name: str, at_most: float | None, label: str) -> Terms:
        """Return the terms of a `once_every` run, whose names have a namespace of their own: the
        function may want to take a lock of the same name."""
        lease = self.lease if at_most is None else min(self.lease, at_most)
        full = f"{self.namespace}+once:{checked_name(name)}"
        return Terms(
            full, lease, True, at_most, owner=object(), label=checked_label(label), template=name,
            warn_after=self.warn_after,
        )  # fmt: skip

    def _with_template(self, template: str, lock: T) -> T:
        """Return the lock with the template of its name, which events carry for the listeners."""
        if self.core.ledger.listeners is not None:
            lock = copy.copy(lock)  # the lock object may be shared
            lock._terms = lock._terms._replace(template=template)  # type: ignore[attr-defined]
        return lock

    def _transaction(
        self,
        name: str,
        connection: object,
        timeout: Seconds | None,
        advisory: bool,
        foreign: dict[str, Any],
    ) -> tuple[str, Coroutine[Any, Any, int]]:
        """Return the name, and the coroutine that takes the lock."""
        refuse_foreign("transaction_lock()", foreign, ("connection", "timeout", "advisory"))
        if not self.capabilities.transaction_locks:
            raise Unsupported(
                f"{self.store.url} has no transactions that could hold a lock: transaction_lock() "
                "needs PostgreSQL, MariaDB or MySQL"
            )
        self.core.refuse_if_closed()
        full = self._full(name)
        taking = self._backend.transactions.take(  # type: ignore[attr-defined]
            full, name, connection, checked_timeout(timeout), checked_switch("advisory", advisory)
        )
        return name, taking

    def _checked_layout(self, layout: object) -> str:
        known = self._backend.capabilities.layouts
        if not isinstance(layout, str) or layout not in known:
            offered = ", ".join(map(repr, known)) or "no other layout than its own"
            raise Unsupported(f"layout={layout!r}: {self.store.url} has {offered}")
        return layout

    def _refuse_unless_offered(self, kind: str) -> None:
        """Raise `Unsupported` with the reason if this store does not offer such an object."""
        why = self._backend.capabilities.refuses.get(kind)
        if why:
            raise Unsupported(why)

    def _without_namespace(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, name=bare(snapshot.name))

    def _bare_names(self, names: Iterable[str]) -> list[str]:
        return [bare(name) for name in names]

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


def _checked_longest(capabilities: Capabilities, lease: float) -> float:
    """Return the lease, or raise `Unsupported` if the store does not grant one that long."""
    longest = capabilities.longest_lease
    if lease > longest:
        raise Unsupported(
            f"lease={lease:g}: {capabilities.store} grants at most {longest:g} s at once; a hold "
            "is renewed, so it may last longer than its lease"
        )
    return lease


def checked_warn_after(warn_after: Seconds | None) -> float | None:
    """Return the seconds after which a hold is logged as too long, or None."""
    return None if warn_after is None else checked_lease(warn_after, what="warn_after")


def new_secret() -> str:
    """Return 128 random bits as hex digits: the unguessable part of claim ids."""
    return secrets.token_hex(16)


def keeper_runtime(runtime: Runtime) -> Any:
    """Return the runtime of the keeper, which is a thread under asyncio too."""
    return runtime if hasattr(runtime, "spawn") else BlockingRuntime()


def _shut(*backends: Backend) -> None:
    for backend in backends:
        backend.close()


@atexit.register
def _at_exit() -> None:
    """Release the remaining holds within a second, so that a deploy leaves no lock behind."""
    until = clock.now() + EXIT_LIMIT
    for core in list(_cores):
        if core.closed:
            continue
        try:
            run(core.close(core.keeper.backend, max(until - clock.now(), 0.05), exiting=True))
            _shut(core.keeper.backend)
        except Exception:  # the interpreter is exiting: log the error and let it exit
            text = "lockfast: could not release all holds at exit; they end with their leases"
            log.exception(text)

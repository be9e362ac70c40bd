"""What both faces share of a client: everything that neither blocks nor awaits.

A client finds its twin of the other colour (for ``@client.locked`` on a function of that colour)
through `FACES`.
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

# 30 s, renewed every 10: long enough for a garbage collection, a deploy or a failover to pass,
# short enough to wait for after a crash. Users of Redisson know these numbers.
DEFAULT_LEASE = 30.0
DEFAULT_NAMESPACE = "default"
EXIT_LIMIT = 0.8
MOST_PLAIN = 1000

LOCK_KEYWORDS = (
    "timeout",
    "lease",
    "renew",
    "max_hold",
    "fair",
    "owner",
    "label",
    "on_lost",
    "layout",
    "warn_after",
)
CONNECT_KEYWORDS = ("lease", "namespace", "warn_after", "replicas")

APIS: dict[str, type[BaseClient]] = {}
_cores: weakref.WeakSet[Core] = weakref.WeakSet()


class BaseClient:
    """A client of one store: makes locks, and knows what it holds."""

    api: str

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        backend: Backend,
        keeper_backend: Backend,
        *,
        lease: Seconds,
        namespace: str,
        warn_after: Seconds | None = None,
    ) -> None:
        self.store = store
        self.lease = checked_lease(lease)
        if self.lease == DEFAULT_LEASE:  # nobody asked for it
            self.lease = min(self.lease, backend.capabilities.longest_lease)
        _fitting(backend.capabilities, self.lease)
        self.warn_after = checked_patience(warn_after)
        self.namespace = checked_namespace(namespace)
        self._keeper_backend = keeper_backend
        self._backend = backend
        self.core = Core(runtime, backend, new_secret, keeper_runtime(runtime), keeper_backend)
        self._counterparts: dict[str, BaseClient] = {}
        self._listeners: Listeners | None = None
        self._plain: dict[str, Any] = {}
        _cores.add(self.core)
        forks.remember(self.core)
        weakref.finalize(self.core, _shut, backend, keeper_backend).atexit = False

    @classmethod
    def on(
        cls, store: Store, *, lease: Seconds, namespace: str, warn_after: Seconds | None = None
    ) -> Self:
        raise TypeError("made by a face")

    def _on_lost(self, on_lost: object) -> object:
        """What it may be, checked."""
        raise TypeError("known to a face")

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._backend.capabilities

    def statistics(self) -> Statistics:
        """What this client did so far."""
        return self.core.ledger.statistics()

    def on_event(self, listener: L) -> L:
        """Call ``listener`` with each event of `lockfast.events` from now on, in the thread or task
        where it happens; it must not block. What it raises is logged, once, and goes no further.
        Give it before you lock. It is returned: this can be a decorator."""
        if not callable(listener):
            raise ConfigurationError(f"on_event({listener!r}): a function that takes an event")
        if self._listeners is None:
            self._listeners = Listeners(self.capabilities.store)
        self._listeners.add(listener)
        for api in (self, *self._counterparts.values()):
            api.core.listen(self._listeners)
        return listener

    def counterpart(self, api: str) -> BaseClient:
        """This client, or one of the other colour on the same store."""
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
        """Our twins hold what functions of the other colour hold; they end with us."""
        for counterpart in self._counterparts.values():
            run(counterpart.core.close(counterpart._keeper_backend, EXIT_LIMIT, exiting=True))
            _shut(counterpart._backend, counterpart._keeper_backend)

    def __repr__(self) -> str:
        return f"<{self.api} lockfast client of {self.store.url}>"

    def _full(self, name: str) -> str:
        return f"{self.namespace}:{checked_name(name)}"

    def _terms(
        self,
        call: str,
        name: str,
        lease: Seconds | None,
        renew: bool | None,
        max_hold: Seconds | None,
        fair: bool,
        owner: object,
        label: str,
        foreign: dict[str, Any],
        layout: str | None = None,
        known: tuple[str, ...] = LOCK_KEYWORDS,
        warn_after: Seconds | None = None,
    ) -> Terms:
        if foreign:
            refuse_foreign(call, foreign, known)
        renews = lease is None if renew is None else checked_switch("renew", renew)
        seconds = self.lease
        if lease is not None:
            seconds = _fitting(self._backend.capabilities, checked_lease(lease))
        limit = None if max_hold is None else checked_lease(max_hold, what="max_hold")
        return Terms(
            self._full(name),
            # The store need not keep it for longer than we may hold it.
            seconds if limit is None else min(seconds, limit),
            renews,
            limit,
            True if fair is True else checked_switch("fair", fair),
            owner=None if owner is None else checked_owner(owner),
            label="" if label == "" else checked_label(label),
            layout="" if layout is None else self._checked_layout(layout),
            warn_after=self.warn_after if warn_after is None else checked_patience(warn_after),
        )

    def _lock(
        self,
        make: Callable[[Any, Terms, float | None, object], T],
        name: str,
        timeout: Seconds | None,
        lease: Seconds | None,
        renew: bool | None,
        max_hold: Seconds | None,
        fair: bool,
        owner: object,
        label: str,
        on_lost: object,
        layout: str | None,
        warn_after: Seconds | None,
        foreign: dict[str, Any],
    ) -> T:
        """Often nothing is said but the name, for one use each time. What was left at its default
        needs no check, and any number of threads and tasks can use the same lock: it is
        remembered."""
        plain = (
            timeout is None and lease is None and renew is None and max_hold is None
            and fair is True and owner is None and label == "" and on_lost is None
            and layout is None and warn_after is None and not foreign
        )  # fmt: skip
        if plain:
            made: T | None = self._plain.get(name) if type(name) is str else None
            if made is None:
                terms = Terms(self._full(name), self.lease, True, warn_after=self.warn_after)
                if len(self._plain) >= MOST_PLAIN:
                    self._plain.clear()
                made = self._plain[name] = make(self, terms, None, None)
            return made
        terms = self._terms(
            "lock()", name, lease, renew, max_hold, fair, owner, label, foreign, layout,
            warn_after=warn_after,
        )  # fmt: skip
        return make(self, terms, checked_timeout(timeout), self._on_lost(on_lost))

    def _turns(self, name: str, at_most: float | None, label: str) -> Terms:
        """The terms of what runs once per period: names of their own, beside those of locks, which
        the function may want to take."""
        lease = self.lease if at_most is None else min(self.lease, at_most)
        full = f"{self.namespace}+once:{checked_name(name)}"
        label = checked_label(label)
        return Terms(
            full,
            lease,
            True,
            at_most,
            owner=object(),
            label=label,
            template=name,
            warn_after=self.warn_after,
        )

    def _made_of(self, template: str, lock: T) -> T:
        """A lock whose name was made of a template: those who listen want to know."""
        if self.core.ledger.listeners is not None:
            lock = copy.copy(lock)  # others may have the same one
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
        """The name, and what takes the lock."""
        refuse_foreign("transaction_lock()", foreign, ("connection", "timeout", "advisory"))
        if not self.capabilities.transaction_locks:
            raise Unsupported(
                f"{self.store.url} has no transactions of yours to hold a lock: transaction_lock() "
                "is for PostgreSQL, MariaDB and MySQL"
            )
        self.core.refuse_if_closed()
        full = self._full(name)
        taking = self._backend.transactions.take(  # type: ignore[attr-defined]
            full,
            name,
            connection,
            checked_timeout(timeout),
            checked_switch("advisory", advisory),
        )
        return name, taking

    def _checked_layout(self, layout: object) -> str:
        known = self._backend.capabilities.layouts
        if not isinstance(layout, str) or layout not in known:
            there_is = ", ".join(map(repr, known)) or "no other layout than its own"
            raise Unsupported(f"layout={layout!r}: {self.store.url} has {there_is}")
        return layout

    def _refuse_unless_offered(self, kind: str) -> None:
        """Some stores cannot give some things: say so when they are made, with the reason."""
        why = self._backend.capabilities.refuses.get(kind)
        if why:
            raise Unsupported(why)

    def _shown(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, name=bare(snapshot.name))

    def _bare_names(self, names: Iterable[str]) -> list[str]:
        return [bare(name) for name in names]

    def _attach_terms(self, terms: Terms, text: object) -> tuple[Terms, str, int]:
        """Take a detached hold's text apart, refusing what is none."""
        parts = text.split(":") if isinstance(text, str) else []
        try:
            version, claim_id, fence, lease, slots, take = parts
            if version != "lf1":
                raise ValueError
            given = Terms(
                terms.name,
                checked_lease(float(lease)),
                terms.renew,
                terms.max_hold,
                slots=int(slots),
                take=int(take),
                # Each permit of a semaphore is an owner of its own.
                owner=object() if terms.owner is None and int(slots) > 1 else terms.owner,
                label=terms.label,
                warn_after=terms.warn_after,
            )
            return given, claim_id, int(fence)
        except ValueError:
            raise ConfigurationError(
                "attach() takes the text that hold.detach() gave, unchanged"
            ) from None


def _fitting(capabilities: Capabilities, lease: float) -> float:
    """Some stores refuse a lease that is too long."""
    longest = capabilities.longest_lease
    if lease > longest:
        raise Unsupported(
            f"lease={lease:g}: {capabilities.store} gives at most {longest:g} s at once; a hold is "
            "renewed, so it may last longer than its lease"
        )
    return lease


def checked_patience(warn_after: Seconds | None) -> float | None:
    """After how long a hold is told of."""
    return None if warn_after is None else checked_lease(warn_after, what="warn_after")


def new_secret() -> str:
    """128 bits that nobody can guess."""
    return secrets.token_hex(16)


def keeper_runtime(runtime: Runtime) -> Any:
    """A blocking runtime keeps for itself; asyncio's keeper is a thread."""
    return runtime if hasattr(runtime, "spawn") else BlockingRuntime()


def _shut(*backends: Backend) -> None:
    for backend in backends:
        backend.close()


@atexit.register
def _at_exit() -> None:
    """Give back what is still held: a deploy must not leave it locked. At most about a second."""
    until = clock.now() + EXIT_LIMIT
    for core in list(_cores):
        if core.closed:
            continue
        try:
            run(core.close(core.keeper.backend, max(until - clock.now(), 0.05), exiting=True))
            _shut(core.keeper.backend)
        except Exception:  # the interpreter is ending: say it, and let it end
            log.exception("lockfast: could not release at exit")

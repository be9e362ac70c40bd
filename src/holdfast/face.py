"""What both faces share: everything of a client, a lock and a hold that neither blocks nor awaits.

`sync` and `aio` add the verbs, one line each. They do not know each other; a client finds its twin
of the other colour (for ``@client.locked`` on a function of that colour) through `FACES`.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Generic, NoReturn, Self, TypeVar

from holdfast import clock, forks
from holdfast.backends import Store
from holdfast.core.ledger import HELD, LOST, Held, bare
from holdfast.core.locks import Core
from holdfast.core.ports import Backend, Runtime
from holdfast.core.terms import Terms
from holdfast.errors import ConfigurationError, NotHeld, Unsupported
from holdfast.inputs import (
    Seconds,
    checked_label,
    checked_lease,
    checked_name,
    checked_namespace,
    checked_owner,
    checked_switch,
    refuse_foreign,
)
from holdfast.model import Capabilities, Snapshot, Statistics
from holdfast.runtime.blocking import BlockingRuntime, run

log = logging.getLogger("holdfast")

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
)
CONNECT_KEYWORDS = ("lease", "namespace")

FACES: dict[str, type[ClientFace]] = {}
_cores: weakref.WeakSet[Core] = weakref.WeakSet()

H = TypeVar("H", bound="HoldFace")


class HoldFace:
    """A hold: the value that you were given, and the only thing that may end it.

    It is bound to the process that acquired it. It cannot be copied or pickled; `detach` makes a
    text with which another process takes it over.
    """

    __slots__ = ("__weakref__", "_client", "_held", "_on_lost", "_outer")

    def __init__(self, client: ClientFace, held: Held, on_lost: object = None) -> None:
        self._client = client
        self._held = held
        self._on_lost = on_lost
        self._outer: Any = None
        if on_lost is not None and callable(on_lost) and held.count == 1:
            # The outermost entry tells, once.
            client.core.ledger.on_end(held, self._tell_lost)

    def _tell_lost(self) -> None:
        if self._held.state is LOST and callable(self._on_lost):
            try:
                self._on_lost(self)
            except Exception:  # foreign code must not end the keeper
                log.exception("holdfast: on_lost of %r raised", self.name)

    @property
    def name(self) -> str:
        """What is locked."""
        return bare(self._held.claim.name)

    @property
    def fence(self) -> int:
        """The growing number of this hold: let the resource refuse a lower one. Never changes."""
        if self._held.claim.layout:
            raise Unsupported(
                f"{self.name!r} is a plain lock (layout {self._held.claim.layout!r}), which has no "
                "fence: nothing can refuse a stale writer"
            )
        return self._held.fence

    @property
    def lease(self) -> float:
        """How long it lasts unless renewed, in seconds."""
        return self._held.claim.lease

    @property
    def is_held(self) -> bool:
        """May we still believe in it? Needs no store: it ends, at the latest, with the lease that
        was last granted, counted from before it was asked for, on a clock that runs in suspend."""
        return self._client.core.is_held(self._held)

    @property
    def lost(self) -> bool:
        """Did it end without us?"""
        self._client.core.settle(self._held)
        return self._held.state is LOST

    def remaining(self) -> float:
        """Seconds until belief ends unless it is renewed; 0 when it has ended."""
        if self._held.state is not HELD:
            return 0.0
        return max(self._held.deadline - clock_of(self._client), 0.0)

    def check(self) -> None:
        """Raise `HoldLost` if it is lost, `NotHeld` if it was released. Cheap: no round trip."""
        self._client.core.check(self._held)

    def __repr__(self) -> str:
        return f"<Hold on {self.name!r}, fence {self._held.fence}, {self._held.state.value}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a hold cannot be copied or pickled: hold.detach() and client.attach()")

    __copy__ = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(0)


class LockFace(Generic[H]):
    """A lock: a name and the terms on which it is acquired. Holds nothing itself, so one object may
    serve any number of threads and tasks; each is an owner of its own."""

    def __init__(
        self,
        client: ClientFace,
        terms: Terms,
        timeout: float | None,
        on_lost: object,
    ) -> None:
        self._client = client
        self._terms = terms
        self._timeout = timeout
        self._on_lost = on_lost
        # For `with`: what each owner entered last; a hold knows the one around it.
        self._entered: dict[object, H] = {}

    @property
    def name(self) -> str:
        """What is locked."""
        return bare(self._terms.name)

    @property
    def capabilities(self) -> Capabilities:
        """What this lock can do: what its store can, unless another layout was asked for."""
        known = self._client.capabilities
        return known.layouts[self._terms.layout] if self._terms.layout else known

    @property
    def is_held(self) -> bool:
        """Does the current owner (this thread or task) hold it?"""
        core = self._client.core
        held = core.ledger.by_owner.get((self._terms.name, self._owner()))
        return held is not None and core.is_held(held)

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self._client.store.url}>"

    def _owner(self) -> object:
        owner = self._terms.owner
        return owner if owner is not None else self._client.core.runtime.owner()

    def _push(self, hold: H) -> None:
        owner = hold._held.owner
        hold._outer = self._entered.get(owner)
        self._entered[owner] = hold

    def _pop(self) -> H:
        owner = self._terms.owner
        if owner is None:
            owner = self._client.core.runtime.owner()
        hold = self._entered.pop(owner, None)
        if hold is None:
            raise NotHeld(f"{self.name!r}: this thread or task did not enter the with block")
        if hold._outer is not None:
            self._entered[owner] = hold._outer
        return hold


class Default:
    """Stands for "as the lock was told"."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = Default()


class ClientFace:
    """A client of one store: makes locks, and knows what it holds."""

    colour: str

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        backend: Backend,
        keeper_backend: Backend,
        *,
        lease: Seconds,
        namespace: str,
    ) -> None:
        self.store = store
        self.lease = checked_lease(lease)
        self.namespace = checked_namespace(namespace)
        self._keeper_backend = keeper_backend
        self._backend = backend
        self.core = Core(runtime, backend, new_secret, keeper_runtime(runtime), keeper_backend)
        self._twins: dict[str, ClientFace] = {}
        self._plain: dict[str, Terms] = {}
        _cores.add(self.core)
        forks.remember(self.core)
        weakref.finalize(self.core, _shut, backend, keeper_backend).atexit = False

    @classmethod
    def on(cls, store: Store, *, lease: Seconds, namespace: str) -> Self:
        raise TypeError("made by a face")

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._backend.capabilities

    def statistics(self) -> Statistics:
        """What this client did so far."""
        return self.core.ledger.statistics()

    def twin(self, colour: str) -> ClientFace:
        """This client, or one of the other colour on the same store."""
        if colour == self.colour:
            return self
        if colour not in self._twins:
            face = FACES[colour]
            self._twins[colour] = face.on(self.store, lease=self.lease, namespace=self.namespace)
        return self._twins[colour]

    def _close_twins(self) -> None:
        """Our twins hold what functions of the other colour hold; they end with us."""
        for twin in self._twins.values():
            run(twin.core.close(twin._keeper_backend, EXIT_LIMIT, exiting=True))
            _shut(twin._backend, twin._keeper_backend)

    def __repr__(self) -> str:
        return f"<{self.colour} holdfast client of {self.store.url}>"

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
    ) -> Terms:
        # A lock is often made for one use: what was left at its default needs no check, and a name
        # that was checked is remembered.
        plain = fair is True and lease is renew is max_hold is owner is layout is None
        if plain and label == "" and not foreign and type(name) is str:
            terms = self._plain.get(name)
            if terms is None:
                if len(self._plain) >= MOST_PLAIN:
                    self._plain.clear()
                terms = self._plain[name] = Terms(self._full(name), self.lease, True)
            return terms
        if foreign:
            refuse_foreign(call, foreign, known)
        renews = lease is None if renew is None else checked_switch("renew", renew)
        seconds = self.lease if lease is None else checked_lease(lease)
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
        )

    def _checked_layout(self, layout: object) -> str:
        known = self._backend.capabilities.layouts
        if not isinstance(layout, str) or layout not in known:
            there_is = ", ".join(map(repr, known)) or "no other layout than its own"
            raise Unsupported(f"layout={layout!r}: {self.store.url} has {there_is}")
        return layout

    def _shown(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, name=bare(snapshot.name))

    def _bare_names(self, names: Iterable[str]) -> list[str]:
        return [bare(name) for name in names]

    def _attach_terms(self, terms: Terms, text: object) -> tuple[Terms, str, int]:
        """Take a detached hold's text apart, refusing what is none."""
        parts = text.split(":") if isinstance(text, str) else []
        try:
            version, claim_id, fence, lease = parts
            if version != "hf1":
                raise ValueError
            given = Terms(
                terms.name,
                checked_lease(float(lease)),
                terms.renew,
                terms.max_hold,
                owner=terms.owner,
                label=terms.label,
            )
            return given, claim_id, int(fence)
        except ValueError:
            raise ConfigurationError(
                "attach() takes the text that hold.detach() gave, unchanged"
            ) from None


def new_secret() -> str:
    """128 bits that nobody can guess."""
    return secrets.token_hex(16)


def keeper_runtime(runtime: Runtime) -> Any:
    """A blocking runtime keeps for itself; asyncio's keeper is a thread."""
    return runtime if hasattr(runtime, "spawn") else BlockingRuntime()


def lease_or_none(lease: Seconds | None) -> float | None:
    return None if lease is None else checked_lease(lease)


def clock_of(client: ClientFace) -> float:
    return client.core.runtime.now()


def checked_on_lost(on_lost: object, words: tuple[str, ...]) -> object:
    if on_lost is None or callable(on_lost) or on_lost in words:
        return on_lost
    said = "".join(f"{word!r}, " for word in words)
    raise ConfigurationError(f"on_lost={on_lost!r}: {said}or a function that takes the hold")


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
            log.exception("holdfast: could not release at exit")

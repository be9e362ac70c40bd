"""The blocking face: what a user of threads and processes touches. One line per verb."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Never, Self

from holdfast.backends import Store, open_store
from holdfast.core.ledger import DETACHED, Held
from holdfast.decorators import F, OnBusy, locked_by
from holdfast.default import DefaultClient
from holdfast.errors import BackendError, HoldLost, NotHeld
from holdfast.face import (
    CONNECT_KEYWORDS,
    DEFAULT,
    DEFAULT_LEASE,
    DEFAULT_NAMESPACE,
    EXIT_LIMIT,
    FACES,
    ClientFace,
    Default,
    HoldFace,
    LockFace,
    checked_on_lost,
    lease_or_none,
)
from holdfast.inputs import Seconds, checked_timeout, refuse_foreign
from holdfast.keys import Key
from holdfast.model import Snapshot
from holdfast.runtime.blocking import BlockingRuntime, run


class Hold(HoldFace):
    __doc__ = HoldFace.__doc__
    __slots__ = ()

    def release(self) -> None:
        """Give it back, from any thread. `HoldLost` if it had ended before, `NotHeld` if it was
        released already, `BackendError` if the outcome is unknown."""
        rest = self._client.core.release_now(self._held)
        if rest is not None:
            run(rest)

    def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend it by hand, to ``lease`` seconds from now. `HoldLost` if it has ended."""
        run(self._client.core.renew(self._held, lease_or_none(lease)))

    def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Block until it is lost (True), or until it is released or the time is over (False)."""
        return run(self._client.core.wait_lost(self._held, checked_timeout(timeout)))

    def detach(self) -> str:
        """Stop keeping it and get a secret text with which ``client.attach(name, text)`` takes it
        over, in any process, before its lease ends."""
        return run(self._client.core.detach(self._held))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back, unless it was detached. The body's exception comes first; what went wrong
        with the release is attached to it."""
        if self._held.state is DETACHED:
            return
        try:
            self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if error is None:
                raise
            error.add_note(f"and while leaving the lock: {ours}")


class Lock(LockFace[Hold]):
    __doc__ = LockFace.__doc__

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """A hold, or `AcquireTimeout` that names the holder. Waits ``timeout`` seconds in all (0:
        asks once; None: without end), by default as the lock was told. Re-entry costs nothing."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        client, terms = self._client, self._terms
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = client.core.attempt_now(terms, wait_for)
        if not isinstance(held, Held):
            outcome = run(held)
            if not isinstance(outcome, Held):
                run(client.core.refuse(terms, wait_for, outcome))
            held = outcome
        return Hold(client, held, self._on_lost)

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """A hold, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = run(self._client.core.attempt(self._terms, checked_timeout(timeout)))
        return Hold(self._client, held, self._on_lost) if isinstance(held, Held) else None

    def release(self) -> None:
        """Give back the current owner's hold, one step, as `threading.RLock` does."""
        core = self._client.core
        run(core.release(core.find(self._terms)))

    def locked(self) -> bool:
        """Does anybody hold it? One round trip, and old news when it arrives."""
        terms = self._terms
        return bool(run(self._client.core.inspect(terms.name, terms.layout)).holders)

    def __enter__(self) -> Hold:
        hold = self.acquire()
        self._push(hold)
        return hold

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pop().__exit__(kind, error, trace)


class Client(ClientFace):
    """A client of one store. Thread-safe; one per process is enough. Safe across fork."""

    colour = "blocking"

    @classmethod
    def on(cls, store: Store, *, lease: Seconds, namespace: str) -> Self:
        """A client on a store that is open already."""
        runtime = BlockingRuntime()
        backend = store.blocking(runtime.signal)
        return cls(store, runtime, backend, backend, lease=lease, namespace=namespace)

    def lock(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        lease: Seconds | None = None,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        fair: bool = True,
        owner: object = None,
        label: str = "",
        on_lost: object = None,
        layout: str | None = None,
        **foreign: Never,
    ) -> Lock:
        """A lock on ``name``; no I/O until it is acquired.

        ``timeout``: how long to wait (None: without end). ``lease``: none given is 30 s, renewed as
        long as you hold it; one that is given ends it after that time unless ``renew=True``.
        ``max_hold`` caps renewal. ``fair``: in arrival order, or whoever comes first. ``owner``:
        who may re-enter, by default the current thread or task. ``label``: shown to operators.
        ``on_lost``: called with the hold, once, on the keeper's thread, if it is lost.
        ``layout="simple"`` (Redis): the plain lock that other libraries write, to exclude them too.
        """
        terms = self._terms(
            "lock()", name, lease, renew, max_hold, fair, owner, label, foreign, layout
        )
        if timeout is not None:
            timeout = checked_timeout(timeout)
        if on_lost is not None:
            on_lost = checked_on_lost(on_lost, ())
        return Lock(self, terms, timeout, on_lost)

    def locked(
        self,
        key: Key,
        *,
        prefix: str | None = None,
        on_busy: OnBusy = "raise",
        **terms: Any,
    ) -> Callable[[F], F]:
        """A decorator: one call at a time per name that the key expression makes of the arguments.

        ``on_busy="skip"`` returns None instead of raising `AcquireTimeout` (at once if no timeout
        is given). Works on ``def`` and ``async def``; a wrong expression fails here, at import.
        """
        return locked_by(lambda: self, key, prefix=prefix, on_busy=on_busy, terms=terms)

    def attach(
        self,
        name: str,
        detached: str,
        *,
        renew: bool | None = None,
        max_hold: Seconds | None = None,
        owner: object = None,
        label: str = "",
        **foreign: Never,
    ) -> Hold:
        """Take over a hold that another process detached; same fence. `NotHeld` if it ended."""
        known = ("renew", "max_hold", "owner", "label")
        terms = self._terms(
            "attach()", name, None, renew, max_hold, True, owner, label, foreign, None, known
        )
        return Hold(self, run(self.core.attach(*self._attach_terms(terms, detached))))

    def inspect(self, name: str) -> Snapshot:
        """Who holds it, since when, and who waits, in order."""
        return self._shown(run(self.core.inspect(self._full(name))))

    def names(self, prefix: str = "") -> list[str]:
        """The names that are held or waited for now, sorted."""
        return self._bare_names(run(self.core.names(f"{self.namespace}:{prefix}")))

    def break_hold(self, name: str, fence: int) -> bool:
        """End somebody's hold, if it still has this fence; it is told that it is lost. For
        operators: a holder that is alive goes on until it hears of it."""
        return run(self.core.break_hold(self._full(name), fence))

    def close(self) -> None:
        """Give back everything and stop. Locks of this client cannot be acquired any more."""
        run(self.core.close(self._backend, EXIT_LIMIT))
        self._close_twins()
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


FACES[Client.colour] = Client


def connect(
    url: str | None = None,
    *,
    lease: Seconds = DEFAULT_LEASE,
    namespace: str = DEFAULT_NAMESPACE,
    **foreign: Never,
) -> Client:
    """A client of the store that the URL names: ``sqlite:///path``, ``memory://``. No argument is
    ``$HOLDFAST_URL``, or else the embedded SQLite store of this user on this host."""
    refuse_foreign("connect()", foreign, CONNECT_KEYWORDS)
    return Client.on(open_store(url), lease=lease, namespace=namespace)


default_client = DefaultClient(lambda: connect())


def lock(name: str, **terms: Any) -> Lock:
    """A lock on the default client; the keywords are those of `Client.lock`."""
    return default_client().lock(name, **terms)


def locked(
    key: Key, *, prefix: str | None = None, on_busy: OnBusy = "raise", **terms: Any
) -> Callable[[F], F]:
    """`Client.locked` on the default client, which is made at the first call, not at import."""
    return locked_by(default_client, key, prefix=prefix, on_busy=on_busy, terms=terms)

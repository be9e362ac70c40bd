"""The asyncio face: the same names as `holdfast.sync`, awaited. One line per verb.

``async with`` cancels its body when the hold is lost, as `asyncio.timeout` would, and raises
`HoldLost`; ``on_lost="flag"`` opts out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Never, Self

from holdfast.backends import Store, open_store
from holdfast.core.ledger import DETACHED, LOST, Held
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
from holdfast.runtime.blocking import BlockingRuntime
from holdfast.runtime.tasks import TaskRuntime


class _Body:
    """The body of an ``async with``, to be cancelled if the hold is lost while it runs.

    The cancellation is ours only if the task was not cancelled by somebody else as well: then that
    one goes on, as the rules of `asyncio.Task.uncancel` ask.
    """

    __slots__ = ("_cancelled", "_cancelling", "_held", "_loop", "_open", "_task")

    def __init__(self, held: Held) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._held = held
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._open = True
        self._loop = task.get_loop()

    def ended(self) -> None:
        """On any thread."""
        if self._held.state is LOST:
            try:
                self._loop.call_soon_threadsafe(self._cancel)
            except RuntimeError:
                pass  # the loop is closed, and the body with it

    def _cancel(self) -> None:
        if self._open:
            self._cancelled = True
            self._task.cancel("holdfast: the hold is lost")

    def close(self, error: BaseException | None) -> BaseException | None:
        """What the body raised, without a cancellation that was ours alone."""
        self._open = False
        if self._cancelled and self._task.uncancel() <= self._cancelling:
            return None if isinstance(error, asyncio.CancelledError) else error
        return error


class Hold(HoldFace):
    __doc__ = HoldFace.__doc__
    __slots__ = ("_body",)

    async def release(self) -> None:
        """Give it back, from any task. `HoldLost` if it had ended before, `NotHeld` if it was
        released already, `BackendError` if the outcome is unknown."""
        await self._client.core.release(self._held)

    async def renew(self, *, lease: Seconds | None = None) -> None:
        """Extend it by hand, to ``lease`` seconds from now. `HoldLost` if it has ended."""
        await self._client.core.renew(self._held, lease_or_none(lease))

    async def wait_lost(self, timeout: Seconds | None = None) -> bool:
        """Wait until it is lost (True), or until it is released or the time is over (False)."""
        return await self._client.core.wait_lost(self._held, checked_timeout(timeout))

    async def detach(self) -> str:
        """Stop keeping it and get a secret text with which ``client.attach(name, text)`` takes it
        over, in any process, before its lease ends."""
        return await self._client.core.detach(self._held)

    async def __aenter__(self) -> Self:
        self._body: _Body | None = None
        # The outermost block of this task cancels it; what is inside is cancelled with it.
        inside = self._held.count > 1 and self._held.owner is asyncio.current_task()
        if self._on_lost != "flag" and not inside:
            self._body = _Body(self._held)
            self._client.core.ledger.on_end(self._held, self._body.ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back, unless it was detached. The body's exception comes first; what went wrong
        with the release is attached to it. A body that we cancelled ends in `HoldLost`."""
        raised = error
        if self._body is not None:
            self._client.core.ledger.off_end(self._held, self._body.ended)
            raised = self._body.close(error)
        if self._held.state is DETACHED:
            return
        try:
            await self.release()
        except (HoldLost, BackendError, NotHeld) as ours:
            if raised is None:
                raise ours from error
            raised.add_note(f"and while leaving the lock: {ours}")


class Lock(LockFace[Hold]):
    __doc__ = LockFace.__doc__

    async def acquire(
        self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never
    ) -> Hold:
        """A hold, or `AcquireTimeout` that names the holder. Waits ``timeout`` seconds in all (0:
        asks once; None: without end), by default as the lock was told. Re-entry costs nothing.
        A cancelled acquire leaves nothing behind."""
        if foreign:
            refuse_foreign("acquire()", foreign, ("timeout",))
        client, terms = self._client, self._terms
        wait_for = self._timeout if timeout is DEFAULT else checked_timeout(timeout)
        held = await client.core.attempt(terms, wait_for)
        if not isinstance(held, Held):
            await client.core.refuse(terms, wait_for, held)
        return Hold(client, held, self._on_lost)

    async def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """A hold, or None: at once, or after waiting ``timeout`` seconds."""
        if foreign:
            refuse_foreign("try_acquire()", foreign, ("timeout",))
        held = await self._client.core.attempt(self._terms, checked_timeout(timeout))
        return Hold(self._client, held, self._on_lost) if isinstance(held, Held) else None

    async def release(self) -> None:
        """Give back the current owner's hold, one step, as `threading.RLock` does."""
        core = self._client.core
        await core.release(core.find(self._terms))

    async def locked(self) -> bool:
        """Does anybody hold it? One round trip, and old news when it arrives."""
        terms = self._terms
        return bool((await self._client.core.inspect(terms.name, terms.layout)).holders)

    async def __aenter__(self) -> Hold:
        hold = await self.acquire()
        self._push(hold)
        return await hold.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pop().__aexit__(kind, error, trace)


class Client(ClientFace):
    """A client of one store, for asyncio. One per process is enough. Safe across fork."""

    colour = "asyncio"

    @classmethod
    def on(cls, store: Store, *, lease: Seconds, namespace: str) -> Self:
        """A client on a store that is open already."""
        keeper_backend = store.blocking(BlockingRuntime().signal)
        backend = store.tasks(BlockingRuntime().signal)
        return cls(store, TaskRuntime(), backend, keeper_backend, lease=lease, namespace=namespace)

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
        who may re-enter, by default the current task. ``label``: shown to operators. ``on_lost``:
        called with the hold, once, on the keeper's thread, if it is lost; ``"flag"``: do not
        cancel the body of ``async with`` then, only set ``hold.lost``. ``layout="simple"`` (Redis):
        the plain lock that other libraries write, to exclude them too.
        """
        terms = self._terms(
            "lock()", name, lease, renew, max_hold, fair, owner, label, foreign, layout
        )
        if timeout is not None:
            timeout = checked_timeout(timeout)
        if on_lost is not None:
            on_lost = checked_on_lost(on_lost, ("flag",))
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

    async def attach(
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
        return Hold(self, await self.core.attach(*self._attach_terms(terms, detached)))

    async def inspect(self, name: str) -> Snapshot:
        """Who holds it, since when, and who waits, in order."""
        return self._shown(await self.core.inspect(self._full(name)))

    async def names(self, prefix: str = "") -> list[str]:
        """The names that are held or waited for now, sorted."""
        return self._bare_names(await self.core.names(f"{self.namespace}:{prefix}"))

    async def break_hold(self, name: str, fence: int) -> bool:
        """End somebody's hold, if it still has this fence; it is told that it is lost. For
        operators: a holder that is alive goes on until it hears of it."""
        return await self.core.break_hold(self._full(name), fence)

    async def close(self) -> None:
        """Give back everything and stop. Locks of this client cannot be acquired any more."""
        await self.core.close(self._backend, EXIT_LIMIT)
        self._close_twins()
        self._backend.close()
        self._keeper_backend.close()
        await asyncio.sleep(0)  # what was closed is let go of in the loop's next turn

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


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

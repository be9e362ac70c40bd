"""The verbs on the SQLite store: each applies the law of slots to one name in one transaction.

`core.law` decides, `book` reads and writes the rows, the transport runs the transaction. This
module connects the three, and sends wake-ups after the commit, never before: a waiter would trust
a wake-up with a grant that was rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from lockfast.core import law
from lockfast.core.ports import Wake
from lockfast.model import LATCH, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.sqlite.book import (
    CLAIM_UNCONTENDED,
    RELEASE_UNCONTENDED,
    Rows,
    SqlBook,
    extend_batch,
)
from lockfast.stores.sqlite.fences import FenceClock

T = TypeVar("T")

CAPABILITIES = Capabilities(
    store="sqlite", across="host", survives_restart=True, frees_dead_process=True
)
MAX_CONTENDED = 1000
_granted: Callable[[tuple[int, float]], Granted] = partial(tuple.__new__, Granted)  # a hot path
NAMES = """
    SELECT name FROM (SELECT name, ends FROM holds UNION ALL SELECT name, ends FROM waiters)
    WHERE ends > ?1 AND substr(name, 1, length(?2)) = ?2 GROUP BY name ORDER BY name
"""


class Transport(Protocol):
    @property
    def fences(self) -> FenceClock: ...

    async def step(self, work: Callable[[Any], T], budget: float) -> T: ...

    async def execute(self, statement: str, arguments: tuple[Any, ...], budget: float) -> int: ...

    def execute_now(self, statement: str, arguments: tuple[Any, ...]) -> int: ...


class Listener(Protocol):
    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class PeerRegistry(Protocol):
    """The part of `peers.Peers` that the backend needs."""

    def wake_address(self) -> str: ...

    def is_dead(self, wake_address: str) -> bool: ...

    def remove(self, wake_addresses: Sequence[str]) -> None: ...

    def wake(self, wake_address: str, claim_id: str, grant: Granted | None) -> None: ...

    def watch(self, claim_id: str, wake: Wake, since: float) -> bool: ...

    def unwatch(self, claim_id: str) -> None: ...

    def watch_processes(self, claim_id: str, wake_addresses: frozenset[str]) -> None: ...


class SqliteBackend:
    """The backend of one store for one API, which the transport determines. ``clock`` and ``wall``
    are parameters, so that tests can control the time."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        transport: Transport,
        listener: Listener,
        peers: PeerRegistry,
        clock: Callable[[], float],
        wall: Callable[[], float],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._listener = listener
        self._peers = peers
        self._clock = clock
        self._wall = wall
        self._close = close
        self._contended: dict[str, None] = {}
        self.listen = listener.listen
        self.interrupt = listener.interrupt

    async def _step(self, name: str, budget: float, verb: Callable[..., T], *arguments: Any) -> T:
        def work(rows: Rows) -> tuple[T, SqlBook]:
            book = self._book(rows, name, self._clock(), self._wall())
            answer = verb(book, *arguments)
            if isinstance(answer, Busy) and arguments[0].wait:
                book.note_blockers(arguments[0].id)
            return answer, book

        answer, book = await self._transport.step(work, budget)
        self._after(book)
        if book.has_waiters is not None:
            self._mark_contended(name, book.has_waiters)
        return answer

    def _book(self, rows: Rows, name: str, now: float, wall: float) -> SqlBook:
        # The wake address is created once the file is open and known to be ours, not earlier.
        peers = self._peers
        return SqlBook(
            rows, name, now, wall, peers.wake_address(), self._transport.fences, peers.is_dead
        )

    def _after(self, book: SqlBook) -> None:
        """After the commit: wake waiters, remove dead peers' files, watch those that block ours."""
        for row, grant in book.woken:
            self._peers.wake(row.wake_address, row.id, grant)
        if book.dead_peers:
            self._peers.remove(book.dead_peers)
        if book.blockers:
            self._peers.watch_processes(*book.blockers)

    def _mark_contended(self, name: str, contended: bool) -> None:
        """Remember whether the name has waiters: there the single-statement path would fail."""
        if not contended:
            self._contended.pop(name, None)
        elif name not in self._contended:
            if len(self._contended) >= MAX_CONTENDED:
                self._contended.pop(next(iter(self._contended)), None)
            self._contended[name] = None

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        arguments = self._uncontended_arguments(claim)
        if arguments:
            fence = await self._transport.execute(CLAIM_UNCONTENDED, arguments, budget)
            if fence:
                return Granted(fence, claim.lease)
        return await self._step(claim.name, budget, law.claim, claim)

    def claim_now(self, claim: Claim, budget: float) -> Granted | None:
        """Claim an uncontended name in one statement; None: `claim` has to decide."""
        arguments = self._uncontended_arguments(claim)
        if arguments and (fence := self._transport.execute_now(CLAIM_UNCONTENDED, arguments)):
            return Granted(fence, claim.lease)
        return None

    def _uncontended_arguments(self, claim: Claim) -> tuple[Any, ...]:
        """The arguments of `CLAIM_UNCONTENDED`; empty if the name cannot be uncontended."""
        name, claim_id, who, lease, slots, take, fair, _, _ = claim
        if not 0 < take <= slots < LATCH or name in self._contended:
            return ()
        if self._transport.fences.ceiling_due:
            return ()
        ends, wake_address = self._clock() + lease, self._peers.wake_address()
        return (name, claim_id, who, take, slots, lease, fair, self._wall(), ends, wake_address)

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        def work(rows: Rows) -> list[tuple[Granted | Busy | Differs, SqlBook]]:
            done: list[tuple[Granted | Busy | Differs, SqlBook]] = []
            for claim in claims:
                done.extend(self._each(rows, [claim], law.claim))
                if not isinstance(done[-1][0], Granted):
                    break
            return done

        return self._done(await self._transport.step(work, budget))

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        def work(rows: Rows) -> list[tuple[Granted | Busy | Gone, SqlBook]] | None:
            if 0 not in fences and extend_batch(rows, claims, fences, self._clock()):
                return None
            return self._each(rows, claims, law.renew)

        done = await self._transport.step(work, budget)
        if done is None:
            return list(map(_granted, zip(fences, [claim.lease for claim in claims], strict=True)))
        return self._done(done)

    def _each(
        self, rows: Rows, claims: Sequence[Claim], verb: Callable[[SqlBook, Claim], T]
    ) -> list[tuple[T, SqlBook]]:
        """Apply a verb of the law to a batch of claims, in one transaction."""
        now, wall = self._clock(), self._wall()
        done = []
        for claim in claims:
            book = self._book(rows, claim.name, now, wall)
            answer = verb(book, claim)
            if isinstance(answer, Busy) and claim.wait:
                book.note_blockers(claim.id)
            done.append((answer, book))
        return done

    def _done(self, done: Sequence[tuple[T, SqlBook]]) -> list[T]:
        for _, book in done:
            self._after(book)
        return [answer for answer, _ in done]

    async def release(self, claim: Claim, budget: float) -> bool:
        if claim.name not in self._contended:
            arguments = (claim.name, claim.id, self._clock())
            if await self._transport.execute(RELEASE_UNCONTENDED, arguments, budget):
                return True
        return await self._step(claim.name, budget, law.release, claim)

    def release_now(self, claim: Claim, budget: float) -> bool | None:
        """Release a name without waiters in one statement; None: `release` has to decide."""
        if claim.name in self._contended:
            return None
        arguments = (claim.name, claim.id, self._clock())
        return self._transport.execute_now(RELEASE_UNCONTENDED, arguments) > 0 or None

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        def work(rows: Rows) -> list[tuple[bool, SqlBook]]:
            return self._each(rows, claims, law.release)

        return self._done(await self._transport.step(work, budget))

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        return await self._step(claim.name, budget, law.leave, claim)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        return await self._step(claim.name, budget, law.transfer, claim, attached)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return await self._step(claim.name, budget, law.shrink, claim)

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        return await self._step(name, budget, law.resize, expected, slots)

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        return self._peers.watch(claim.id, wake, since)

    def unwatch(self, claim: Claim) -> None:
        self._peers.unwatch(claim.id)

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._step(name, budget, law.look, name)

    async def names(self, prefix: str, budget: float) -> list[str]:
        def work(rows: Rows) -> list[str]:
            return [name for (name,) in rows.execute(NAMES, (self._clock(), prefix))]

        return await self._transport.step(work, budget)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        return await self._step(name, budget, law.break_hold, fence)

    def close(self) -> None:
        self._listener.close()
        self._close()

"""The verbs on the SQLite store: each is the law of slots on one name inside one transaction.

The decisions are `core.law`'s, the rows are `book`'s, the transaction is the transport's. What is
said here is only which belongs to which, and that bells are rung after the commit, never before: a
bell for a grant that was rolled back would be believed.
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
    extend_together,
)
from lockfast.stores.sqlite.fences import FenceClock

T = TypeVar("T")

CAPABILITIES = Capabilities(
    store="sqlite", across="host", survives_restart=True, frees_dead_process=True
)
MOST_CROWDED = 1000
_granted: Callable[[tuple[int, float]], Granted] = partial(tuple.__new__, Granted)  # it is hot
NAMES = """
    SELECT name FROM (SELECT name, ends FROM holds UNION ALL SELECT name, ends FROM waiters)
    WHERE ends > ?1 AND substr(name, 1, length(?2)) = ?2 GROUP BY name ORDER BY name
"""


class Transport(Protocol):
    @property
    def fences(self) -> FenceClock: ...

    async def step(self, work: Callable[[Any], T], budget: float) -> T: ...

    async def alone(self, statement: str, said: tuple[Any, ...], budget: float) -> int: ...

    def alone_now(self, statement: str, said: tuple[Any, ...]) -> int: ...


class Ear(Protocol):
    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class PeerRegistry(Protocol):
    def wake_address(self) -> str: ...

    def is_dead(self, wake_address: str) -> bool: ...

    def remove(self, wake_addresses: Sequence[str]) -> None: ...

    def wake(self, wake_address: str, claim_id: str, grant: Granted | None) -> None: ...

    def watch(self, claim_id: str, wake: Wake, since: float) -> bool: ...

    def unwatch(self, claim_id: str) -> None: ...

    def attend(self, claim_id: str, wake_addresses: frozenset[str]) -> None: ...


class SqliteBackend:
    """One store, one colour (the transport's). Clocks are given, so that nobody needs two."""

    def __init__(
        self,
        transport: Transport,
        ear: Ear,
        peers: PeerRegistry,
        clock: Callable[[], float],
        wall: Callable[[], float],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._ear = ear
        self._peers = peers
        self._clock = clock
        self._wall = wall
        self._close = close
        self._crowded: dict[str, None] = {}
        self.listen = ear.listen
        self.interrupt = ear.interrupt

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _step(self, name: str, budget: float, verb: Callable[..., T], *said: Any) -> T:
        def work(rows: Rows) -> tuple[T, SqlBook]:
            book = self._book(rows, name, self._clock(), self._wall())
            answer = verb(book, *said)
            if isinstance(answer, Busy) and said[0].wait:
                book.look_ahead(said[0].id)
            return answer, book

        answer, book = await self._transport.step(work, budget)
        self._after(book)
        if book.anybody_waits is not None:
            self._crowds(name, book.anybody_waits)
        return answer

    def _book(self, rows: Rows, name: str, now: float, wall: float) -> SqlBook:
        # Our home is made when the file is open and known to be ours, not before.
        peers = self._peers
        return SqlBook(
            rows,
            name,
            now,
            wall,
            peers.wake_address(),
            self._transport.fences,
            peers.is_dead,
        )

    def _after(self, book: SqlBook) -> None:
        """It is committed: ring, take away the files of those we buried, and watch those whose
        death would be our turn."""
        for row, grant in book.woken:
            self._peers.wake(row.wake_address, row.id, grant)
        if book.buried:
            self._peers.remove(book.buried)
        if book.in_the_way:
            self._peers.attend(*book.in_the_way)

    def _crowds(self, name: str, crowded: bool) -> None:
        """Where others wait, the statements for a lock that is alone would be tried in vain."""
        if not crowded:
            self._crowded.pop(name, None)
        elif name not in self._crowded:
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded.pop(next(iter(self._crowded)), None)
            self._crowded[name] = None

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        said = self._alone(claim)
        if said and await self._transport.alone(CLAIM_UNCONTENDED, said, budget):
            return Granted(self._transport.fences.last, claim.lease)
        return await self._step(claim.name, budget, law.claim, claim)

    def claim_now(self, claim: Claim, budget: float) -> Granted | None:
        """The same, where the lock is alone; None: ask the long way."""
        said = self._alone(claim)
        if said and self._transport.alone_now(CLAIM_UNCONTENDED, said):
            return Granted(self._transport.fences.last, claim.lease)
        return None

    def _alone(self, claim: Claim) -> tuple[Any, ...]:
        """What is said where the lock may be alone; nothing where it cannot be."""
        name, claim_id, who, lease, slots, take, fair, _, _ = claim
        if not 0 < take <= slots < LATCH or name in self._crowded:
            return ()
        if self._transport.fences.near_the_ceiling:
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
        """All of them in one transaction."""

        def work(rows: Rows) -> list[tuple[Granted | Busy | Gone, SqlBook]] | None:
            if 0 not in fences and extend_together(rows, claims, fences, self._clock()):
                return None
            return self._each(rows, claims, law.renew)

        done = await self._transport.step(work, budget)
        if done is None:
            leases = [claim.lease for claim in claims]
            return list(map(_granted, zip(fences, leases, strict=True)))
        return self._done(done)

    def _each(
        self, rows: Rows, claims: Sequence[Claim], verb: Callable[[SqlBook, Claim], T]
    ) -> list[tuple[T, SqlBook]]:
        """A verb of the law on many names, in one transaction."""
        now, wall = self._clock(), self._wall()
        done = []
        for claim in claims:
            book = self._book(rows, claim.name, now, wall)
            answer = verb(book, claim)
            if isinstance(answer, Busy) and claim.wait:
                book.look_ahead(claim.id)
            done.append((answer, book))
        return done

    def _done(self, done: Sequence[tuple[T, SqlBook]]) -> list[T]:
        for _, book in done:
            self._after(book)
        return [answer for answer, _ in done]

    async def release(self, claim: Claim, budget: float) -> bool:
        if claim.name not in self._crowded:
            said = (claim.name, claim.id, self._clock())
            if await self._transport.alone(RELEASE_UNCONTENDED, said, budget):
                return True
        return await self._step(claim.name, budget, law.release, claim)

    def release_now(self, claim: Claim, budget: float) -> bool | None:
        """The same, where nobody waits; None: ask the long way."""
        if claim.name in self._crowded:
            return None
        said = (claim.name, claim.id, self._clock())
        return self._transport.alone_now(RELEASE_UNCONTENDED, said) > 0 or None

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
        self._ear.close()
        self._close()

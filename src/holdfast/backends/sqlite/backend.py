"""The verbs on the SQLite store: each is the law of slots on one name inside one transaction.

The decisions are `core.law`'s, the rows are `book`'s, the transaction is the transport's. What is
said here is only which belongs to which, and that bells are rung after the commit, never before: a
bell for a grant that was rolled back would be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.backends.sqlite.book import CLAIM_ALONE, RELEASE_ALONE, Rows, SqlBook, extend_together
from holdfast.backends.sqlite.fences import FenceClock
from holdfast.core import law
from holdfast.core.ports import Wake
from holdfast.model import Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot

T = TypeVar("T")

CAPABILITIES = Capabilities(
    store="sqlite", across="host", survives_restart=True, frees_dead_process=True
)
NAMES = """
    SELECT name FROM (SELECT name, ends FROM holds UNION ALL SELECT name, ends FROM waiters)
    WHERE ends > ?1 AND substr(name, 1, length(?2)) = ?2 GROUP BY name ORDER BY name
"""


class Transport(Protocol):
    @property
    def fences(self) -> FenceClock: ...

    async def step(self, work: Callable[[Any], T], budget: float) -> T: ...

    async def alone(self, work: Callable[[Any], T], budget: float) -> T: ...


class Ear(Protocol):
    async def hear(self, timeout: float | None) -> None: ...

    def poke(self) -> None: ...

    def close(self) -> None: ...


class Neighbourhood(Protocol):
    def home(self) -> str: ...

    def is_dead(self, home: str) -> bool: ...

    def remove(self, homes: Sequence[str]) -> None: ...

    def ring(self, home: str, claim_id: str, grant: Granted | None) -> None: ...

    def watch(self, claim_id: str, wake: Wake) -> None: ...

    def unwatch(self, claim_id: str) -> None: ...

    def attend(self, claim_id: str, homes: frozenset[str]) -> None: ...


class SqliteBackend:
    """One store, one colour (the transport's). Clocks are given, so that nobody needs two."""

    def __init__(
        self,
        transport: Transport,
        ear: Ear,
        neighbours: Neighbourhood,
        clock: Callable[[], float],
        wall: Callable[[], float],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._ear = ear
        self._neighbours = neighbours
        self._clock = clock
        self._wall = wall
        self._close = close
        self.hear = ear.hear
        self.poke = ear.poke

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _step(self, name: str, budget: float, verb: Callable[..., T], *said: Any) -> T:
        def work(rows: Rows) -> tuple[T, SqlBook]:
            book = self._book(rows, name, self._clock(), self._wall())
            answer = verb(book, *said)
            if isinstance(answer, Busy):
                book.look_ahead(said[0].id)
            return answer, book

        answer, book = await self._transport.step(work, budget)
        self._after(book)
        return answer

    def _book(self, rows: Rows, name: str, now: float, wall: float) -> SqlBook:
        # Our home is made when the file is open and known to be ours, not before.
        neighbours = self._neighbours
        return SqlBook(
            rows, name, now, wall, neighbours.home(), self._transport.fences, neighbours.is_dead
        )

    def _after(self, book: SqlBook) -> None:
        """It is committed: ring, take away the files of those we buried, and watch those whose
        death would be our turn."""
        for row, grant in book.rung:
            self._neighbours.ring(row.home, row.id, grant)
        if book.buried:
            self._neighbours.remove(book.buried)
        if book.in_the_way:
            self._neighbours.attend(*book.in_the_way)

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        fences = self._transport.fences
        if claim.take <= claim.slots and not fences.near_the_ceiling:
            granted = await self._transport.alone(
                lambda rows: self._claim_alone(rows, claim, fences), budget
            )
            if granted is not None:
                return granted
        return await self._step(claim.name, budget, law.claim, claim)

    async def renew(self, claims: Sequence[Claim], budget: float) -> list[Granted | Busy | Gone]:
        """All of them in one transaction."""

        def work(rows: Rows) -> list[tuple[Granted | Busy | Gone, SqlBook | None]]:
            now, wall = self._clock(), self._wall()
            together = extend_together(rows, claims, now)
            if together is not None:
                return [(together[claim.id], None) for claim in claims]
            done: list[tuple[Granted | Busy | Gone, SqlBook | None]] = []
            for claim in claims:
                book = self._book(rows, claim.name, now, wall)
                answer = law.renew(book, claim)
                if isinstance(answer, Busy):
                    book.look_ahead(claim.id)
                done.append((answer, book))
            return done

        done = await self._transport.step(work, budget)
        for _, book in done:
            if book is not None:
                self._after(book)
        return [answer for answer, _ in done]

    def _claim_alone(self, rows: Rows, claim: Claim, fences: FenceClock) -> Granted | None:
        home, now = self._neighbours.home(), self._clock()
        done = rows.execute(
            CLAIM_ALONE,
            (
                claim.name,
                claim.id,
                claim.who,
                claim.take,
                claim.slots,
                claim.lease,
                claim.fair,
                self._wall(),
                now + claim.lease,
                home,
            ),
        )
        return Granted(fences.last, claim.lease) if done.rowcount else None

    async def release(self, claim: Claim, budget: float) -> bool:
        def alone(rows: Rows) -> int:
            said = (claim.name, claim.id, self._clock())
            return int(rows.execute(RELEASE_ALONE, said).rowcount)

        if await self._transport.alone(alone, budget):
            return True
        return await self._step(claim.name, budget, law.release, claim)

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        return await self._step(claim.name, budget, law.leave, claim)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        return await self._step(claim.name, budget, law.transfer, claim, attached)

    async def watch(self, claim: Claim, wake: Wake) -> None:
        self._neighbours.watch(claim.id, wake)

    def unwatch(self, claim: Claim) -> None:
        self._neighbours.unwatch(claim.id)

    async def inspect(self, name: str, budget: float) -> Snapshot:
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

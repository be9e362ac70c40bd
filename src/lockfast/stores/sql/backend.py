"""The verbs on a SQL store: which are one statement, and which are a step of the law.

A lock that is alone is claimed and released by one statement each, and who finds a plain lock taken
joins its queue by one: what such a statement needs to be true is asked in its own WHERE, and where
it is not true, nothing is done. All else is `core.law` over a `RowBook`, in two round trips: read,
decide, write if nothing happened in between (see `book`, where the argument stands).

What is said and understood is the dialect's (`Speech`), how it travels the transport's.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lockfast.core import law
from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.model import LATCH, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.sql.book import Change, ReadMore, RowBook
from lockfast.stores.sql.ports import Ear, Speech, Transport

T = TypeVar("T")

PAGE = 16  # so much of each queue is read first; eight times more, if the law asks for more
MORE = 8
MOST_CROWDED, MOST_LEFT = 1000, 4096
MOST_SHOWN = 1000  # of each queue, in the message of a time-out
LOT = 100  # claims or releases of many names that travel together
LEAST = 0.05
SWEEP_EVERY = 256  # releases
SWEEP_LOT = 1000  # names that a sweep looks at


@functools.lru_cache(maxsize=4096)
def mark_of(name: str) -> bytes:
    """What a name is known by: case, collation, trailing space and length do not matter then."""
    return hashlib.sha256(name.encode()).digest()


class RowsBackend:
    """One database, one colour (the transport's)."""

    def __init__(
        self,
        transport: Transport,
        ear: Ear,
        speech: Speech,
        where: str,
        capabilities: Capabilities,
        sweep_from: bytes,
    ) -> None:
        self._transport = transport
        self._ear = ear
        self._speech = speech
        self._where = where
        self.capabilities = capabilities
        self.transactions: Any = None  # `Transactions`; the store has them
        self._crowded: dict[str, None] = {}
        self._left: dict[str, None] = {}  # names that we released, whose rows should be there
        self._releases = 0
        self._sweep_after = sweep_from
        self.listen = ear.listen
        self.interrupt = ear.interrupt
        if not transport.suspends:
            self.claim_now = self.claim_at_once
            self.release_now = self.release_at_once

    # ---- one statement -----------------------------------------------------------------------

    async def _ask(self, request: Any, budget: float) -> Any:
        reply = self._transport.send(request, budget)
        return await reply if self._transport.suspends else reply

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        return await self._claim_until(claim, self._transport.now() + budget)

    async def _claim_until(self, claim: Claim, until: float) -> Granted | Busy | Differs:
        if self._may_be_alone(claim):
            reply = await self._ask(self._claim_alone(claim), self._rest(until))
            if fence := self._speech.taken(reply):
                return Granted(fence, claim.lease)
        return await self._claim_crowded(claim, until)

    def claim_at_once(self, claim: Claim, budget: float) -> Granted | None:
        """`claim`, where the transport does not suspend; None: ask the long way."""
        if not self._may_be_alone(claim):
            return None
        fence = self._speech.taken(self._transport.send(self._claim_alone(claim), budget))
        if fence:
            return Granted(fence, claim.lease)
        self._crowds(claim.name, True)
        return None

    def _may_be_alone(self, claim: Claim) -> bool:
        return 0 < claim.take <= claim.slots < LATCH and claim.name not in self._crowded

    def _claim_alone(self, claim: Claim) -> Any:
        """To update a row is cheaper than to find out whether it is there."""
        mark, wake_address = mark_of(claim.name), self._ear.wake_address
        if claim.name in self._left:
            self._left.pop(claim.name, None)
            return self._speech.claim_again(mark, claim, wake_address)
        return self._speech.claim_uncontended(mark, claim, wake_address)

    def _is_left(self, claim: Claim) -> None:
        """Released, and nobody waits: its row stays for a while."""
        if len(self._left) >= MOST_LEFT:
            self._left.clear()
        self._left[claim.name] = None

    async def _claim_crowded(self, claim: Claim, until: float) -> Granted | Busy | Differs:
        if claim.slots == claim.take == 1 and claim.fair and claim.wait:
            request = self._speech.join(mark_of(claim.name), claim, self._ear.wake_address)
            busy = self._speech.joined(await self._ask(request, self._rest(until)))
            if busy is not None:
                return busy
        return await self._step(claim.name, [claim.id], until, lambda book: law.claim(book, claim))

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """Those that may be alone are asked for in one round trip, each by its own statement."""
        until = self._transport.now() + budget
        answers: list[Granted | Busy | Differs] = []
        while len(answers) < len(claims):
            rest = claims[len(answers) :]
            lot = list(itertools.takewhile(self._may_be_alone, rest[:LOT]))
            if len(lot) > 1 and len({claim.name for claim in lot}) == len(lot):
                answers += await self._claim_lot(lot, until)
            if len(answers) < len(claims):
                claim = claims[len(answers)]
                answers.append(await self._claim_until(claim, until))
                if not isinstance(answers[-1], Granted):
                    break
        return answers

    async def _claim_lot(self, lot: Sequence[Claim], until: float) -> list[Granted]:
        """The first of them that were free. What was free behind one that was not is given back:
        it is not its turn yet."""
        requests = [self._claim_alone(claim) for claim in lot]
        replies = await self._ask(requests, self._rest(until))
        fences = [self._speech.taken(reply) for reply in replies]
        count = next((n for n, fence in enumerate(fences) if not fence), len(lot))
        early = [claim for claim, fence in zip(lot[count:], fences[count:], strict=True) if fence]
        if early:
            await self._release_lot(early, until)
        if count < len(lot):
            self._crowds(lot[count].name, True)
        pairs = zip(lot[:count], fences[:count], strict=True)
        return [Granted(fence, claim.lease) for claim, fence in pairs]

    async def release(self, claim: Claim, budget: float) -> bool:
        until = self._transport.now() + budget
        if claim.name not in self._crowded:
            request = self._speech.release_uncontended(mark_of(claim.name), claim)
            if self._speech.released(await self._ask(request, budget)):
                self._is_left(claim)
                self._releases += 1
                if self._releases > SWEEP_EVERY:
                    await self._sweep(until)
                return True
        return await self._step(
            claim.name, [claim.id], until, lambda book: law.release(book, claim)
        )

    def release_at_once(self, claim: Claim, budget: float) -> bool | None:
        """`release`, where nobody waits and the transport does not suspend; None: the long way."""
        if claim.name in self._crowded or self._releases >= SWEEP_EVERY:
            return None
        self._releases += 1
        request = self._speech.release_uncontended(mark_of(claim.name), claim)
        if not self._speech.released(self._transport.send(request, budget)):
            return None
        self._is_left(claim)
        return True

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        until = self._transport.now() + budget
        answers: list[bool] = []
        for start in range(0, len(claims), LOT):
            answers += await self._release_lot(claims[start : start + LOT], until)
        return answers

    async def _release_lot(self, lot: Sequence[Claim], until: float) -> list[bool]:
        """In one round trip, but for those that somebody waits for."""
        requests = [self._speech.release_uncontended(mark_of(claim.name), claim) for claim in lot]
        replies = await self._ask(requests, self._rest(until))
        answers = [self._speech.released(reply) for reply in replies]
        for number, claim in enumerate(lot):
            if not answers[number]:
                answers[number] = await self._step(
                    claim.name, [claim.id], until, functools.partial(law.release, claim=claim)
                )
        return answers

    # ---- a step of the law -------------------------------------------------------------------

    async def _step(
        self,
        name: str,
        ids: Sequence[str],
        until: float,
        verb: Callable[[RowBook], T],
        most: float = float("inf"),
    ) -> T:
        """Read, decide, and write if nobody was faster; else anew."""
        mark, limit, attempt = mark_of(name), PAGE, 0
        while True:
            reply = await self._ask(self._speech.read(mark, ids, limit), self._rest(until))
            seen = self._speech.seen(reply, limit)
            book = RowBook(seen, self._ear.wake_address, most)
            try:
                answer = verb(book)
            except ReadMore:
                limit *= MORE
                continue
            change = book.change()
            if change is None:
                return answer
            request = self._speech.write(mark, name, change, self._ear.wake_address)
            if self._speech.written(await self._ask(request, self._rest(until))):
                self._written(name, change)
                return answer
            attempt += 1
            if self._transport.now() >= until:
                raise BackendError(f"{self._where}: so many ask for {name!r} that it took too long")
            await self._transport.pause(attempt)

    def _written(self, name: str, change: Change) -> None:
        """It is there: ring those of our own process. Others were rung by what was written."""
        self._crowds(name, change.crowd)
        for row, grant in change.wakeups:
            if row.wake_address == self._ear.wake_address:
                self._ear.wakeups.wake(row.id, grant)

    def _crowds(self, name: str, crowded: bool) -> None:
        """Where others wait, the statements for a lock that is alone would be tried in vain."""
        if not crowded:
            self._crowded.pop(name, None)
        elif name not in self._crowded:
            if len(self._crowded) >= MOST_CROWDED:
                self._crowded.pop(next(iter(self._crowded)), None)
            self._crowded[name] = None

    def _rest(self, until: float) -> float:
        """A step that has begun gets to its end although connecting took the time for it."""
        return max(until - self._transport.now(), LEAST)

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        """All holds in one statement; places, and what that did not find, a step for each name."""
        until = self._transport.now() + budget
        answers: dict[int, Granted | Busy | Gone] = {}
        numbers = [number for number, fence in enumerate(fences) if fence]
        if numbers:
            chosen = [claims[number] for number in numbers]
            request = self._speech.extend(
                [mark_of(claim.name) for claim in chosen],
                chosen,
                [fences[number] for number in numbers],
            )
            for found in self._speech.extended(await self._ask(request, budget)):
                number = numbers[found]
                answers[number] = Granted(fences[number], claims[number].lease)
        by_name: dict[str, list[int]] = {}
        for number, claim in enumerate(claims):
            if number not in answers:
                by_name.setdefault(claim.name, []).append(number)
        for name, rest in by_name.items():
            told = await self._step(
                name,
                [claims[number].id for number in rest],
                until,
                lambda book, rest=rest: [law.renew(book, claims[n]) for n in rest],  # type: ignore[misc]
            )
            answers.update(zip(rest, told, strict=True))
        return [answers[number] for number in range(len(claims))]

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        until = self._transport.now() + budget
        verb = functools.partial(law.leave, claim=claim)
        return await self._step(claim.name, [claim.id], until, verb, MOST_SHOWN)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        return await self._one(claim, budget, lambda book: law.transfer(book, claim, attached))

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return await self._one(claim, budget, lambda book: law.shrink(book, claim))

    async def _one(self, claim: Claim, budget: float, verb: Callable[[RowBook], T]) -> T:
        until = self._transport.now() + budget
        return await self._step(claim.name, [claim.id], until, verb)

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        until = self._transport.now() + budget
        return await self._step(name, [], until, lambda book: law.resize(book, expected, slots))

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        return self._ear.watch(claim.name, claim.id, wake, since)

    def unwatch(self, claim: Claim) -> None:
        self._ear.unwatch(claim.id)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        until = self._transport.now() + budget
        return await self._step(name, [], until, lambda book: law.look(book, name))

    async def names(self, prefix: str, budget: float) -> list[str]:
        return sorted(self._speech.named(await self._ask(self._speech.names(prefix), budget)))

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        until = self._transport.now() + budget
        return await self._step(name, [], until, lambda book: law.break_hold(book, fence))

    # ---- what is over ------------------------------------------------------------------------

    async def _sweep(self, until: float) -> None:
        """A released name stays for a while, for its last fence; nobody may ask for it again. So
        now and then whoever releases looks at some names, the next ones each time, and takes away
        what has been over for long. It is no more than tidying: if it fails, the next one does."""
        self._releases = 0
        try:
            request = self._speech.sweep(self._sweep_after, SWEEP_LOT)
            reply = await self._ask(request, self._rest(until))
            looked, last, crowds = self._speech.swept(reply)
            self._sweep_after = last if looked >= SWEEP_LOT else b""
            for name in crowds:
                await self._step(name, [], until, RowBook.bury)
        except BackendError:
            pass

    def close(self) -> None:
        self._ear.close()
        self._transport.close()

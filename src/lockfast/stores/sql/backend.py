"""The verbs of a SQL store: single statements where possible, otherwise steps of the law.

An uncontended lock is claimed and released by one statement each, and a waiter joins the queue of a
held plain lock by one statement. Each of them has its precondition in its own WHERE clause, and
does nothing where the precondition fails. Everything else is `core.law` over a `RowBook` in two
round trips: read, decide, write if nothing changed in between (`book` explains why that is atomic).

The `Dialect` encodes requests and decodes replies; the `Transport` carries them.
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
from lockfast.stores.sql.ports import Dialect, Transport, WakeupListener

T = TypeVar("T")

PAGE = 16  # rows of each queue that are read at first
MORE = 8  # factor by which the limit grows if the law needs more
MOST_CONTENDED, MOST_RELEASED = 1000, 4096
MOST_SHOWN = 1000  # of each queue, in the message of a time-out
BATCH = 100  # claims or releases of distinct names in one round trip
LEAST = 0.05  # seconds that a request gets even if the budget is used up
SWEEP_EVERY = 256  # releases
SWEEP_BATCH = 1000  # names that one sweep scans


@functools.lru_cache(maxsize=4096)
def hash_of(name: str) -> bytes:
    """Return a name's key: a hash, so case, collation, trailing spaces and length do not matter."""
    return hashlib.sha256(name.encode()).digest()


class RowsBackend:
    """Backend of one database, for the API of its transport."""

    def __init__(
        self,
        transport: Transport,
        listener: WakeupListener,
        dialect: Dialect,
        where: str,
        capabilities: Capabilities,
        sweep_from: bytes,
    ) -> None:
        self._transport = transport
        self._listener = listener
        self._dialect = dialect
        self._where = where
        self.capabilities = capabilities
        self.transactions: Any = None  # `Transactions`; set by the store
        self._contended: dict[str, None] = {}
        # Names that this client released and whose rows probably still exist.
        self._released: dict[str, None] = {}
        self._releases = 0
        self._sweep_after = sweep_from
        self.listen = listener.listen
        self.interrupt = listener.interrupt
        if not transport.suspends:
            self.claim_now = self.claim_at_once
            self.release_now = self.release_at_once

    # ---- single statements -------------------------------------------------------------------

    async def _request(self, request: Any, budget: float) -> Any:
        reply = self._transport.send(request, budget)
        return await reply if self._transport.suspends else reply

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        return await self._claim_until(claim, self._transport.now() + budget)

    async def _claim_until(self, claim: Claim, until: float) -> Granted | Busy | Differs:
        if self._may_be_uncontended(claim):
            reply = await self._request(self._uncontended_claim(claim), self._rest(until))
            if fence := self._dialect.decode_claim(reply):
                return Granted(fence, claim.lease)
        return await self._claim_contended(claim, until)

    def claim_at_once(self, claim: Claim, budget: float) -> Granted | None:
        """`claim` without a coroutine, for a blocking transport; None: call `claim`."""
        if not self._may_be_uncontended(claim):
            return None
        reply = self._transport.send(self._uncontended_claim(claim), budget)
        fence = self._dialect.decode_claim(reply)
        if fence:
            return Granted(fence, claim.lease)
        self._set_contended(claim.name, True)
        return None

    def _may_be_uncontended(self, claim: Claim) -> bool:
        return 0 < claim.take <= claim.slots < LATCH and claim.name not in self._contended

    def _uncontended_claim(self, claim: Claim) -> Any:
        """Encode the claim: an UPDATE of a row that should exist is cheaper than an upsert."""
        name_hash, wake_address = hash_of(claim.name), self._listener.wake_address
        if claim.name in self._released:
            self._released.pop(claim.name, None)
            return self._dialect.claim_again(name_hash, claim, wake_address)
        return self._dialect.claim_uncontended(name_hash, claim, wake_address)

    def _remember_released(self, claim: Claim) -> None:
        """Note that the row of a released, uncontended name stays for a while."""
        if len(self._released) >= MOST_RELEASED:
            self._released.clear()
        self._released[claim.name] = None

    async def _claim_contended(self, claim: Claim, until: float) -> Granted | Busy | Differs:
        if claim.slots == claim.take == 1 and claim.fair and claim.wait:
            request = self._dialect.join(hash_of(claim.name), claim, self._listener.wake_address)
            busy = self._dialect.decode_join(await self._request(request, self._rest(until)))
            if busy is not None:
                return busy
        return await self._step(claim.name, [claim.id], until, lambda book: law.claim(book, claim))

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """Claim names that may be uncontended in one round trip, each by its own statement."""
        until = self._transport.now() + budget
        answers: list[Granted | Busy | Differs] = []
        while len(answers) < len(claims):
            rest = claims[len(answers) :]
            batch = list(itertools.takewhile(self._may_be_uncontended, rest[:BATCH]))
            if len(batch) > 1 and len({claim.name for claim in batch}) == len(batch):
                answers += await self._claim_distinct(batch, until)
            if len(answers) < len(claims):
                claim = claims[len(answers)]
                answers.append(await self._claim_until(claim, until))
                if not isinstance(answers[-1], Granted):
                    break
        return answers

    async def _claim_distinct(self, batch: Sequence[Claim], until: float) -> list[Granted]:
        """Claim distinct names and return the grants before the first name that was not free. Names
        granted behind it are released again: claims must be granted in order."""
        requests = [self._uncontended_claim(claim) for claim in batch]
        replies = await self._request(requests, self._rest(until))
        fences = [self._dialect.decode_claim(reply) for reply in replies]
        count = next((n for n, fence in enumerate(fences) if not fence), len(batch))
        early = [claim for claim, fence in zip(batch[count:], fences[count:], strict=True) if fence]
        if early:
            await self._release_distinct(early, until)
        if count < len(batch):
            self._set_contended(batch[count].name, True)
        pairs = zip(batch[:count], fences[:count], strict=True)
        return [Granted(fence, claim.lease) for claim, fence in pairs]

    async def release(self, claim: Claim, budget: float) -> bool:
        until = self._transport.now() + budget
        if claim.name not in self._contended:
            request = self._dialect.release_uncontended(hash_of(claim.name), claim)
            if self._dialect.decode_release(await self._request(request, budget)):
                self._remember_released(claim)
                self._releases += 1
                if self._releases > SWEEP_EVERY:
                    await self._sweep(until)
                return True
        return await self._step(
            claim.name, [claim.id], until, lambda book: law.release(book, claim)
        )

    def release_at_once(self, claim: Claim, budget: float) -> bool | None:
        """`release` without a coroutine, for a blocking transport and an uncontended name; None:
        call `release`."""
        if claim.name in self._contended or self._releases >= SWEEP_EVERY:
            return None
        self._releases += 1
        request = self._dialect.release_uncontended(hash_of(claim.name), claim)
        if not self._dialect.decode_release(self._transport.send(request, budget)):
            return None
        self._remember_released(claim)
        return True

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        until = self._transport.now() + budget
        answers: list[bool] = []
        for start in range(0, len(claims), BATCH):
            answers += await self._release_distinct(claims[start : start + BATCH], until)
        return answers

    async def _release_distinct(self, batch: Sequence[Claim], until: float) -> list[bool]:
        """Release in one round trip, except for contended names, which take a step each."""
        requests = [
            self._dialect.release_uncontended(hash_of(claim.name), claim) for claim in batch
        ]
        replies = await self._request(requests, self._rest(until))
        answers = [self._dialect.decode_release(reply) for reply in replies]
        for number, claim in enumerate(batch):
            if not answers[number]:
                answers[number] = await self._step(
                    claim.name, [claim.id], until, functools.partial(law.release, claim=claim)
                )
        return answers

    # ---- steps of the law --------------------------------------------------------------------

    async def _step(
        self,
        name: str,
        ids: Sequence[str],
        until: float,
        verb: Callable[[RowBook], T],
        most: float = float("inf"),
    ) -> T:
        """Read, decide, and write if the version is unchanged; otherwise start over."""
        name_hash, limit, attempt = hash_of(name), PAGE, 0
        while True:
            reply = await self._request(
                self._dialect.read(name_hash, ids, limit), self._rest(until)
            )
            state = self._dialect.decode_read(reply, limit)
            book = RowBook(state, self._listener.wake_address, most)
            try:
                answer = verb(book)
            except ReadMore:
                limit *= MORE
                continue
            change = book.change()
            if change is None:
                return answer
            request = self._dialect.write(name_hash, name, change, self._listener.wake_address)
            if self._dialect.decode_write(await self._request(request, self._rest(until))):
                self._written(name, change)
                return answer
            attempt += 1
            if self._transport.now() >= until:
                raise BackendError(
                    f"{self._where}: {name!r} is so contended that other clients changed it "
                    f"{attempt} times before this request could write"
                )
            await self._transport.pause(attempt)

    def _written(self, name: str, change: Change) -> None:
        """Wake the waiters of this client; those of others were notified by the write itself."""
        self._set_contended(name, change.contended)
        for row, grant in change.wakeups:
            if row.wake_address == self._listener.wake_address:
                self._listener.wakeups.deliver(row.id, grant)

    def _set_contended(self, name: str, contended: bool) -> None:
        """Remember contended names: the statements for uncontended ones would fail on them."""
        if not contended:
            self._contended.pop(name, None)
        elif name not in self._contended:
            if len(self._contended) >= MOST_CONTENDED:
                self._contended.pop(next(iter(self._contended)), None)
            self._contended[name] = None

    def _rest(self, until: float) -> float:
        """Return the remaining budget, at least `LEAST`: a step that has begun may finish even if
        connecting used up its time."""
        return max(until - self._transport.now(), LEAST)

    # ---- renewals and waiters ----------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        """Renew all holds in one request; waiters, and holds not found by it, by a step per
        name."""
        until = self._transport.now() + budget
        answers: dict[int, Granted | Busy | Gone] = {}
        numbers = [number for number, fence in enumerate(fences) if fence]
        if numbers:
            chosen = [claims[number] for number in numbers]
            request = self._dialect.extend(
                [hash_of(claim.name) for claim in chosen],
                chosen,
                [fences[number] for number in numbers],
            )
            for found in self._dialect.decode_extend(await self._request(request, budget)):
                number = numbers[found]
                answers[number] = Granted(fences[number], claims[number].lease)
        by_name: dict[str, list[int]] = {}
        for number, claim in enumerate(claims):
            if number not in answers:
                by_name.setdefault(claim.name, []).append(number)
        for name, rest in by_name.items():
            renewed = await self._step(
                name,
                [claims[number].id for number in rest],
                until,
                lambda book, rest=rest: [law.renew(book, claims[n]) for n in rest],  # type: ignore[misc]
            )
            answers.update(zip(rest, renewed, strict=True))
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
        return self._listener.watch(claim.name, claim.id, wake, since)

    def unwatch(self, claim: Claim) -> None:
        self._listener.unwatch(claim.id)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        until = self._transport.now() + budget
        return await self._step(name, [], until, lambda book: law.look(book, name))

    async def names(self, prefix: str, budget: float) -> list[str]:
        reply = await self._request(self._dialect.names(prefix), budget)
        return sorted(self._dialect.decode_names(reply))

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        until = self._transport.now() + budget
        return await self._step(name, [], until, lambda book: law.break_hold(book, fence))

    # ---- sweeping ----------------------------------------------------------------------------

    async def _sweep(self, until: float) -> None:
        """Delete rows that ended long ago. A released name keeps its row for a while, for its last
        fence, and may never be claimed again. So every `SWEEP_EVERY` releases a client scans the
        next `SWEEP_BATCH` names. A sweep that fails is left to the next one."""
        self._releases = 0
        try:
            request = self._dialect.sweep(self._sweep_after, SWEEP_BATCH)
            reply = await self._request(request, self._rest(until))
            scanned, last, contended_names = self._dialect.decode_sweep(reply)
            self._sweep_after = last if scanned >= SWEEP_BATCH else b""
            for name in contended_names:
                await self._step(name, [], until, RowBook.remove_dead)
        except BackendError:
            pass

    def close(self) -> None:
        self._listener.close()
        self._transport.close()

"""The verbs of a SQL store: single statements where possible, otherwise steps of the law.

An uncontended lock is claimed and released by one statement each, and a waiter joins the queue of a
held plain lock by one statement. Each of them has its precondition in its own WHERE clause, and
does nothing where the precondition fails. Everything else is `core.law` over a `RowBook` in two
round trips: read, decide, write if nothing changed in between (`book` explains why that is atomic).

The dialect encodes requests and decodes replies; the channel sends them. A verb is a generator that
yields what the channel returned for a request: the reply, or an awaitable of it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lockfast.core import law
from lockfast.core.ports import Store, Wake
from lockfast.errors import BackendError
from lockfast.model import LATCH, Busy, Capabilities, Claim, Differs, Gone, Granted
from lockfast.stores.sql.book import Change, ReadMore, RowBook, hash_of
from lockfast.stores.sql.channel import LEAST, Channel, backoff, same
from lockfast.stores.sql.listeners import Listener
from lockfast.stores.sql.transactions import Transactions, Wanted
from lockfast.stores.steps import Steps, perform, perform_soon

if TYPE_CHECKING:
    from lockfast.stores.sql.mysql.dialect import MySQLDialect
    from lockfast.stores.sql.postgres.dialect import PostgresDialect

T = TypeVar("T")
Answer = Granted | Busy | Differs

PAGE = 16  # rows of each queue that are read at first
MORE = 8  # factor by which the limit grows if the law needs more
MOST_CONTENDED, MOST_RELEASED, MOST_UNANSWERED = 1000, 4096, 1000
MOST_SHOWN = 1000  # of each queue, in the message of a time-out
BATCH = 100  # claims or releases of distinct names in one round trip
SWEEP_EVERY = 256  # releases
SWEEP_BATCH = 1000  # names that one sweep scans


class RowsStore(Store):
    """Store of one database, for the API of its channel."""

    def __init__(
        self,
        channel: Channel,
        listener: Listener,
        dialect: PostgresDialect | MySQLDialect,
        where: str,
        capabilities: Capabilities,
        sweep_from: bytes,
        transactions: Transactions | None = None,
    ) -> None:
        self.suspends = channel.suspends
        self._channel = channel
        self._listener = listener
        self._dialect = dialect
        self._where, self._capabilities = where, capabilities
        self._transactions = transactions
        self._contended: dict[str, None] = {}
        # Names that this client released and whose rows probably still exist.
        self._released: dict[str, None] = {}
        # Ids of claims that were sent in a batch whose reply was lost.
        self._unanswered: dict[str, None] = {}
        self._releases, self._sweep_after = 0, sweep_from

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _run(self, steps: Steps[Any]) -> Any:
        return perform_soon(steps, same) if self.suspends else perform(steps, same)

    def _rest(self, until: float) -> float:
        """Return the remaining budget, at least `LEAST`: a step that has begun may finish even if
        connecting used up its time."""
        return max(until - self._channel.now(), LEAST)

    # ---- claims: single statements -------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Any:
        until = self._channel.now() + budget
        if len(claims) == 1 and not self.suspends and self._may_be_uncontended(claims[0]):
            # The common case without steps, which would add a tenth to the CPU time of a cycle.
            claim = claims[0]
            reply = self._channel.send(self._uncontended_claim(claim), budget)
            if fence := self._dialect.decode_claim(reply):
                return [Granted(fence, claim.lease)]
            self._set_contended(claim.name, True)
        return self._run(self._claiming(claims, until))

    def _claiming(self, claims: Sequence[Claim], until: float) -> Steps[list[Answer]]:
        """Claim names that may be uncontended in one round trip, each by its own statement."""
        answers: list[Answer] = []
        while len(answers) < len(claims):
            if len(claims) > 1:
                rest = claims[len(answers) : len(answers) + BATCH]
                batch = list(itertools.takewhile(self._may_be_uncontended, rest))
                if len(batch) > 1 and len({claim.name for claim in batch}) == len(batch):
                    answers += yield from self._claiming_distinct(batch, until)
            if len(answers) < len(claims):
                claim = claims[len(answers)]
                answers.append((yield from self._claiming_one(claim, until)))
                if not isinstance(answers[-1], Granted):
                    break
        if self._unanswered:
            yield from self._forgetting(claims, len(answers), until)
        return answers

    def _claiming_one(self, claim: Claim, until: float) -> Steps[Answer]:
        channel = self._channel
        if self._may_be_uncontended(claim):
            reply = yield channel.send(self._uncontended_claim(claim), self._rest(until))
            if fence := self._dialect.decode_claim(reply):
                return Granted(fence, claim.lease)
            self._set_contended(claim.name, True)
        if claim.slots == claim.take == 1 and claim.fair and claim.wait:
            request = self._dialect.join(hash_of(claim.name), claim, self._listener.wake_address)
            busy = self._dialect.decode_join((yield channel.send(request, self._rest(until))))
            if busy is not None:
                return busy
        verb = functools.partial(law.claim, claim=claim)
        return (yield from self._stepping(claim.name, [claim.id], until, verb))

    def _may_be_uncontended(self, claim: Claim) -> bool:
        return 0 < claim.take <= claim.slots < LATCH and claim.name not in self._contended

    def _uncontended_claim(self, claim: Claim) -> Any:
        """Encode the claim: an UPDATE of a row that should exist is cheaper than an upsert."""
        name_hash, wake_address = hash_of(claim.name), self._listener.wake_address
        if claim.name in self._released:
            self._released.pop(claim.name, None)
            return self._dialect.claim_again(name_hash, claim, wake_address)
        return self._dialect.claim_uncontended(name_hash, claim, wake_address)

    def _claiming_distinct(self, batch: Sequence[Claim], until: float) -> Steps[list[Granted]]:
        """Claim distinct names and return the grants before the first name that was not free. Names
        granted behind it are released again: claims must be granted in order."""
        requests = [self._uncontended_claim(claim) for claim in batch]
        try:
            replies = yield self._channel.send(requests, self._rest(until))
        except BackendError:
            if len(self._unanswered) < MOST_UNANSWERED:
                self._unanswered.update(dict.fromkeys(claim.id for claim in batch))
            raise
        fences = [self._dialect.decode_claim(reply) for reply in replies]
        count = next((n for n, fence in enumerate(fences) if not fence), len(batch))
        early = [claim for claim, fence in zip(batch[count:], fences[count:], strict=True) if fence]
        if early:
            try:
                yield from self._releasing_distinct(early, until)
            except BackendError:
                self._unanswered.update(dict.fromkeys(claim.id for claim in early))
                raise
        if count < len(batch):
            self._set_contended(batch[count].name, True)
        pairs = zip(batch[:count], fences[:count], strict=True)
        return [Granted(fence, claim.lease) for claim, fence in pairs]

    def _forgetting(self, claims: Sequence[Claim], count: int, until: float) -> Steps[None]:
        """Release what an unanswered batch may have granted behind the first claim that has to
        wait now: otherwise the caller would wait for its own lease to end."""
        behind = [claim for claim in claims[count:] if claim.id in self._unanswered]
        if behind:
            yield from self._releasing_distinct(behind, until)
        for claim in claims:
            self._unanswered.pop(claim.id, None)

    # ---- releases ------------------------------------------------------------------------------

    def release(self, claims: Sequence[Claim], budget: float) -> Any:
        until = self._channel.now() + budget
        if len(claims) == 1 and not self.suspends and self._releases < SWEEP_EVERY:
            claim = claims[0]
            if claim.name not in self._contended:
                request = self._dialect.release_uncontended(hash_of(claim.name), claim)
                if self._dialect.decode_release(self._channel.send(request, budget)):
                    self._remember_released(claim)
                    return [True]
        return self._run(self._releasing(claims, until))

    def _releasing(self, claims: Sequence[Claim], until: float) -> Steps[list[bool]]:
        answers: list[bool] = []
        if len(claims) == 1:
            answers.append((yield from self._releasing_one(claims[0], until)))
        else:
            for start in range(0, len(claims), BATCH):
                batch = claims[start : start + BATCH]
                answers += yield from self._releasing_distinct(batch, until)
        if self._releases >= SWEEP_EVERY:
            yield from self._sweeping(until)
        return answers

    def _releasing_one(self, claim: Claim, until: float) -> Steps[bool]:
        if claim.name not in self._contended:
            request = self._dialect.release_uncontended(hash_of(claim.name), claim)
            reply = yield self._channel.send(request, self._rest(until))
            if self._dialect.decode_release(reply):
                self._remember_released(claim)
                return True
        verb = functools.partial(law.release, claim=claim)
        return (yield from self._stepping(claim.name, [claim.id], until, verb))

    def _remember_released(self, claim: Claim) -> None:
        """Note that the row of a released, uncontended name stays for a while."""
        self._releases += 1
        if len(self._released) >= MOST_RELEASED:
            self._released.clear()
        self._released[claim.name] = None

    def _releasing_distinct(self, batch: Sequence[Claim], until: float) -> Steps[list[bool]]:
        """Release in one round trip, except for contended names, which take a step each."""
        requests = [
            self._dialect.release_uncontended(hash_of(claim.name), claim) for claim in batch
        ]
        replies = yield self._channel.send(requests, self._rest(until))
        answers = [self._dialect.decode_release(reply) for reply in replies]
        for number, claim in enumerate(batch):
            if not answers[number]:
                verb = functools.partial(law.release, claim=claim)
                answers[number] = yield from self._stepping(claim.name, [claim.id], until, verb)
        return answers

    # ---- steps of the law --------------------------------------------------------------------

    def _step(
        self, name: str, ids: Sequence[str], budget: float, verb: Callable[..., T], **terms: Any
    ) -> Any:
        until = self._channel.now() + budget
        return self._run(self._stepping(name, ids, until, functools.partial(verb, **terms)))

    def _stepping(
        self,
        name: str,
        ids: Sequence[str],
        until: float,
        verb: Callable[[RowBook], T],
        most: float = float("inf"),
    ) -> Steps[T]:
        """Read, decide, and write if the version is unchanged; otherwise start over."""
        name_hash, limit, attempt = hash_of(name), PAGE, 0
        channel, dialect = self._channel, self._dialect
        while True:
            reply = yield channel.send(dialect.read(name_hash, ids, limit), self._rest(until))
            book = RowBook(dialect.decode_read(reply, limit), self._listener.wake_address, most)
            try:
                answer = verb(book)
            except ReadMore:
                limit *= MORE
                continue
            change = book.change()
            if change is None:
                return answer
            request = dialect.write(name_hash, name, change, self._listener.wake_address)
            if dialect.decode_write((yield channel.send(request, self._rest(until)))):
                self._written(name, change)
                return answer
            attempt += 1
            if channel.now() >= until:
                raise BackendError(
                    f"{self._where}: {name!r} is so contended that other clients changed it "
                    f"{attempt} times before this request could write"
                )
            yield channel.pause(backoff(attempt))

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

    # ---- renewals and waiters ----------------------------------------------------------------

    def renew(self, claims: Sequence[Claim], fences: Sequence[int], budget: float) -> Any:
        return self._run(self._renewing(claims, fences, self._channel.now() + budget))

    def _renewing(
        self, claims: Sequence[Claim], fences: Sequence[int], until: float
    ) -> Steps[list[Granted | Busy | Gone]]:
        """Renew all holds in one request; waiters, and holds not found by it, by a step per
        name."""
        answers: dict[int, Granted | Busy | Gone] = {}
        holds = [number for number, fence in enumerate(fences) if fence]
        if holds:
            holds.sort(key=lambda number: hash_of(claims[number].name))
            request = self._dialect.extend(
                [(hash_of(claims[n].name), claims[n], fences[n]) for n in holds]
            )
            reply = yield self._channel.send(request, self._rest(until))
            for found in self._dialect.decode_extend(reply):
                answers[holds[found]] = Granted(fences[holds[found]], claims[holds[found]].lease)
        by_name: dict[str, list[int]] = {}
        for number, claim in enumerate(claims):
            if number not in answers:
                by_name.setdefault(claim.name, []).append(number)
        for name, rest in by_name.items():
            chosen = [claims[number] for number in rest]
            renewed = yield from self._stepping(
                name, [claim.id for claim in chosen], until, functools.partial(_renew_all, chosen)
            )
            answers.update(zip(rest, renewed, strict=True))
        return [answers[number] for number in range(len(claims))]

    def leave(self, claim: Claim, budget: float) -> Any:
        until = self._channel.now() + budget
        verb = functools.partial(law.leave, claim=claim)
        return self._run(self._stepping(claim.name, [claim.id], until, verb, MOST_SHOWN))

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Any:
        terms = {"claim": claim, "attached": attached}
        return self._step(claim.name, [claim.id], budget, law.transfer, **terms)

    def shrink(self, claim: Claim, budget: float) -> Any:
        return self._step(claim.name, [claim.id], budget, law.shrink, claim=claim)

    def resize(self, name: str, expected: int, slots: int, budget: float) -> Any:
        return self._step(name, [], budget, law.resize, expected=expected, slots=slots)

    def watch(self, claim: Claim, wake: Wake, since: float) -> Any:
        return self._run(_known(self._listener.watch(claim.name, claim.id, wake, since)))

    def unwatch(self, claim: Claim) -> None:
        self._listener.unwatch(claim.id)

    def listen(self, timeout: float | None) -> Any:
        self._listener.listen(timeout)
        return self._run(_known(None))

    def interrupt(self) -> None:
        self._listener.interrupt()

    async def transaction(
        self, full_name: str, name: str, connection: object, timeout: float | None, advisory: bool
    ) -> int:
        assert self._transactions is not None, "given by the endpoint"
        wanted = Wanted(hash_of(full_name), full_name, name, timeout)
        fence = self._transactions.take(wanted, connection, advisory)
        return await fence if self.suspends else fence  # type: ignore[no-any-return]

    # ---- for operators -----------------------------------------------------------------------

    def inspect(self, name: str, budget: float, layout: str = "") -> Any:
        until, look = self._channel.now() + budget, functools.partial(law.look, name=name)
        return self._run(self._stepping(name, [], until, look))

    def names(self, prefix: str, budget: float) -> Any:
        return self._run(self._naming(prefix, budget))

    def _naming(self, prefix: str, budget: float) -> Steps[list[str]]:
        reply = yield self._channel.send(self._dialect.names(prefix), budget)
        return sorted(self._dialect.decode_names(reply))

    def break_hold(self, name: str, fence: int, budget: float) -> Any:
        return self._step(name, [], budget, law.break_hold, fence=fence)

    # ---- sweeping ----------------------------------------------------------------------------

    def _sweeping(self, until: float) -> Steps[None]:
        """Delete rows that ended long ago. A released name keeps its row for a while, for its last
        fence, and may never be claimed again. So every `SWEEP_EVERY` releases a client scans the
        next `SWEEP_BATCH` names. A sweep that fails is left to the next one."""
        self._releases = 0
        try:
            request = self._dialect.sweep(self._sweep_after, SWEEP_BATCH)
            reply = yield self._channel.send(request, self._rest(until))
            scanned, last, contended_names = self._dialect.decode_sweep(reply)
            self._sweep_after = last if scanned >= SWEEP_BATCH else b""
            for name in contended_names:
                yield from self._stepping(name, [], until, RowBook.remove_dead)
        except BackendError:
            pass

    def close(self) -> None:
        self._listener.close()
        self._channel.close()


def _renew_all(claims: Sequence[Claim], book: RowBook) -> list[Granted | Busy | Gone]:
    return [law.renew(book, claim) for claim in claims]


def _known(answer: T) -> Steps[T]:
    """Return an answer that needs no request."""
    return answer
    yield

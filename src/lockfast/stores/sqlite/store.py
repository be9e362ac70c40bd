"""The verbs on the SQLite store: each applies the law of slots to one name in one transaction.

`core.law` decides, `book` reads and writes the rows, `file` runs the transaction. This module
connects the three, and sends wake-ups after the commit, never before: a waiter would trust a
wake-up with a grant that was rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from lockfast.core import law
from lockfast.core.ports import Answer, Reply, Signal, Store, Wake
from lockfast.errors import BackendError
from lockfast.model import LATCH, Busy, Capabilities, Claim, Gone, Granted, Snapshot
from lockfast.stores.sqlite.book import (
    CLAIM_TAKEN,
    CLAIM_UNCONTENDED,
    NAMES,
    RELEASE_UNCONTENDED,
    Rows,
    SqlBook,
    extend_batch,
    process_of,
)
from lockfast.stores.sqlite.file import File, Locked
from lockfast.stores.sqlite.inboxes import Inboxes

T = TypeVar("T")
K = TypeVar("K", Claim, str)

CAPABILITIES = Capabilities(
    store="sqlite", across="host", survives_restart=True, frees_dead_process=True
)
MAX_CONTENDED = 1000
_granted: Callable[[tuple[int, float]], Granted] = partial(tuple.__new__, Granted)  # a hot path


class SqliteStore(Store):
    """The store of one client, for one API."""

    capabilities = CAPABILITIES

    def __init__(self, file: File, inboxes: Inboxes, *, suspends: bool) -> None:
        self.suspends = suspends
        self._file = file
        self.inboxes = inboxes
        self._pipe = inboxes.new_pipe()
        self._contended: dict[str, None] = {}

    def _do(self, budget: float, step: Callable[..., T], *arguments: Any) -> Reply[T]:
        """Run a step, which takes some 20 µs; again while another process is inside a transaction.
        A task suspends only for that: the event loop must not wait for other processes."""
        if self.suspends:
            return self._file.attempt_soon(partial(step, *arguments), budget)
        try:
            return step(*arguments)
        except Locked:
            return self._file.attempt(partial(step, *arguments), budget)

    def _apply(
        self, verb: Callable[[SqlBook, K], T], subjects: Sequence[K], *, all_or_none: bool = False
    ) -> list[T]:
        """Apply a verb of the law to claims or names, in one transaction; with ``all_or_none`` up
        to the first claim that is not granted."""
        waits: list[tuple[Claim, str | None, list[str]]] = []

        def work(rows: Rows) -> list[tuple[T, SqlBook]]:
            now, wall = self._file.now(), self._file.wall()
            done: list[tuple[T, SqlBook]] = []
            waits.clear()
            for subject in subjects:
                name, claim_id = (subject, "") if isinstance(subject, str) else subject[:2]
                # The address is created once the file is open and known to be ours, not earlier.
                address = self.inboxes.address_of(claim_id, thread=not self.suspends)
                fences, is_dead = self._file.fences, self.inboxes.peers.is_dead
                book = SqlBook(rows, name, now, wall, address, fences, is_dead)
                answer = verb(book, subject)
                done.append((answer, book))
                if isinstance(answer, Busy) and isinstance(subject, Claim) and subject.wait:
                    holders = [row.wake_address for row in book.holds.values()]
                    waits.append((subject, book.predecessor(claim_id), holders))
                if all_or_none and not isinstance(answer, Granted):
                    break
            return done

        done = self._file.step(work)
        for _, book in done:
            for row, grant in book.woken:
                self.inboxes.wake(row.wake_address, row.id, grant)
        for _, book in done:
            if book.dead_peers:
                self.inboxes.peers.remove(book.dead_peers)
            if book.has_waiters is not None:
                self._mark_contended(book.name, book.has_waiters)
        for wait in waits:
            self._wait_for(*wait)
        return [answer for answer, _ in done]

    def _mark_contended(self, name: str, contended: bool) -> None:
        """Remember whether the name has waiters: then no single statement can serve it."""
        if not contended:
            self._contended.pop(name, None)
        elif name not in self._contended:
            if len(self._contended) >= MAX_CONTENDED:
                self._contended.pop(next(iter(self._contended), name), None)
            self._contended[name] = None

    # ---- claim, renew, release ---------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[Answer]]:
        return self._do(budget, self._claim, claims)

    def _claim(self, claims: Sequence[Claim]) -> list[Answer]:
        if len(claims) == 1 and (answer := self._claim_at_once(claims[0])) is not None:
            return [answer]
        return self._apply(law.claim, claims, all_or_none=True)

    def _claim_at_once(self, claim: Claim) -> Answer | None:
        """Claim in one statement, in the common cases; None: the law has to decide."""
        name, claim_id, who, lease, slots, take, fair, wait, _ = claim
        file = self._file
        if not 0 < take <= slots < LATCH or file.fences.ceiling_due:
            return None
        address = self.inboxes.address_of(claim_id, thread=not self.suspends)
        now, wall = file.now(), file.wall()
        if name not in self._contended:
            row = (name, claim_id, who, take, slots, lease, fair, wall, now + lease, address)
            fence = file.execute(CLAIM_UNCONTENDED, row, True)
            if fence is not None:
                return _granted((fence, lease))
        if wait:
            ends = now + law.WAITER_LEASE
            row = (name, claim_id, who, take, slots, lease, fair, wall, ends, address)
            noted = file.execute(CLAIM_TAKEN, (*row, now), True)
            if noted is not None:
                self._mark_contended(name, True)
                fence, ends, addresses = noted.split(" ")
                *holders, predecessor = addresses.split(",")
                if self._wait_for(claim, predecessor, holders):
                    rest = law.REFRESH if predecessor else max(float(ends) - now, 0.0)
                    return Busy(min(rest, law.REFRESH), int(fence))
        return None

    def _wait_for(self, claim: Claim, predecessor: str | None, holders: Iterable[str]) -> bool:
        """Watch the processes whose death advances this waiter: that of the waiter before it, which
        holds next; for the first and for unfair ones, those of the holders. So one death wakes one
        waiter. False: one of them has died already."""
        peers = self.inboxes.peers
        holding = {process_of(address) for address in holders}
        others = {process_of(predecessor)} if predecessor else holding
        nobody = {peers.wake_address(), law.DETACHED}
        self.inboxes.watch_processes(claim.id, frozenset(others - nobody))
        return not any(map(peers.is_dead, (others | holding) - nobody))

    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Reply[Sequence[Granted | Busy | Gone | BackendError]]:
        return self._do(budget, self._renew, claims, fences)

    def _renew(
        self, claims: Sequence[Claim], fences: Sequence[int]
    ) -> Sequence[Granted | Busy | Gone]:
        def extend(rows: Rows) -> bool:
            return extend_batch(rows, claims, fences, self._file.now())

        if 0 in fences or not self._file.step(extend):
            return self._apply(law.renew, claims)
        return list(map(_granted, zip(fences, [claim.lease for claim in claims], strict=True)))

    def release(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[bool]]:
        return self._do(budget, self._release, claims)

    def _release(self, claims: Sequence[Claim]) -> list[bool]:
        if len(claims) == 1 and (claim := claims[0]).name not in self._contended:
            row = (claim.name, claim.id, self._file.now())
            if self._file.execute(RELEASE_UNCONTENDED, row):
                return [True]
        return self._apply(law.release, claims)

    # ---- the other verbs ---------------------------------------------------------------------

    def leave(self, claim: Claim, budget: float) -> Reply[Snapshot]:
        return self._do(budget, self._one, law.leave, claim)

    def _one(self, verb: Callable[[SqlBook, K], T], subject: K) -> T:
        return self._apply(verb, [subject])[0]

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Reply[Granted | Gone]:
        return self._do(budget, self._one, partial(law.transfer, attached=attached), claim)

    def shrink(self, claim: Claim, budget: float) -> Reply[Granted | Gone]:
        return self._do(budget, self._one, law.shrink, claim)

    def resize(self, name: str, expected: int, slots: int, budget: float) -> Reply[int]:
        def verb(book: SqlBook, name: str) -> int:
            return law.resize(book, expected, slots)

        return self._do(budget, self._one, verb, name)

    def inspect(self, name: str, budget: float, layout: str = "") -> Reply[Snapshot]:
        return self._do(budget, self._one, law.look, name)

    def names(self, prefix: str, budget: float) -> Reply[list[str]]:
        return self._do(budget, self._names, prefix)

    def _names(self, prefix: str) -> list[str]:
        return [name for (name,) in self._file.read(NAMES, (self._file.now(), prefix))]

    def break_hold(self, name: str, fence: int, budget: float) -> Reply[bool]:
        def verb(book: SqlBook, name: str) -> bool:
            return law.break_hold(book, fence)

        return self._do(budget, self._one, verb, name)

    # ---- wake-ups ----------------------------------------------------------------------------

    def signal(self, claim: Claim) -> Signal | None:
        return None if self.suspends else self.inboxes.thread_inbox()

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        return self._do(0.0, self.inboxes.watch, claim.id, wake, since, not self.suspends)

    def unwatch(self, claim: Claim) -> None:
        self.inboxes.unwatch(claim.id)

    def listen(self, timeout: float | None) -> Reply[None]:
        return self._do(0.0, self.inboxes.listen, self._pipe, timeout)

    def interrupt(self) -> None:
        self._pipe.interrupt()

    def close(self) -> None:
        """Close the connection and unregister; a later call opens both again."""
        self._pipe.interrupt()  # a thread that listens goes on
        self._file.close()
        self.inboxes.close()

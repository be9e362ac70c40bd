"""Atomicity: of simultaneous claims one is granted, and a step that lost the race writes
nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockfast.core import law
from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.stores.sql.book import RowBook, hash_of
from lockfast.stores.sql.mysql import schema

BUDGET = 5.0


def claimed(name: str, number: int, **terms: Any) -> Claim:
    return Claim(name, f"id-{number}", f"host {number} t", 30.0, **terms)


def simultaneously(*works: Any) -> list[Any]:
    """Run each in a thread of its own, all at the same moment."""
    barrier = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def work(number: int) -> None:
        barrier.wait()
        answers[number] = works[number]()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.fixture
def stores(database):
    made = [database.store() for _ in range(4)]
    for store in made:
        store.names("", BUDGET)  # connects, and creates the tables
    yield made
    for store in made:
        store.close()


def test_one_of_four_simultaneous_claims_of_a_new_name_is_granted(stores):
    for attempt in range(30):
        claims = [claimed(f"new-{attempt}", number, wait=False) for number in range(4)]
        answers = simultaneously(
            *[
                lambda store=store, claim=claim: store.claim((claim,), BUDGET)[0]
                for store, claim in zip(stores, claims, strict=True)
            ]
        )
        assert sum(isinstance(answer, Granted) for answer in answers) == 1, answers


def test_one_of_four_simultaneous_claims_of_a_released_name_is_granted_under_a_higher_fence(
    stores,
):
    last = 0
    for _ in range(30):
        claims = [claimed("old", number, wait=False) for number in range(4)]
        answers = simultaneously(
            *[
                lambda store=store, claim=claim: store.claim((claim,), BUDGET)[0]
                for store, claim in zip(stores, claims, strict=True)
            ]
        )
        (won,) = [n for n, answer in enumerate(answers) if isinstance(answer, Granted)]
        assert answers[won].fence > last
        last = answers[won].fence
        assert stores[won].release((claims[won],), BUDGET)[0]


def test_a_semaphore_never_has_more_holders_than_slots(stores):
    for attempt in range(20):
        claims = [claimed(f"three-{attempt}", number, slots=3, wait=False) for number in range(4)]
        answers = simultaneously(
            *[
                lambda store=store, claim=claim: store.claim((claim,), BUDGET)[0]
                for store, claim in zip(stores, claims, strict=True)
            ]
        )
        assert sum(isinstance(answer, Granted) for answer in answers) == 3, answers
        assert len(stores[0].inspect(f"three-{attempt}", BUDGET).holders) == 3


def test_a_step_that_read_before_another_write_writes_nothing(stores):
    """The other write may be a claim, a join, a renewal or a release."""
    first, second = stores[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    dialect = first._dialect

    def read(claim: Claim) -> RowBook:
        request = dialect.read(hash_of("n"), [claim.id], 16)
        return RowBook(dialect.decode_read(first._channel.send(request, BUDGET), 16), "nobody")

    def write(book: RowBook) -> bool:
        request = dialect.write(hash_of("n"), "n", book.change(), "nobody")
        return bool(dialect.decode_write(first._channel.send(request, BUDGET)))

    late = read(claimed("n", 9))
    granted = second.claim((holder,), BUDGET)[0]
    assert isinstance(granted, Granted)
    law.claim(late, claimed("n", 9))
    assert not write(late)  # a new name, taken meanwhile

    late = read(holder)
    assert isinstance(second.claim((waiter,), BUDGET)[0], Busy)
    assert law.release(late, holder)
    assert not write(late)  # a waiter joined: the release must serve it

    late = read(holder)
    assert isinstance(second.renew([waiter], [0], BUDGET)[0], Busy)
    assert law.release(late, holder)
    assert not write(late)  # a waiter was refreshed: its validity counts from that

    late = read(holder)
    assert second.renew([holder], [granted.fence], BUDGET) == [granted]
    late.keep_hold(late.holds[holder.id])
    assert not write(late)  # it would shorten the lease that was just renewed

    late = read(holder)
    second.leave(waiter, BUDGET)
    assert second.release((holder,), BUDGET)[0]
    late.keep_hold(late.holds[holder.id])
    assert not write(late)  # it would restore the released hold
    assert not first.inspect("n", BUDGET).holders

    late = read(claimed("n", 9))
    assert isinstance(second.claim((holder,), BUDGET)[0], Granted)
    assert isinstance(law.claim(late, claimed("n", 9)), Granted)
    assert not write(late)  # taken meanwhile by one statement
    assert second.release((holder,), BUDGET)[0]
    late = read(claimed("n", 9))
    assert isinstance(second.claim((holder,), BUDGET)[0], Granted)
    assert second.release((holder,), BUDGET)[0]
    assert isinstance(law.claim(late, claimed("n", 9)), Granted)
    assert not write(late)  # its fence might have been given to another hold meanwhile


def test_a_late_claim_does_not_overtake_a_waiter_when_the_holder_has_expired(stores, database):
    """Even if its client does not know that the name is contended."""
    stores[0].claim((claimed("n", 1),), BUDGET)
    stores[0].claim((claimed("n", 2),), BUDGET)
    database.call(f"UPDATE lockfast_names SET ends = {database.ago(1)}")
    assert isinstance(stores[1].claim((claimed("n", 3, wait=False),), BUDGET)[0], Busy)
    assert [one.who.pid for one in stores[2].inspect("n", BUDGET).holders] == [2]


def test_a_waiter_that_joins_behind_an_expired_holder_serves_the_first_waiter(stores, database):
    stores[0].claim((claimed("n", 1),), BUDGET)
    stores[0].claim((claimed("n", 2),), BUDGET)
    database.call(f"UPDATE lockfast_names SET ends = {database.ago(1)}")
    assert isinstance(stores[1].claim((claimed("n", 3),), BUDGET)[0], Busy)
    shown = stores[2].inspect("n", BUDGET)
    assert [one.who.pid for one in shown.holders] == [2]
    assert [one.who.pid for one in shown.waiters] == [3]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_renewal_restores_no_expired_hold_and_returns_the_fence_of_a_live_one(
    stores, database, slots
):
    claims = [claimed("n", number, slots=slots) for number in range(slots)]
    fences = [stores[0].claim((claim,), BUDGET)[0].fence for claim in claims]
    wrong = [fence + 1000 for fence in fences]
    assert [one.fence for one in stores[1].renew(claims, wrong, BUDGET)] == fences
    for table in ("lockfast_names", "lockfast_rows"):
        database.call(f"UPDATE {table} SET ends = {database.ago(1)}")
    assert stores[1].renew(claims, fences, BUDGET) == [Gone()] * slots
    assert not stores[2].inspect("n", BUDGET).holders


def test_a_release_serves_a_waiter_that_the_releasing_client_does_not_know(stores):
    stores[0].claim((claimed("n", 1),), BUDGET)
    stores[1].claim((claimed("n", 2),), BUDGET)
    assert stores[0].release((claimed("n", 1),), BUDGET)[0]
    assert [one.who.pid for one in stores[2].inspect("n", BUDGET).holders] == [2]


def test_no_waiter_is_woken_before_its_grant_is_written(stores, monkeypatch):
    """A waiter trusts its wake-up, so a step that loses the race must not wake anybody."""
    first, second = stores[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    fence = first.claim((holder,), BUDGET)[0].fence
    first.claim((waiter,), BUDGET)
    woken: list[Any] = []
    first.watch(waiter, woken.append, 0.0)
    write, delivered = first._dialect.write, []

    def late(*arguments: Any) -> Any:
        delivered.append(list(woken))
        if len(delivered) == 1:
            second.renew([holder], [fence], BUDGET)  # wins the race
        return write(*arguments)

    monkeypatch.setattr(first._dialect, "write", late)
    assert first.release((holder,), BUDGET)[0]
    assert delivered == [[], []]  # the first attempt lost, the second won
    assert [grant is not None for grant in woken] == [True]


def test_the_reply_to_a_join_never_has_the_fence_of_its_own_grant(stores, database, monkeypatch):
    """Otherwise the waiter would take its grant for an old one. The reply is delayed, and the
    holder releases meanwhile: the release must wait until the reply is read."""
    if database.kind == "mariadb":  # on PostgreSQL a join is one statement
        slow = [
            f"DO SLEEP(0.1);{part}" if part.lstrip().startswith("SELECT") else part
            for part in schema.JOIN
        ]
        monkeypatch.setattr(schema, "JOIN", tuple(slow))
    first, second = stores[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    first.claim((holder,), BUDGET)
    second._set_contended("n", True)
    busy: list[Any] = []
    joining = threading.Thread(target=lambda: busy.append(second.claim((waiter,), BUDGET)[0]))
    joining.start()
    joining.join(0.05)
    assert first.release((holder,), BUDGET)[0]
    joining.join()
    assert busy[0].fence < second.claim((waiter,), BUDGET)[0].fence


def test_nothing_is_locked_between_reading_and_writing(stores):
    """A process that is stopped in the middle of a step blocks nobody."""
    first, second = stores[:2]
    second.claim((claimed("n", 1),), BUDGET)
    first._channel.send(first._dialect.read(hash_of("n"), [], 16), BUDGET)
    assert second.release((claimed("n", 1),), 0.5)[0]


def test_a_queue_longer_than_the_first_page_is_served_in_order(stores):
    first, second = stores[:2]
    count = 40
    claims = [claimed("n", number) for number in range(count)]
    for claim in claims:
        first.claim((claim,), BUDGET)
    shown = second.inspect("n", BUDGET)
    assert [waiter.who.pid for waiter in shown.waiters] == list(range(1, count))
    for number, claim in enumerate(claims):
        assert [one.who.pid for one in second.inspect("n", BUDGET).holders] == [number]
        assert second.release((claim,), BUDGET)[0]


def test_a_waiter_that_leaves_a_very_long_queue_reads_only_a_part_of_it(stores, database):
    first, second = stores[:2]
    first.claim((claimed("n", 0),), BUDGET)
    first.claim((claimed("n", 1),), BUDGET)
    numbers = "generate_series(1, 3000) AS s(number)"
    text = "'filler-' || number"
    if database.kind == "mariadb":
        two = "information_schema.collations AS a, information_schema.collations AS b"
        numbers = f"(SELECT ROW_NUMBER() OVER () AS number FROM {two} LIMIT 3000) AS s"
        text = "concat('filler-', number)"
    columns = (
        "kind, queue_position, who, take, slots, lease, fair, fence, since, ends, wake_address"
    )
    row = columns.replace("queue_position", "queue_position + number")
    database.call(
        f"INSERT INTO lockfast_rows (hash, id, {columns}) "
        f"SELECT hash, {text}, {row} FROM lockfast_rows, {numbers}"
    )
    limits = []
    dialect = first._dialect
    first._dialect = RecordingDialect(dialect, limits)
    shown = first.leave(claimed("n", 1), BUDGET)
    first._dialect = dialect
    assert 1000 <= len(shown.waiters) < 1100
    assert [one.who.pid for one in shown.holders] == [0]
    assert limits == [16, 128, 1024]
    assert second.release((claimed("n", 0),), BUDGET)[0]  # the next waiter is found as usual
    assert [one.who.pid for one in second.inspect("n", BUDGET).holders] == [1]


class RecordingDialect:
    """A dialect that records the limits of its reads."""

    def __init__(self, dialect: Any, limits: list[int]) -> None:
        self._dialect = dialect
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def read(self, name_hash: bytes, ids: Any, limit: int) -> Any:
        self._limits.append(limit)
        return self._dialect.read(name_hash, ids, limit)


def test_expired_waiters_block_nobody(stores, database):
    first, second = stores[:2]
    first.claim((claimed("n", 0),), BUDGET)
    for number in range(1, 30):
        first.claim((claimed("n", number),), BUDGET)
    database.call(f"UPDATE lockfast_rows SET ends = {database.ago(1)} WHERE id <> 'id-29'")
    assert second.release((claimed("n", 0),), BUDGET)[0]
    assert [one.who.pid for one in second.inspect("n", BUDGET).holders] == [29]
    assert second.release((claimed("n", 29),), BUDGET)[0]
    assert database.call("SELECT count(*) FROM lockfast_rows") == [(0,)]


def test_a_renewal_of_two_names_that_deadlocks_with_another_transaction_is_retried(
    stores, database
):
    """Another session locks the two names in the opposite order; the server rolls one of them
    back."""
    names = sorted(["a", "b"], key=hash_of)
    claims = [claimed(name, number) for number, name in enumerate(names)]
    fences = [stores[0].claim((claim,), BUDGET)[0].fence for claim in claims]
    with database.server.connect() as connection, connection.cursor() as cursor:
        lock = "SELECT 1 FROM lockfast_names WHERE hash = %s FOR UPDATE"
        cursor.execute(lock, (hash_of(names[1]),))
        answers: list[Any] = []
        renewal = threading.Thread(
            target=lambda: answers.extend(stores[0].renew(claims, fences, BUDGET))
        )
        renewal.start()
        renewal.join(0.2)
        try:
            cursor.execute(lock, (hash_of(names[0]),))
        except Exception as error:
            assert "eadlock" in str(error), error  # the other session was rolled back
        connection.rollback()
        renewal.join()
    assert [answer.fence for answer in answers] == fences


def test_a_multi_lock_whose_first_reply_is_lost_does_not_wait_for_itself(stores, monkeypatch):
    """The batch granted names behind one that is taken; asked again, they must not stay held."""
    first, second = stores[:2]
    taken = claimed("b", 9)
    assert isinstance(second.claim((taken,), BUDGET)[0], Granted)
    claims = [claimed(name, 1) for name in "abc"]
    send = first._channel.send

    def lose_reply(request: Any, budget: float) -> Any:
        send(request, budget)
        monkeypatch.setattr(first._channel, "send", send)
        raise BackendError("the reply was lost")

    monkeypatch.setattr(first._channel, "send", lose_reply)
    with pytest.raises(BackendError, match="lost"):
        first.claim(claims, BUDGET)
    first._set_contended("b", True)  # another thread has found out
    answers = first.claim(claims, BUDGET)
    assert isinstance(answers[0], Granted) and isinstance(answers[1], Busy) and len(answers) == 2
    assert not second.inspect("c", BUDGET).holders
    assert first.release(claims[:1], BUDGET) == [True]
    assert isinstance(second.claim((claimed("c", 2),), BUDGET)[0], Granted)

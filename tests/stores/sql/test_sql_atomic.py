"""What is atomic: of many who ask at once one gets it, and a step that came too late does
nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockfast.core import law
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.runtime.threads import run
from lockfast.stores.sql.backend import mark_of
from lockfast.stores.sql.book import RowBook
from lockfast.stores.sql.mysql import schema

BUDGET = 5.0


def claimed(name: str, number: int, **terms: Any) -> Claim:
    return Claim(name, f"id-{number}", f"host {number} t", 30.0, **terms)


def at_once(*works: Any) -> list[Any]:
    """Each in a thread of its own, all at the same moment."""
    gate = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def work(number: int) -> None:
        gate.wait()
        answers[number] = works[number]()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.fixture
def backends(database):
    made = [database.backend() for _ in range(4)]
    for backend in made:
        run(backend.names("", BUDGET))  # connected, and the tables are there
    yield made
    for backend in made:
        backend.close()


def test_of_many_who_claim_a_new_name_at_once_one_gets_it(backends):
    for turn in range(30):
        claims = [claimed(f"new-{turn}", number, wait=False) for number in range(4)]
        answers = at_once(
            *[
                lambda backend=backend, claim=claim: run(backend.claim(claim, BUDGET))
                for backend, claim in zip(backends, claims, strict=True)
            ]
        )
        assert sum(isinstance(answer, Granted) for answer in answers) == 1, answers


def test_of_many_who_claim_what_was_released_one_gets_it_under_a_higher_fence(backends):
    last = 0
    for _ in range(30):
        claims = [claimed("old", number, wait=False) for number in range(4)]
        answers = at_once(
            *[
                lambda backend=backend, claim=claim: run(backend.claim(claim, BUDGET))
                for backend, claim in zip(backends, claims, strict=True)
            ]
        )
        (won,) = [n for n, answer in enumerate(answers) if isinstance(answer, Granted)]
        assert answers[won].fence > last
        last = answers[won].fence
        assert run(backends[won].release(claims[won], BUDGET))


def test_a_semaphore_never_has_more_holders_than_slots(backends):
    for turn in range(20):
        claims = [claimed(f"three-{turn}", number, slots=3, wait=False) for number in range(4)]
        answers = at_once(
            *[
                lambda backend=backend, claim=claim: run(backend.claim(claim, BUDGET))
                for backend, claim in zip(backends, claims, strict=True)
            ]
        )
        assert sum(isinstance(answer, Granted) for answer in answers) == 3, answers
        assert len(run(backends[0].inspect(f"three-{turn}", BUDGET)).holders) == 3


def test_a_step_that_read_before_somebody_wrote_writes_nothing_and_rings_nobody(backends):
    """Whatever was written: a claim, a join, a renewal, a release."""
    first, second = backends[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    speech = first._speech

    def read(claim: Claim) -> RowBook:
        request = speech.read(mark_of("n"), [claim.id], 16)
        return RowBook(speech.seen(run(first._ask(request, BUDGET)), 16), "nobody")

    def write(book: RowBook) -> bool:
        request = speech.write(mark_of("n"), "n", book.change(), "nobody")
        return bool(speech.written(run(first._ask(request, BUDGET))))

    late = read(claimed("n", 9))
    granted = run(second.claim(holder, BUDGET))
    assert isinstance(granted, Granted)
    law.claim(late, claimed("n", 9))
    assert not write(late)  # a new name, taken meanwhile

    late = read(holder)
    assert isinstance(run(second.claim(waiter, BUDGET)), Busy)
    assert law.release(late, holder)
    assert not write(late)  # somebody joined: whoever releases must serve them

    late = read(holder)
    assert isinstance(run(second.renew([waiter], [0], BUDGET))[0], Busy)
    assert law.release(late, holder)
    assert not write(late)  # a waiter was told "still waiting": its belief counts from that

    late = read(holder)
    assert run(second.renew([holder], [granted.fence], BUDGET)) == [granted]
    late.keep_hold(late.holds[holder.id])
    assert not write(late)  # it would shorten the lease that was just given

    late = read(holder)
    run(second.leave(waiter, BUDGET))
    assert run(second.release(holder, BUDGET))
    late.keep_hold(late.holds[holder.id])
    assert not write(late)  # it would bring back what was released
    assert not run(first.inspect("n", BUDGET)).holders

    late = read(claimed("n", 9))
    assert isinstance(run(second.claim(holder, BUDGET)), Granted)
    assert isinstance(law.claim(late, claimed("n", 9)), Granted)
    assert not write(late)  # taken meanwhile by one statement
    assert run(second.release(holder, BUDGET))
    late = read(claimed("n", 9))
    assert isinstance(run(second.claim(holder, BUDGET)), Granted)
    assert run(second.release(holder, BUDGET))
    assert isinstance(law.claim(late, claimed("n", 9)), Granted)
    assert not write(late)  # its fence might be one that was given meanwhile


def test_who_comes_later_does_not_overtake_who_waits_for_a_holder_that_is_over(backends, database):
    """Also if it knows nothing of the crowd."""
    run(backends[0].claim(claimed("n", 1), BUDGET))
    run(backends[0].claim(claimed("n", 2), BUDGET))
    database.call(f"UPDATE lockfast_names SET ends = {database.ago(1)}")
    assert isinstance(run(backends[1].claim(claimed("n", 3, wait=False), BUDGET)), Busy)
    assert [one.who.pid for one in run(backends[2].inspect("n", BUDGET)).holders] == [2]


def test_who_joins_the_queue_of_a_holder_that_is_over_serves_the_first(backends, database):
    run(backends[0].claim(claimed("n", 1), BUDGET))
    run(backends[0].claim(claimed("n", 2), BUDGET))
    database.call(f"UPDATE lockfast_names SET ends = {database.ago(1)}")
    assert isinstance(run(backends[1].claim(claimed("n", 3), BUDGET)), Busy)
    shown = run(backends[2].inspect("n", BUDGET))
    assert [one.who.pid for one in shown.holders] == [2]
    assert [one.who.pid for one in shown.waiters] == [3]


@pytest.mark.parametrize("slots", [1, 2])
def test_a_renewal_brings_nothing_back_and_tells_the_fence_that_it_is_held_under(
    backends, database, slots
):
    claims = [claimed("n", number, slots=slots) for number in range(slots)]
    fences = [run(backends[0].claim(claim, BUDGET)).fence for claim in claims]
    wrong = [fence + 1000 for fence in fences]
    assert [one.fence for one in run(backends[1].renew(claims, wrong, BUDGET))] == fences
    for table in ("lockfast_names", "lockfast_rows"):
        database.call(f"UPDATE {table} SET ends = {database.ago(1)}")
    assert run(backends[1].renew(claims, fences, BUDGET)) == [Gone()] * slots
    assert not run(backends[2].inspect("n", BUDGET)).holders


def test_a_release_serves_who_waits_also_if_the_releaser_does_not_know_of_it(backends):
    run(backends[0].claim(claimed("n", 1), BUDGET))
    run(backends[1].claim(claimed("n", 2), BUDGET))
    assert run(backends[0].release(claimed("n", 1), BUDGET))
    assert [one.who.pid for one in run(backends[2].inspect("n", BUDGET)).holders] == [2]


def test_a_bell_before_it_is_written_would_be_believed(backends, monkeypatch):
    """So nobody is rung by a step that others were faster than."""
    first, second = backends[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    fence = run(first.claim(holder, BUDGET)).fence
    run(first.claim(waiter, BUDGET))
    woken: list[Any] = []
    run(first.watch(waiter, woken.append, 0.0))
    write, heard = first._speech.write, []

    def late(*said: Any) -> Any:
        heard.append(list(woken))
        if len(heard) == 1:
            run(second.renew([holder], [fence], BUDGET))  # which is faster
        return write(*said)

    monkeypatch.setattr(first._speech, "write", late)
    assert run(first.release(holder, BUDGET))
    assert heard == [[], []]  # in vain, and again
    assert [grant is not None for grant in woken] == [True]


def test_who_joins_is_never_told_of_the_fence_of_its_own_grant(backends, database, monkeypatch):
    """Else it would take its grant for an old one. The answer is made long, and meanwhile the
    holder releases: it must wait until the answer is made."""
    if database.kind == "mariadb":  # elsewhere it is one statement
        slow = [
            f"DO SLEEP(0.1);{part}" if part.lstrip().startswith("SELECT") else part
            for part in schema.JOIN
        ]
        monkeypatch.setattr(schema, "JOIN", tuple(slow))
    first, second = backends[:2]
    holder, waiter = claimed("n", 1), claimed("n", 2)
    run(first.claim(holder, BUDGET))
    second._crowds("n", True)
    busy: list[Any] = []
    joining = threading.Thread(target=lambda: busy.append(run(second.claim(waiter, BUDGET))))
    joining.start()
    joining.join(0.05)
    assert run(first.release(holder, BUDGET))
    joining.join()
    assert busy[0].fence < run(second.claim(waiter, BUDGET)).fence


def test_nothing_is_locked_between_reading_and_writing(backends):
    """A process that is stopped in the middle of a step holds up nobody."""
    first, second = backends[:2]
    run(second.claim(claimed("n", 1), BUDGET))
    run(first._ask(first._speech.read(mark_of("n"), [], 16), BUDGET))
    assert run(second.release(claimed("n", 1), 0.5))


def test_a_queue_that_is_longer_than_what_is_read_first_is_served_in_order(backends):
    first, second = backends[:2]
    count = 40
    claims = [claimed("n", number) for number in range(count)]
    for claim in claims:
        run(first.claim(claim, BUDGET))
    shown = run(second.inspect("n", BUDGET))
    assert [waiter.who.pid for waiter in shown.waiters] == list(range(1, count))
    for number, claim in enumerate(claims):
        assert [one.who.pid for one in run(second.inspect("n", BUDGET)).holders] == [number]
        assert run(second.release(claim, BUDGET))


def test_who_leaves_a_very_long_queue_reads_no_more_than_a_part_of_it(backends, database):
    first, second = backends[:2]
    run(first.claim(claimed("n", 0), BUDGET))
    run(first.claim(claimed("n", 1), BUDGET))
    numbers = "generate_series(1, 3000) AS s(number)"
    text = "'far-' || number"
    if database.kind == "mariadb":
        two = "information_schema.collations AS a, information_schema.collations AS b"
        numbers = f"(SELECT ROW_NUMBER() OVER () AS number FROM {two} LIMIT 3000) AS s"
        text = "concat('far-', number)"
    columns = "kind, place, who, take, slots, lease, fair, fence, since, ends, home"
    row = columns.replace("place", "place + number")
    database.call(
        f"INSERT INTO lockfast_rows (hash, id, {columns}) "
        f"SELECT hash, {text}, {row} FROM lockfast_rows, {numbers}"
    )
    limits = []
    speech = first._speech
    first._speech = Watching(speech, limits)
    shown = run(first.leave(claimed("n", 1), BUDGET))
    first._speech = speech
    assert 1000 <= len(shown.waiters) < 1100
    assert [one.who.pid for one in shown.holders] == [0]
    assert limits == [16, 128, 1024]
    assert run(second.release(claimed("n", 0), BUDGET))  # who is next is found as ever
    assert [one.who.pid for one in run(second.inspect("n", BUDGET)).holders] == [1]


class Watching:
    """A dialect, and how much of a queue is asked for."""

    def __init__(self, speech: Any, limits: list[int]) -> None:
        self._speech = speech
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._speech, name)

    def read(self, mark: bytes, ids: Any, limit: int) -> Any:
        self._limits.append(limit)
        return self._speech.read(mark, ids, limit)


def test_many_dead_waiters_hold_nobody_up(backends, database):
    first, second = backends[:2]
    run(first.claim(claimed("n", 0), BUDGET))
    for number in range(1, 30):
        run(first.claim(claimed("n", number), BUDGET))
    database.call(f"UPDATE lockfast_rows SET ends = {database.ago(1)} WHERE id <> 'id-29'")
    assert run(second.release(claimed("n", 0), BUDGET))
    assert [one.who.pid for one in run(second.inspect("n", BUDGET)).holders] == [29]
    assert run(second.release(claimed("n", 29), BUDGET))
    assert database.call("SELECT count(*) FROM lockfast_rows") == [(0,)]


def test_renewals_of_many_names_that_meet_another_transaction_are_tried_again(backends, database):
    """A stranger locks two names in the other order: one of us is undone by the server."""
    names = sorted(["a", "b"], key=mark_of)
    claims = [claimed(name, number) for number, name in enumerate(names)]
    fences = [run(backends[0].claim(claim, BUDGET)).fence for claim in claims]
    with database.server.connect() as connection, connection.cursor() as cursor:
        lock = "SELECT 1 FROM lockfast_names WHERE hash = %s FOR UPDATE"
        cursor.execute(lock, (mark_of(names[1]),))
        answers: list[Any] = []
        renewal = threading.Thread(
            target=lambda: answers.extend(run(backends[0].renew(claims, fences, BUDGET)))
        )
        renewal.start()
        renewal.join(0.2)
        try:
            cursor.execute(lock, (mark_of(names[0]),))
        except Exception as error:
            assert "eadlock" in str(error), error  # it was the stranger who was undone
        connection.rollback()
        renewal.join()
    assert [answer.fence for answer in answers] == fences

"""Adaptive spinning: an uncontended thread polls its socket while the server replies fast."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import lockfast
from lockfast.stores.redis import connections as spin
from lockfast.stores.redis.connections import BACK_OFF, MOST_SKIPPED, NEVER, POLLS, Spin

READY = [(7, 1)]


class Answers:
    """A fake poll() that reports data after ``after`` calls without any."""

    def __init__(self) -> None:
        self.after = 0
        self.calls = 0
        self._now = 0

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        assert timeout == 0, "spinning must not block"
        self.calls += 1
        self._now += 1
        if self._now > self.after:
            self._now = 0
            return READY
        return []


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: Any) -> None:
    monkeypatch.setattr(spin, "CORES", 2)


def test_a_fast_reply_is_found_by_spinning() -> None:
    answers = Answers()
    answers.after = POLLS - 1
    mine = Spin(answers.poll)
    for _ in range(5):
        assert mine.poll() == READY
    assert answers.calls == 5 * POLLS


def test_with_a_slow_server_spinning_becomes_rarer_but_never_stops() -> None:
    answers = Answers()
    mine = Spin(answers.poll)
    tried = []
    for reply in range(4 * MOST_SKIPPED):
        before, answers._now, answers.after = answers.calls, 0, POLLS
        assert mine.poll() == ()
        if answers.calls > before:
            assert answers.calls == before + POLLS
            tried.append(reply)
    between = [later - one - 1 for one, later in pairwise(tried)]
    assert between[:4] == [1, 3, 7, 15]
    assert max(between) == between[-1] == MOST_SKIPPED


def test_one_failed_spin_skips_only_one_reply() -> None:
    answers = Answers()
    mine = Spin(answers.poll)
    answers.after = POLLS
    assert mine.poll() == ()
    answers.after = answers._now = 0
    assert mine.poll() == (), "one reply is skipped"
    assert mine.poll() == READY
    answers.after, answers._now = POLLS, 0
    assert mine.poll() == ()
    answers.after = answers._now = 0
    assert [mine.poll() for _ in range(2)] == [(), READY], "again only one"


def test_after_a_back_off_spinning_pauses_for_some_replies() -> None:
    answers = Answers()
    mine = Spin(answers.poll)
    mine.back_off()
    assert [bool(mine.poll()) for _ in range(BACK_OFF + 1)] == [False] * BACK_OFF + [True]


def test_on_a_single_core_nothing_spins(monkeypatch: Any) -> None:
    monkeypatch.setattr(spin, "CORES", 1)
    answers = Answers()
    mine = Spin(answers.poll)
    assert [mine.poll() for _ in range(9)] == [()] * 9
    assert answers.calls == 0
    assert mine._skip > NEVER // 2


# ---- on a real server ------------------------------------------------------------------------


@pytest.fixture
def spun(monkeypatch: Any) -> list[Any]:
    """For each reply, whether the thread was spinning for it."""
    seen: list[bool] = []
    poll = Spin.poll

    def recording(self: Spin) -> Any:
        seen.append(self._skip <= 0)
        return poll(self)

    monkeypatch.setattr(Spin, "poll", recording)
    # A busy machine may take longer for a reply than a thread spins, which would spin less then.
    monkeypatch.setattr(spin, "POLLS", 1 << 40)
    return seen


def cycles(client: Any, name: str, number: int) -> None:
    for _ in range(number):
        client.lock(name).acquire().release()


def in_a_thread(work: Callable[..., None], *arguments: Any) -> None:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


def test_a_thread_spins_again_some_time_after_another_used_the_client(
    redis_server: Any, name: str, spun: list[bool]
) -> None:
    with lockfast.connect(redis_server.url) as client:
        cycles(client, name, 1)
        in_a_thread(cycles, client, name, 1)
        spun.clear()
        cycles(client, name, BACK_OFF // 2 + 1)
        assert spun == [False] * BACK_OFF + [True] * 2


def test_threads_that_alternate_do_not_spin(redis_server: Any, name: str, spun: list[bool]) -> None:
    with lockfast.connect(redis_server.url) as client:
        mine, theirs = threading.Barrier(2), threading.Barrier(2)

        def other() -> None:
            for _ in range(4):
                mine.wait()
                cycles(client, name, BACK_OFF // 2)
                theirs.wait()

        thread = threading.Thread(target=other)
        thread.start()
        for round_ in range(4):
            mine.wait()
            theirs.wait()
            if round_ == 0:
                spun.clear()  # the replies while connecting
            cycles(client, name, BACK_OFF // 2)
        thread.join()
        assert len(spun) > 6 * BACK_OFF
        assert not any(spun)


def test_a_thread_that_waited_for_a_lock_does_not_spin_for_a_while(
    redis_server: Any, name: str, spun: list[bool]
) -> None:
    with (
        lockfast.connect(redis_server.url) as client,
        lockfast.connect(redis_server.url) as other,
    ):
        cycles(client, name, BACK_OFF)
        hold = other.lock(name).acquire()
        threading.Timer(0.1, hold.release).start()
        mine = client.lock(name).acquire(timeout=10)
        spun.clear()
        mine.release()
        cycles(client, name, BACK_OFF // 2 - 1)
        assert not any(spun)

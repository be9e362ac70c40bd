"""A server that is near: who asks looks for the answer. Who is not alone, or far away, sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import lockfast
from lockfast.stores.redis import spin
from lockfast.stores.redis.spin import CROWDED, LOOKS, MOST_ASLEEP, NEVER, Near

READY = [(7, 1)]


class Answers:
    """A poll that finds something after so many looks."""

    def __init__(self) -> None:
        self.after = 0
        self.looked = 0
        self._now = 0

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        assert timeout == 0, "it must not sleep"
        self.looked += 1
        self._now += 1
        if self._now > self.after:
            self._now = 0
            return READY
        return []


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: Any) -> None:
    monkeypatch.setattr(spin, "CORES", 2)


def test_an_answer_that_comes_soon_is_found() -> None:
    answers = Answers()
    answers.after = LOOKS - 1
    mine = Near(answers.poll)
    for _ in range(5):
        assert mine.look() == READY
    assert answers.looked == 5 * LOOKS


def test_far_away_it_is_tried_more_and_more_seldom_and_never_given_up() -> None:
    answers = Answers()
    mine = Near(answers.poll)
    tried = []
    for question in range(4 * MOST_ASLEEP):
        before, answers._now, answers.after = answers.looked, 0, LOOKS
        assert mine.look() == ()
        if answers.looked > before:
            assert answers.looked == before + LOOKS
            tried.append(question)
    between = [later - one - 1 for one, later in pairwise(tried)]
    assert between[:4] == [1, 3, 7, 15]
    assert max(between) == between[-1] == MOST_ASLEEP


def test_once_in_vain_is_not_far_away() -> None:
    answers = Answers()
    mine = Near(answers.poll)
    answers.after = LOOKS
    assert mine.look() == ()
    answers.after = answers._now = 0
    assert mine.look() == (), "it sleeps once"
    assert mine.look() == READY
    answers.after, answers._now = LOOKS, 0
    assert mine.look() == ()
    answers.after = answers._now = 0
    assert [mine.look() for _ in range(2)] == [(), READY], "and only once, again"


def test_who_was_woken_leaves_the_processor_to_others_for_a_while() -> None:
    answers = Answers()
    mine = Near(answers.poll)
    mine.crowded()
    assert [bool(mine.look()) for _ in range(CROWDED + 1)] == [False] * CROWDED + [True]


def test_on_one_processor_nobody_looks(monkeypatch: Any) -> None:
    monkeypatch.setattr(spin, "CORES", 1)
    answers = Answers()
    mine = Near(answers.poll)
    assert [mine.look() for _ in range(9)] == [()] * 9
    assert answers.looked == 0
    assert mine._asleep > NEVER // 2


# ---- on a server -----------------------------------------------------------------------------


@pytest.fixture
def looked(monkeypatch: Any) -> list[Any]:
    """Of each answer, whether it was looked for."""
    seen: list[bool] = []
    look = Near.look

    def noted(self: Near) -> Any:
        seen.append(self._asleep <= 0)
        return look(self)

    monkeypatch.setattr(Near, "look", noted)
    return seen


def cycles(client: Any, name: str, many: int) -> None:
    for _ in range(many):
        client.lock(name).acquire().release()


def in_a_thread(work: Callable[..., None], *said: Any) -> None:
    thread = threading.Thread(target=work, args=said)
    thread.start()
    thread.join()


def test_a_thread_that_is_alone_looks_for_its_answers_after_a_while(
    redis_server: Any, name: str, looked: list[bool]
) -> None:
    with lockfast.connect(redis_server.url) as client:
        cycles(client, name, 1)
        in_a_thread(cycles, client, name, 1)
        looked.clear()
        cycles(client, name, CROWDED // 2 + 1)
        assert looked == [False] * CROWDED + [True] * 2


def test_threads_that_ask_by_turns_sleep(redis_server: Any, name: str, looked: list[bool]) -> None:
    with lockfast.connect(redis_server.url) as client:
        mine, theirs = threading.Barrier(2), threading.Barrier(2)

        def other() -> None:
            for _ in range(4):
                mine.wait()
                cycles(client, name, CROWDED // 2)
                theirs.wait()

        thread = threading.Thread(target=other)
        thread.start()
        for turn in range(4):
            mine.wait()
            theirs.wait()
            if turn == 0:
                looked.clear()  # what was asked to connect
            cycles(client, name, CROWDED // 2)
        thread.join()
        assert len(looked) > 6 * CROWDED
        assert not any(looked)


def test_who_had_to_wait_sleeps_for_a_while(
    redis_server: Any, name: str, looked: list[bool]
) -> None:
    with (
        lockfast.connect(redis_server.url) as client,
        lockfast.connect(redis_server.url) as other,
    ):
        cycles(client, name, CROWDED)
        hold = other.lock(name).acquire()
        threading.Timer(0.1, hold.release).start()
        mine = client.lock(name).acquire(timeout=10)
        looked.clear()
        mine.release()
        cycles(client, name, CROWDED // 2 - 1)
        assert not any(looked)

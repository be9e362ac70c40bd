"""Holds that change hands, and answers that are lost meanwhile: detach, attach, resize, batches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from zookeeper_nodes import lose_answer

import lockfast
from both_apis import until
from lockfast.model import Claim, Gone, Granted
from lockfast.runtime.threads import ThreadSignal
from lockfast.stores.zookeeper.requests import Create, Sync, Transaction

SOON = 15.0


@pytest.mark.parametrize("resized", ["before", "elsewhere"])
def test_a_resize_is_remembered_when_the_holders_are_detached_and_attached(
    here: Any, resized: str
) -> None:
    """The nodes that replace them are younger than the resize, and none is older."""
    with lockfast.connect(here.url) as other:
        slots = here.client.semaphore("a", 2)
        hold = slots.acquire()
        (slots if resized == "before" else other.semaphore("a", 2)).resize(3)
        text = hold.detach()
        assert other.inspect("a").slots == 3
        taken = other.attach("a", text)
        assert other.inspect("a").slots == 3
        holds = [other.semaphore("a", 3).try_acquire(timeout=SOON * (n < 2)) for n in range(3)]
        assert [hold is not None for hold in holds] == [True, True, False]
        for one in (taken, *holds[:2]):
            one.release()


def test_an_attach_whose_answer_is_lost_holds_under_the_fence(here: Any) -> None:
    with lockfast.connect(here.url) as other:
        hold = here.client.lock("a").acquire()
        text = hold.detach()
        left = lose_answer(other._endpoint._session, Transaction)  # type: ignore[attr-defined]
        taken = other.attach("a", text)
        assert left == [0] and taken.fence == hold.fence and taken.is_held
        with pytest.raises(lockfast.NotHeld):
            other.attach("a", text)
        assert taken.is_held and len(here.nodes("a")) == 1
        taken.release()
        assert not here.nodes("a")


def test_an_attach_that_is_never_answered_ends_with_its_lease_at_the_latest(here: Any) -> None:
    with lockfast.connect(here.url) as other:
        text = here.client.lock("a", lease=1.0).acquire().detach()
        left = lose_answer(other._endpoint._session, (Transaction, Sync), 1000)  # type: ignore[attr-defined]
        with pytest.raises(lockfast.BackendError):
            other.attach("a", text)
        left[0] = 0
        began = time.monotonic()
        with here.client.lock("a", timeout=SOON):
            assert time.monotonic() - began < 4.0


def test_one_hold_is_attached_by_one_of_two_callers_of_a_client(here: Any) -> None:
    text = here.client.lock("a").acquire().detach()
    with lockfast.connect(here.url) as other, ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(other.attach, "a", text, owner=f"{n}") for n in range(4)]
        taken = [one.result(SOON) for one in tries if one.exception(SOON) is None]
        assert len(taken) == 1 and taken[0].is_held
        taken[0].release()


def test_a_wrong_fence_leaves_the_hold_to_the_caller_with_the_right_one(here: Any) -> None:
    with lockfast.connect(here.url) as other:
        hold = here.client.lock("a").acquire()
        text = hold.detach()
        head, claim, fence, *terms = text.split(":")
        wrong = ":".join([head, claim, str(int(fence) + 1), *terms])
        with pytest.raises(lockfast.NotHeld):
            other.attach("a", wrong)
        with lockfast.connect(here.url) as third:
            taken = third.attach("a", text)
            assert taken.fence == hold.fence
            taken.release()


def test_a_multi_lock_whose_first_batch_is_not_answered_leaves_no_name_behind(here: Any) -> None:
    with lockfast.connect(here.url) as other, ThreadPoolExecutor(1) as pool:
        hold = other.lock("a").acquire()
        left = lose_answer(here.session, Create)
        waits = pool.submit(here.client.multi_lock("a", "b", timeout=SOON).acquire)
        until(lambda: other.inspect("a").waiters)
        with other.lock("b", timeout=2.0):  # nobody may hold a later name and wait for this one
            assert left == [0]
        hold.release()
        waits.result(SOON).release()
        until(lambda: not here.nodes("a") and not here.nodes("b"))


def test_a_batch_is_claimed_again_in_as_few_round_trips_after_a_lost_answer(here: Any) -> None:
    with here.client.lock("warm"):
        pass
    store = here.client._endpoint.blocking(ThreadSignal)
    names = [f"default:{number}" for number in range(20)]
    claims = [Claim(name, f"secret-{name}", "host 1 thread", 30.0) for name in names]
    lose_answer(here.session, Create)
    with pytest.raises(lockfast.BackendError):
        store.claim(claims, 5.0)
    real, batches = here.session.send, []

    def send(requests: Any, done: Any) -> Any:
        batches.append(len(requests))
        return real(requests, done)

    here.session.send = send
    answers = store.claim(claims, 5.0)
    assert len(answers) == 20 and all(isinstance(answer, Granted) for answer in answers)
    assert len(batches) == 3, batches  # find the parents' lists, our nodes, and list again
    assert store.release(claims, 5.0) == [True] * 20
    assert isinstance(store.transfer(claims[0], True, 5.0), Gone)

"""Multi-locks that are interrupted: whatever is under way, nothing stays held by nobody."""

from __future__ import annotations

import types

import pytest

import holdfast
from holdfast.core.multi import release_all
from holdfast.model import Claim
from holdfast.testing import client as kit_client
from holdfast.testing import lose


def interrupted(client, name):
    """Ctrl-C, or a cancelled task, when the store is told for the first time that this is over."""
    backend, left = client.core.backend, [name]

    def planted(honest):
        async def answer(said, *more):
            claims = [said] if isinstance(said, Claim) else said
            if any(claim.name.endswith(":" + one) for claim in claims for one in left):
                left.clear()
                raise KeyboardInterrupt
            return await honest(said, *more)

        return answer

    for verb in ("leave", "release", "release_many"):
        setattr(backend, verb, planted(getattr(backend, verb)))
    return left


@pytest.mark.parametrize("name", "abc")
def test_a_release_that_is_interrupted_leaves_nothing_held(holdfast_client, name):
    hold = holdfast_client.multi_lock("a", "b", "c").acquire()
    lose(holdfast_client, "b")
    left = interrupted(holdfast_client, name)
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert not left and holdfast_client.statistics().held == 0
    for one in "abc":
        assert holdfast_client.lock(one).try_acquire() is not None


def test_what_was_held_before_is_still_held_after_an_interrupted_refusal(holdfast_client):
    holdfast_client.lock("c", owner="another").acquire()
    outer = holdfast_client.lock("a").acquire()
    interrupted(holdfast_client, "b")
    with pytest.raises(KeyboardInterrupt):
        holdfast_client.multi_lock("a", "b", "c").try_acquire()
    outer.check()
    outer.release()
    assert [holdfast_client.inspect(name).holders for name in "ab"] == [(), ()]


def test_a_release_that_is_interrupted_at_one_client_goes_on_at_the_others(
    holdfast_client, holdfast_clock
):
    other = kit_client(holdfast_clock)
    hold = holdfast_client.multi_lock("a", other.lock("b")).acquire()
    interrupted(other, "b")
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert holdfast_client.statistics().held == other.statistics().held == 0
    assert holdfast_client.lock("a", owner="another").try_acquire() is not None
    assert other.lock("b", owner="another").try_acquire() is not None


def test_what_is_lost_many_times_over_is_told_once(holdfast_client):
    with pytest.raises(holdfast.HoldLost), holdfast_client.multi_lock("a", "b"):
        lose(holdfast_client, "a")
        lose(holdfast_client, "b")
    assert holdfast_client.statistics().held == 0


def test_one_release_too_many_is_said(holdfast_client):
    hold = holdfast_client.multi_lock("a", "b").acquire()
    hold.release()
    with pytest.raises(holdfast.NotHeld, match="one release too many"):
        hold.release()


def test_a_release_whose_coroutine_is_closed_awaits_nothing_more(holdfast_client):
    hold = holdfast_client.multi_lock("a", "b").acquire()
    asked = []

    @types.coroutine
    def never(*said):
        asked.append(said)
        yield

    holdfast_client.core.backend.release_many = never
    work = release_all(hold._entries)
    work.send(None)
    work.close()
    assert len(asked) == 1
    assert holdfast_client.statistics().held == 0  # their leases do the rest

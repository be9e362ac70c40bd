"""Interrupted multi-locks: whatever is under way, no hold is left without an owner."""

from __future__ import annotations

import types

import pytest

import lockfast
from lockfast.core.multi import release_all
from lockfast.model import Claim
from lockfast.testing import client as kit_client
from lockfast.testing import lose


def interrupted(client, name):
    """Raise KeyboardInterrupt when the store is asked for the first time to end this name's
    claim."""
    store, left = client._core.store, [name]

    def planted(honest):
        async def answer(asked, *more):
            claims = [asked] if isinstance(asked, Claim) else asked
            if any(claim.name.endswith(":" + one) for claim in claims for one in left):
                left.clear()
                raise KeyboardInterrupt
            return honest(asked, *more)

        return answer

    for verb in ("leave", "release"):
        setattr(store, verb, planted(getattr(store, verb)))
    return left


@pytest.mark.parametrize("name", "abc")
def test_a_release_that_is_interrupted_leaves_nothing_held(lockfast_client, name):
    hold = lockfast_client.multi_lock("a", "b", "c").acquire()
    lose(lockfast_client, "b")
    left = interrupted(lockfast_client, name)
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert not left and lockfast_client.statistics().held == 0
    for one in "abc":
        assert lockfast_client.lock(one).try_acquire() is not None


def test_a_hold_from_before_is_still_held_after_an_interrupted_refusal(lockfast_client):
    lockfast_client.lock("c", owner="another").acquire()
    outer = lockfast_client.lock("a").acquire()
    interrupted(lockfast_client, "b")
    with pytest.raises(KeyboardInterrupt):
        lockfast_client.multi_lock("a", "b", "c").try_acquire()
    outer.check()
    outer.release()
    assert [lockfast_client.inspect(name).holders for name in "ab"] == [(), ()]


def test_a_release_interrupted_at_one_client_continues_at_the_others(
    lockfast_client, lockfast_clock
):
    other = kit_client(lockfast_clock)
    hold = lockfast_client.multi_lock("a", other.lock("b")).acquire()
    interrupted(other, "b")
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert lockfast_client.statistics().held == other.statistics().held == 0
    assert lockfast_client.lock("a", owner="another").try_acquire() is not None
    assert other.lock("b", owner="another").try_acquire() is not None


def test_the_loss_of_more_than_one_name_is_raised_once(lockfast_client):
    with pytest.raises(lockfast.HoldLost), lockfast_client.multi_lock("a", "b"):
        lose(lockfast_client, "a")
        lose(lockfast_client, "b")
    assert lockfast_client.statistics().held == 0


def test_one_release_too_many_is_an_error(lockfast_client):
    hold = lockfast_client.multi_lock("a", "b").acquire()
    hold.release()
    with pytest.raises(lockfast.NotHeld, match="one release too many"):
        hold.release()


def test_a_release_whose_coroutine_is_closed_awaits_nothing_more(lockfast_client):
    hold = lockfast_client.multi_lock("a", "b").acquire()
    asked = []

    @types.coroutine
    def never():
        yield

    async def release(*args):
        asked.append(args)
        await never()

    lockfast_client._core.store.release = release
    work = release_all(hold._entries)
    work.send(None)
    work.close()
    assert len(asked) == 1
    assert lockfast_client.statistics().held == 0  # their leases end them at the store

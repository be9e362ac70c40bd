"""Edge cases of multi-locks: unreachable stores, closed clients, locks of other layouts."""

from __future__ import annotations

import types

import pytest
from test_core import scripted, terms

import lockfast
from lockfast import BackendError, HoldLost, NotHeld, WouldDeadlock
from lockfast.core.multi import Part, attempt_all, release_all
from lockfast.events import Acquired
from lockfast.runtime.threads import run


def part(client, name, **more):
    return Part(client._core, terms(**more)._replace(name=f"default:{name}"))


def striking(client, verb, *errors):
    """Make the verb raise these errors, one after the other, after it has done its work."""
    real, left = getattr(client._core.store, verb), list(errors)

    async def strikes(*args):
        answer = real(*args)
        if left:
            raise left.pop(0)
        return answer

    setattr(client._core.store, verb, strikes)
    return left


@types.coroutine
def suspended():
    yield


def closed_midway(client, verb, work):
    """Run ``work`` until it calls this verb, and close it there."""

    async def suspends(*args):
        await suspended()

    setattr(client._core.store, verb, suspends)
    work.send(None)
    work.close()


def test_each_release_of_a_lost_name_raises(lockfast_client):
    outer = lockfast_client.lock("a").acquire()
    hold = lockfast_client.multi_lock("a", "b").acquire()
    lockfast_client._endpoint.forget("default:a")
    with pytest.raises(HoldLost):
        hold.renew()
    with pytest.raises(HoldLost, match="'a'"):
        hold.release()
    with pytest.raises(HoldLost, match="'a'"):
        lockfast_client.lock("a").acquire()  # the owner has not unwound
    with pytest.raises(HoldLost, match="'a'"):
        outer.release()
    with lockfast_client.multi_lock("a", "b"):
        pass


def test_a_hold_that_expired_by_our_clock_is_released_at_the_store(lockfast_client, lockfast_clock):
    asked = []
    release = lockfast_client._core.store.release

    async def counted(claims, budget):
        asked.append([claim.name for claim in claims])
        return release(claims, budget)

    lockfast_client._core.store.release = counted
    names = lockfast_client.lock("a"), lockfast_client.lock("b", lease=10)
    hold = lockfast_client.multi_lock(*names).acquire()
    lockfast_clock.advance(9.95)  # validity ends a little before the store's lease
    assert hold.lost and lockfast_client.inspect("b").holders
    with pytest.raises(HoldLost, match="'b'"):
        hold.release()
    assert asked == [["default:a"], ["default:b"]] and not lockfast_client.names()


def interrupt():
    raise KeyboardInterrupt


def test_an_interrupt_while_the_store_does_not_answer_is_not_replaced(lockfast_client, caplog):
    hold = lockfast_client.multi_lock("a", "b").acquire()
    scripted(lockfast_client, "release", interrupt, BackendError("away"))
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert "release of 2 claims unknown: away" in caplog.text and not hold.is_held


def test_a_store_with_a_permanent_error_is_asked_once(lockfast_client):
    hold = lockfast_client.multi_lock("a", "b").acquire()
    broken = BackendError("broken", transient=False)
    left = scripted(lockfast_client, "release", broken, [True, True])
    with pytest.raises(BackendError, match="whether 'b' was released is unknown") as caught:
        hold.release()
    assert not caught.value.transient and len(left) == 1
    hold.release()  # a release whose outcome is unknown may be repeated
    with pytest.raises(NotHeld):
        hold.release()


def test_a_release_of_a_hold_that_the_store_forgot_is_a_loss(lockfast_client):
    hold = lockfast_client.multi_lock("a", "b").acquire()
    lockfast_client._endpoint.forget("default:b")
    with pytest.raises(HoldLost, match="'b'"):
        hold.release()
    assert not lockfast_client.names()


def test_a_failed_downgrade_of_a_writer_in_a_multi_lock_is_raised(lockfast_client):
    rw = lockfast_client.rwlock("r")
    hold = lockfast_client.multi_lock("a", rw.write()).acquire()
    reading = rw.read().acquire()
    scripted(lockfast_client, "shrink", BackendError("broken", transient=False))
    with pytest.raises(BackendError, match="whether others may read 'r' now is unknown"):
        hold.release()
    assert reading.is_held and not rw.write().is_held
    reading.release()
    assert not lockfast_client.names()


def test_a_renewal_by_hand_does_not_make_a_reader_a_writer_again(lockfast_client):
    rw = lockfast_client.rwlock("r")
    writing, reading = rw.write().acquire(), rw.read().acquire()
    renew = lockfast_client._core.store.renew

    async def meanwhile(*args):
        writing.release()
        return renew(*args)

    lockfast_client._core.store.renew = meanwhile
    reading.renew(lease=50)
    assert reading.lease == 50 and not rw.write().is_held
    with pytest.raises(WouldDeadlock):
        rw.write().acquire()
    reading.release()


@pytest.mark.parametrize("at", [0, 1])
def test_a_client_closed_between_the_grants_and_their_entry_keeps_none(lockfast_client, at):
    events = []

    @lockfast_client.on_event
    def closes(event):
        events.append(event)
        if sum(isinstance(one, Acquired) for one in events) > at:
            lockfast_client._core.ledger.closed = True

    with pytest.raises(NotHeld, match="closed"):
        lockfast_client.multi_lock("a", "b", "c").acquire()
    assert not lockfast_client.names() and not lockfast_client._core.ledger.kept
    assert not lockfast_client._core.ledger.asking


def test_claims_that_could_not_be_withdrawn_are_withdrawn_by_the_keeper(
    lockfast_client, lockfast_clock
):
    left = striking(lockfast_client, "claim", KeyboardInterrupt())
    leave = lockfast_client._core.store.leave
    scripted(lockfast_client, "leave", *[BackendError("away")] * 3)
    with pytest.raises(KeyboardInterrupt):
        lockfast_client.multi_lock("a", "b", "c").acquire()
    assert left == [] and lockfast_client.names() == ["a", "b", "c"]
    lockfast_client._core.store.leave = leave
    lockfast_clock.advance(3)
    assert not lockfast_client.names() and not lockfast_client._core.ledger.withdrawals


def test_a_permanent_error_of_the_store_leaves_nothing_behind(lockfast_client):
    striking(lockfast_client, "claim", BackendError("no", transient=False))
    with pytest.raises(BackendError, match="no"):
        lockfast_client.multi_lock("a", "b").acquire()
    assert not lockfast_client.names() and not lockfast_client._core.ledger.asking


def test_locks_of_another_layout_are_acquired_one_by_one(lockfast_client):
    asked = []
    claim = lockfast_client._core.store.claim

    def counted(claims, budget):
        asked.append([one.name[-1] for one in claims])
        return claim(claims, budget)

    lockfast_client._core.store.claim = counted
    parts = [
        part(lockfast_client, name, layout="simple" if name in "ad" else "") for name in "abcd"
    ]
    held = run(attempt_all(parts, None))
    assert asked == [["a"], ["b", "c"], ["d"]]
    entries = [(one.core, held, 1) for one, held in zip(parts, held, strict=True)]
    assert run(release_all(entries)) == []


def test_held_locks_of_another_layout_are_reentered(lockfast_client):
    parts = [part(lockfast_client, name, layout="simple") for name in "ab"]
    first, again = run(attempt_all(parts, None)), run(attempt_all(parts, None))
    assert first == again and [held.count for held in first] == [2, 2]


def test_a_name_behind_the_one_that_was_waited_for_is_reentered_once():
    with lockfast.connect("memory://") as client:
        client.lock("b", owner="other", lease=0.2).acquire()
        outer = client.lock("d").acquire()
        with client.multi_lock("a", "b", "c", "d", timeout=15) as hold:
            assert hold.is_held and hold.fences["d"] == outer.fence
        outer.release()
        assert not client.names()


def test_each_name_shows_its_own_label(lockfast_client):
    parts = [part(lockfast_client, "a", label="mine"), part(lockfast_client, "b", label="other")]
    run(attempt_all(parts, None))
    labels = [lockfast_client.inspect(name).holders[0].who.label for name in "ab"]
    assert labels == ["mine", "other"]


def test_holds_of_a_coroutine_closed_midway_are_left_to_their_leases(lockfast_client):
    parts = [part(lockfast_client, name) for name in "ab"]
    claim = lockfast_client._core.store.claim
    closed_midway(lockfast_client, "claim", attempt_all(parts, None))
    lockfast_client._core.store.claim = claim
    held = run(attempt_all(parts, None))
    entries = [(one.core, held, 1) for one, held in zip(parts, held, strict=True)]
    closed_midway(lockfast_client, "release", release_all(entries))
    assert lockfast_client.names() == ["a", "b"]

"""Edge cases of the core: rare answers, given by a store with a scripted store."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import pytest

import lockfast
from lockfast import AcquireTimeout, BackendError, ConfigurationError, HoldLost, NotHeld
from lockfast.core.claim import GRACE, Claiming, _accepted_grant
from lockfast.core.explain import ago, describe
from lockfast.core.keeper import LEAVE_EVERY, Keeper
from lockfast.core.ledger import Ledger, State, Waiting
from lockfast.core.terms import Terms
from lockfast.model import ALL_SLOTS, Busy, Claim, Differs, Granted, Snapshot, Waiter, Who
from lockfast.runtime.threads import ThreadSignal, run


def terms(slots=1, take=1, **more):
    return Terms("default:n", 30.0, True, slots=slots, take=take, **more)


def scripted(client, verb, *answers):
    """Make the verb return these answers, one after the other; raise exceptions, call functions."""
    left = list(answers)

    async def answer(*args):
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        reply = reply() if callable(reply) else reply
        single = not isinstance(reply, list) and verb in ("claim", "renew", "release")
        return [reply] if single else reply

    async def missed(*args):
        return True

    setattr(client._core.store, verb, answer)
    client._core.store.watch = missed  # so that the waiter claims again
    return left


@pytest.mark.parametrize(
    "held, asked, parts",
    [
        (1, 5, ("as a lock", "a semaphore of 5")),
        (5, 1, ("as a semaphore of 5", "a lock")),
        (ALL_SLOTS, 1, ("as a read-write lock", "a lock")),
    ],
)
def test_a_name_has_one_kind_at_a_time(lockfast_client, held, asked, parts):
    run(lockfast_client._core.attempt(terms(held, owner="a"), 0.0))
    with pytest.raises(ConfigurationError) as refused:
        run(lockfast_client._core.attempt(terms(asked, owner="b"), 0.0))
    assert all(part in str(refused.value) for part in parts)


def test_a_claim_of_more_slots_than_there_are_is_an_error(lockfast_client):
    with pytest.raises(ConfigurationError, match="has 2 slots: a claim of 3 never fits"):
        run(lockfast_client._core.attempt(terms(2, 3), 0.0))


def test_a_name_that_changes_its_kind_during_a_wait_is_an_error(lockfast_client):
    scripted(lockfast_client, "claim", Busy(1.0, 1), Differs(5))
    with pytest.raises(ConfigurationError, match="semaphore of 5"):
        lockfast_client.lock("n").acquire()


def test_a_store_whose_answers_take_longer_than_the_lease_is_an_error(
    lockfast_client, lockfast_clock
):
    def late():
        lockfast_clock.advance(9)
        return Granted(1, 5.0)

    left = scripted(lockfast_client, "claim", *[late] * 9)
    with pytest.raises(BackendError, match="longer than the lease"):
        lockfast_client.lock("n", lease=5).acquire()
    assert len(left) < 9


def test_a_grant_that_came_too_late_is_claimed_again(lockfast_client, lockfast_clock):
    def late():
        lockfast_clock.advance(6)
        return Granted(1, 5.0)

    scripted(lockfast_client, "claim", late, Granted(1, 5.0))
    hold = lockfast_client.lock("n", lease=5).acquire()
    assert hold.is_held and hold.remaining() == pytest.approx(4.95)


@pytest.mark.parametrize(
    "lease, until, first, longest, most",
    [
        (30, 5.0, [0.005, 0.01, 0.02, 0.04, 0.08, 0.16], 0.2, 34),
        (3.6, 0.6, [0.005, 0.01, 0.02, 0.04, 0.06], 0.06, 15),
        (0.54, 0.0, [0.005, 0.009, 0.009], 0.009, 6),
        (30, 1e9, [0.005, 0.01, 0.02, 0.04, 0.08, 0.16], 0.2, 162),  # no time-out: its patience
    ],
)
def test_an_unreachable_store_is_asked_at_growing_intervals(lease, until, first, longest, most):
    times = [0.0]

    async def sleep(seconds):
        times.append(times[-1] + seconds)

    def away(claims, budget):
        raise BackendError("away")

    core = Claiming()
    core.runtime = SimpleNamespace(now=lambda: times[-1], sleep=sleep)
    core.store = SimpleNamespace(claim=away, patience=10.0)
    with pytest.raises(BackendError):
        run(core.claim_until_known([Claim("n", "1", "who", lease)], until, 0.0))
    limit = min(until + GRACE / 2, max(10.0, lease))
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[: len(first)] == pytest.approx(first) and max(pauses) == pytest.approx(longest)
    assert len(times) <= most and limit - times[-1] <= longest + 0.001


def test_a_time_out_at_a_broken_store_is_still_an_acquire_timeout(lockfast_client):
    scripted(lockfast_client, "claim", Busy(1.0, 1))
    scripted(lockfast_client, "inspect", *[BackendError("gone")] * 2)
    with pytest.raises(AcquireTimeout, match="its holder is unknown") as refused:
        lockfast_client.lock("n").acquire(timeout=0)
    assert refused.value.snapshot is None


def test_a_time_out_does_not_fail_if_the_claim_cannot_be_withdrawn(lockfast_client, lockfast_clock):
    def ask_in_vain():
        lockfast_clock.advance(5)
        return Busy(1.0, 1)

    scripted(lockfast_client, "claim", Busy(1.0, 1), ask_in_vain)
    scripted(lockfast_client, "leave", BackendError("broken", transient=False))
    assert lockfast_client.lock("n").try_acquire(timeout=3) is None
    scripted(lockfast_client, "claim", Busy(1.0, 1), ask_in_vain)
    left = scripted(lockfast_client, "leave", BackendError("away"))
    assert lockfast_client.lock("n").try_acquire(timeout=3) is None
    assert left == []


def test_a_client_closed_between_a_grant_and_its_entry_releases_it(lockfast_client):
    claim = lockfast_client._core.store.claim

    async def closes(*args):
        granted = claim(*args)
        lockfast_client._core.ledger.closed = True
        return granted

    lockfast_client._core.store.claim = closes
    with pytest.raises(NotHeld, match="closed"):
        lockfast_client.lock("n").acquire()
    assert lockfast_client.inspect("n").holders == ()


def test_a_hold_that_the_store_forgot_cannot_be_detached(lockfast_client):
    hold = lockfast_client.lock("n").acquire()
    lockfast_client._endpoint.forget("default:n")
    with pytest.raises(HoldLost):
        hold.detach()
    with pytest.raises(HoldLost):
        hold.release()


def test_a_hold_that_ends_while_others_are_released_at_close_is_skipped(lockfast_client):
    first = lockfast_client.lock("a").acquire()
    second = lockfast_client.lock("b").acquire()
    ledger = lockfast_client._core.ledger

    def meanwhile():
        with ledger.mutex:
            ledger.end(second._held, State.RELEASED, 0.0)

    ledger.on_end(first._held, meanwhile)
    lockfast_client.close()
    assert not first.is_held and lockfast_client.statistics().released == 2


def test_a_stopped_keeper_is_not_started_again(lockfast_client):
    keeper = lockfast_client._core.keeper
    keeper.stop()
    keeper.schedule(0.0)
    assert not keeper.running


def test_a_renewal_by_hand_that_is_answered_too_late_is_a_loss(lockfast_client, lockfast_clock):
    hold = lockfast_client.lock("a", lease=10).acquire()
    renew = lockfast_client._core.store.renew

    async def late(*args):
        answer = renew(*args)
        lockfast_clock.advance(11)
        return answer

    lockfast_client._core.store.renew = late
    with pytest.raises(HoldLost, match="lease of 10 s is over"):
        hold.renew()


def test_a_refresh_with_an_older_fence_is_not_accepted():
    waiting = Waiting(Claim("n", "id", "who", 30.0), ThreadSignal())
    waiting.still(5.0, 5.0, 1.0, 100)
    assert _accepted_grant(waiting, 6.0, Granted(99, 30.0), 7.0) is None
    assert _accepted_grant(waiting, 6.0, Granted(101, 30.0), 7.0) is not None
    assert (
        _accepted_grant(waiting, 6.0, Granted(0, 30.0), 7.0) is not None
    )  # a store without fences


def test_a_keeper_with_a_hold_does_not_retire(lockfast_client):
    lockfast_client.lock("a").acquire()
    assert not lockfast_client._core.keeper._retire()
    assert lockfast_client._core.keeper.running


def test_an_idle_keeper_retires_and_the_next_hold_starts_another(lockfast_client, lockfast_clock):
    with lockfast_client.lock("a"):
        assert lockfast_client._core.keeper.running
    lockfast_clock.advance(60)
    assert not lockfast_client._core.keeper.running
    with lockfast_client.lock("a") as hold:
        assert lockfast_client._core.keeper.running
        lockfast_clock.advance(100)
        assert hold.is_held


def test_an_interrupted_idle_keeper_stays_for_its_idle_time(lockfast_client, lockfast_clock):
    with lockfast_client.lock("a"):
        pass
    lockfast_clock.advance(11)  # it woke up, found nothing due, and has been idle since
    lockfast_client._core.keeper.store.interrupt()
    lockfast_clock.advance(1)
    assert lockfast_client._core.keeper.running
    lockfast_clock.advance(60)
    assert not lockfast_client._core.keeper.running


def test_a_keeper_continues_after_an_unexpected_error(lockfast_client, lockfast_clock, caplog):
    renew = lockfast_client._core.store.renew
    errors = [RuntimeError("a bug")]

    async def failing(*args):
        if errors:
            raise errors.pop()
        return renew(*args)

    lockfast_client._core.store.renew = failing
    with lockfast_client.lock("a") as hold:
        lockfast_clock.advance(100)
        assert hold.is_held
    assert "unexpected error in the keeper" in caplog.text


def test_a_keeper_that_was_paused_during_a_withdrawal_does_not_oversleep():
    now, pauses = [0.0], []

    async def leave(*args):
        now[0] += 12.0  # the process is paused just here
        raise BackendError("away")

    async def listen(pause):
        pauses.append(pause)
        keeper.stop()

    runtime = SimpleNamespace(now=lambda: now[0], mutex=nullcontext, spawn=lambda *args: None)
    store = SimpleNamespace(
        leave=leave,
        listen=listen,
        interrupt=lambda: None,
        in_session=False,
        capabilities=SimpleNamespace(session=0.0),
        on_uncertain=lambda callback: None,
    )
    keeper = Keeper(runtime, store, Ledger(runtime))
    keeper.keep_withdrawing(Claim("default:n", "1", "who", 30.0))
    now[0] = 1.0
    run(keeper.run())
    assert pauses == [LEAVE_EVERY]


def test_a_loss_is_marked_once(lockfast_client):
    lost = []
    hold = lockfast_client.lock("a", on_lost=lost.append).acquire()
    lockfast_client._core.ledger.lose(hold._held, "first")
    lockfast_client._core.ledger.lose(hold._held, "second")
    assert hold._held.cause == "first" and len(lost) == 1
    assert lockfast_client.statistics().lost == 1


def test_the_holders_of_a_name_are_described_in_one_line():
    assert describe(None) == "its holder is unknown (the store did not answer)"
    waiter = Waiter(Who("h", 1, "t"), 1, 0.0, True)
    free = Snapshot("n", 1, (), (waiter,), 0.0)
    assert describe(free).startswith("it has just become free, 1 waiter")
    assert [ago(3.21), ago(185), ago(7300)] == ["3.2 s", "3 min 5 s", "2 h 1 min"]
    assert ago(180000) == "2 d 2 h"


def test_everything_public_has_a_docstring():
    for name in lockfast.__all__:
        assert getattr(lockfast, name).__doc__, name


def test_a_claim_given_up_while_the_store_was_unreachable_is_withdrawn_later(
    lockfast_client, lockfast_clock
):
    store = lockfast_client._core.store
    claim, leave = store.claim, store.leave
    away = [BackendError("away")] * 3  # one attempt at once, two by the keeper

    async def slowly(*args):
        answer = claim(*args)
        lockfast_clock.advance(2)
        return answer

    async def not_yet(*args):
        if away:
            raise away.pop()
        return leave(*args)

    lockfast_client.lock("n", owner="a").acquire()
    store.claim, store.leave = slowly, not_yet
    assert lockfast_client.lock("n", owner="b").try_acquire(timeout=1) is None
    assert lockfast_client.inspect("n").waiters != ()
    lockfast_clock.advance(2)
    assert away == [] and lockfast_client.inspect("n").waiters == ()
    assert not lockfast_client._core.ledger.withdrawals


def test_a_claim_given_up_is_forgotten_when_it_must_have_expired(lockfast_client, lockfast_clock):
    async def away(*args):
        raise BackendError("away")

    lockfast_client.lock("n", owner="a").acquire()
    claim = lockfast_client._core.store.claim

    async def slowly(*args):
        answer = claim(*args)
        lockfast_clock.advance(2)
        return answer

    lockfast_client._core.store.claim = slowly
    lockfast_client._core.store.leave = away
    assert lockfast_client.lock("n", owner="b").try_acquire(timeout=1) is None
    lockfast_clock.advance(9)
    assert lockfast_client._core.ledger.withdrawals
    lockfast_clock.advance(3)
    assert not lockfast_client._core.ledger.withdrawals


def test_closing_is_bounded_in_time_however_many_holds_there_are(
    lockfast_client, lockfast_clock, caplog
):
    asked = []

    async def hangs(claim, budget):
        asked.append(claim)
        lockfast_clock.advance(0.3)
        raise BackendError("away")

    for number in range(50):
        lockfast_client.lock(f"job:{number}").acquire()
    lockfast_client._core.store.leave = hangs
    lockfast_client.close()
    assert len(asked) == 3  # 0.8 s in all
    assert [record.getMessage() for record in caplog.records] == [
        "lockfast: release of 50 claims unknown, leases end them: away"
    ]


def test_a_hold_is_uncertain_until_its_release_is_answered(lockfast_client):
    hold = lockfast_client.lock("a").acquire()
    answers = scripted(lockfast_client, "release", BackendError("away", transient=False), True)
    with pytest.raises(BackendError, match="unknown"):
        hold.release()
    assert not hold.is_held and not hold.is_certain
    hold.release()
    assert hold.is_certain and not answers


def test_a_hold_stays_uncertain_if_the_request_is_older_than_the_uncertainty(
    lockfast_client, lockfast_clock
):
    """A reply to a request from before the connection was lost says nothing about now."""
    hold = lockfast_client.lock("a").acquire()
    renew = lockfast_client._core.store.renew
    uncertainties = [lockfast_client._core.keeper.mark_uncertain]

    async def overtaken(*args):
        answer = renew(*args)
        lockfast_clock._now += 0.1
        if uncertainties:
            uncertainties.pop()()
        return answer

    lockfast_client._core.store.renew = overtaken
    lockfast_clock.advance(10)
    assert hold.is_held and not hold.is_certain
    lockfast_clock.advance(10)
    assert hold.is_held and hold.is_certain
    hold.release()


def test_a_hold_that_expired_by_our_own_clock_is_certain(lockfast_client, lockfast_clock):
    hold = lockfast_client.lock("a").acquire()
    scripted(lockfast_client, "renew", *[BackendError("away")] * 1000)
    lockfast_clock.advance(20)
    assert hold.is_held and not hold.is_certain
    lockfast_clock.advance(10)
    assert hold.lost and hold.is_certain


def test_one_unreachable_server_of_several_loses_only_its_own_holds(
    lockfast_client, lockfast_clock
):
    here, there = (lockfast_client.lock(name).acquire() for name in ("here", "there"))
    renew = lockfast_client._core.store.renew

    async def partly(claims, fences, budget):
        answers = renew(claims, fences, budget)
        return [
            BackendError("away") if claim.name.endswith("there") else answer
            for claim, answer in zip(claims, answers, strict=True)
        ]

    lockfast_client._core.store.renew = partly
    lockfast_clock.advance(20)
    assert here.is_held and here.is_certain
    assert there.is_held and not there.is_certain
    assert lockfast_client.statistics().renewals == 2
    lockfast_clock.advance(10)
    assert here.is_held and there.lost
    assert lockfast_client.statistics().lost == 1
    here.release()

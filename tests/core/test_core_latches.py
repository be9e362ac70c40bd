"""Edge cases of latches, barriers and `once_every`, on a scripted store."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from lockfast import BackendError, ConfigurationError, HoldLost, NotHeld
from lockfast.decorators import seconds_of
from lockfast.model import BARRIER, LATCH, Busy, Claim, Differs, Granted, kind_of
from lockfast.runtime.threads import run

DAY = 86400.0


def failing(store, verb, *errors, after=False):
    """Make the verb raise these errors first, before or after it is done, and then work again."""
    real, left = getattr(store, verb), list(errors)

    async def broken(*args):
        if left and not after:
            raise left.pop(0)
        answer = real(*args)
        if left:
            raise left.pop(0)
        return answer

    setattr(store, verb, broken)
    return left


def mark_holders(client, name):
    return run(client._core.inspect(f"default+once:{name}")).holders


def test_every_size_has_a_kind():
    assert kind_of(LATCH + 3) == "a latch of 3" and kind_of(BARRIER + 2) == "a barrier of 2"


def test_the_repr_of_a_primitive_names_its_kind_and_store(lockfast_client):
    assert "<Latch 'a' of 3 on memory" in repr(lockfast_client.latch("a", 3))
    assert "<Barrier 'a' of 2 on memory" in repr(lockfast_client.barrier("a", 2))
    assert "<Election 'a' on memory" in repr(lockfast_client.election("a"))


# ---- counting down ---------------------------------------------------------------------------


def test_a_count_down_is_neither_renewed_nor_released(lockfast_client, lockfast_clock):
    assert lockfast_client.latch("a", 2, keep=50).count_down()
    assert lockfast_client.statistics().held == 0 and not lockfast_client._core.ledger.asking
    lockfast_clock.advance(49)
    assert lockfast_client.latch("a", 2).remaining() == 1
    lockfast_clock.advance(1)
    assert lockfast_client.latch("a", 2).remaining() == 2


def test_a_failed_count_down_is_no_longer_under_way(lockfast_client):
    failing(lockfast_client._core.store, "claim", BackendError("broken", transient=False))
    with pytest.raises(BackendError, match="broken"):
        lockfast_client.latch("a", 2).count_down()
    assert not lockfast_client._core.ledger.asking
    assert lockfast_client.latch("a", 2).remaining() == 2


@pytest.mark.parametrize("answer", [Differs(1), Differs(LATCH + 5), Differs(BARRIER + 2)])
def test_a_count_down_of_another_kind_is_an_error(lockfast_client, answer):
    def differs(*args):
        return [answer]

    lockfast_client._core.store.claim = differs
    with pytest.raises(ConfigurationError, match=f"{kind_of(answer.slots)}.*a latch of 2"):
        lockfast_client.latch("a", 2).count_down()
    assert not lockfast_client._core.ledger.asking


# ---- passing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BackendError("away", transient=False), HoldLost("lost", name="a", fence=1)]
)
def test_a_waiter_passes_a_latch_even_if_its_release_fails(lockfast_client, error):
    assert lockfast_client.latch("a", 1).count_down()
    failing(lockfast_client._core.store, "release", error)
    assert lockfast_client.latch("a", 1).wait() is True


def test_a_time_out_whose_withdrawal_fails_is_a_time_out(lockfast_client, lockfast_clock):
    failing(lockfast_client._core.store, "leave", BackendError("broken", transient=False))
    done = []
    waiter = threading.Thread(
        target=lambda: done.append(lockfast_client.barrier("a", 2).wait(3)), daemon=True
    )
    waiter.start()
    while not lockfast_client.statistics().waiting:
        pass
    lockfast_clock.advance(5)
    waiter.join(15)
    assert done == [False]


def test_waiting_counts_the_parties_at_a_barrier(lockfast_client):
    assert lockfast_client.barrier("a", 2).waiting() == 0
    lockfast_client._core.store.claim([claim_at_barrier()], 5.0)
    assert lockfast_client.barrier("a", 2).waiting() == 1


def claim_at_barrier():
    return Claim("default:a", "id", "host 1 thread", 30.0, BARRIER + 2)


# ---- once per period -------------------------------------------------------------------------


def test_a_mark_lasts_until_the_period_is_over(lockfast_client, lockfast_clock):
    job = lockfast_client.once_every(100, name="job")(lambda: "ran")
    lockfast_clock.advance(100 - lockfast_clock.wall() % 100 + 40)
    assert job() == "ran"
    lockfast_clock.advance(59.5)
    assert job() is None
    lockfast_clock.advance(0.5)
    assert job() == "ran"


def test_a_mark_outlasts_the_client_that_made_it(lockfast_client, lockfast_clock):
    lockfast_clock.advance(DAY - lockfast_clock.wall() % DAY)
    assert lockfast_client.once_every("1d", name="job")(lambda: "ran")() == "ran"
    lockfast_clock.advance(3600 * 23)
    (holder,) = mark_holders(lockfast_client, "job")
    assert holder.remaining == pytest.approx(3600)
    assert lockfast_client.statistics().held == 0
    lockfast_client.close()
    assert mark_holders(lockfast_client, "job")


def test_at_least_is_counted_from_where_the_run_began(lockfast_client, lockfast_clock):
    def work():
        lockfast_clock.advance(15)
        return "ran"

    lockfast_clock.advance(10 - lockfast_clock.wall() % 10)
    job = lockfast_client.once_every(10, name="job", at_least=40)(work)
    assert job() == "ran"
    lockfast_clock.advance(24.5)
    assert job() is None
    lockfast_clock.advance(0.5)
    assert job() == "ran"


def test_a_run_that_ends_with_its_period_leaves_no_mark(lockfast_client, lockfast_clock):
    lockfast_clock.advance(10 - lockfast_clock.wall() % 10)

    def work():
        lockfast_clock.advance(9.995)
        return "ran"

    assert lockfast_client.once_every(10, name="job")(work)() == "ran"
    assert mark_holders(lockfast_client, "job") == ()


def test_a_run_that_cannot_read_the_clock_is_released(lockfast_client):
    failing(lockfast_client._core.store, "inspect", *[BackendError("away")] * 2)
    job = lockfast_client.once_every("1d", name="job")(lambda: "ran")
    with pytest.raises(BackendError, match="away"):
        job()
    assert lockfast_client.statistics().held == 0
    assert job() == "ran"


def test_a_run_whose_mark_fails_raises_the_error(lockfast_client, lockfast_clock):
    failing(lockfast_client._core.store, "transfer", BackendError("broken", transient=False))
    with pytest.raises(BackendError, match="broken"):
        lockfast_client.once_every("1d", name="job")(lambda: "ran")()
    assert lockfast_client.statistics().held == 0


def test_an_exception_of_a_run_whose_mark_fails_carries_a_note(
    lockfast_client, lockfast_aio_client
):
    def plain():
        raise ZeroDivisionError

    async def coroutine():
        raise ZeroDivisionError

    for client in (lockfast_client, lockfast_aio_client):
        failing(client._core.store, "transfer", BackendError("broken", transient=False))
    with pytest.raises(ZeroDivisionError) as blocking:
        lockfast_client.once_every("1d", name="job")(plain)()
    with pytest.raises(ZeroDivisionError) as tasks:
        asyncio.run(lockfast_aio_client.once_every("1d", name="job")(coroutine)())
    for caught in (blocking, tasks):
        assert caught.value.__notes__ == ["and while ending this run of 'job': broken"]


def test_a_run_that_the_store_forgot_is_lost(lockfast_client):
    def forget():
        lockfast_client._endpoint.forget("default+once:job")

    with pytest.raises(HoldLost, match="'job'"):
        lockfast_client.once_every("1d", name="job")(forget)()


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("0.5s", 0.5),
        ("1d1h1m1s", 90061),
        (300, 300),
        (timedelta(hours=1), timedelta(hours=1)),  # left for the checks of numbers
    ],
)
def test_a_duration_is_parsed(text, seconds):
    assert seconds_of("period", text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "5m ", "-5m", "5w", "5m5", "1.s", ".5s"])
def test_a_malformed_duration_is_refused(text):
    with pytest.raises(ConfigurationError, match=r'period=.*"1h30m"'):
        seconds_of("period", text)


# ---- detaching ------------------------------------------------------------------------------


def test_detaching_is_retried_with_the_remaining_time(lockfast_client, lockfast_clock):
    lockfast_clock.advance(DAY - lockfast_clock.wall() % DAY)
    leases = []
    real = lockfast_client._core.store.transfer

    async def slowly(claim, attached, budget):
        leases.append(claim.lease)
        real(claim, attached, budget)
        if len(leases) == 1:
            lockfast_clock._now += 2
            raise BackendError("the reply is lost")
        return real(claim, attached, budget)

    async def at_once(seconds):
        lockfast_clock._now += seconds

    lockfast_client._core.store.transfer = slowly
    lockfast_client._core.runtime.sleep = at_once
    assert lockfast_client.once_every("1d", name="job")(lambda: "ran")() == "ran"
    assert leases[1] == pytest.approx(leases[0] - 2.02)


def test_detaching_fails_after_its_budget_and_the_hold_is_kept(lockfast_client, lockfast_clock):
    async def away(*args):
        lockfast_clock._now += 2
        raise BackendError("away")

    async def at_once(seconds):
        lockfast_clock._now += seconds

    hold = lockfast_client.lock("a").acquire()
    lockfast_client._core.store.transfer = away
    real, lockfast_client._core.runtime.sleep = lockfast_client._core.runtime.sleep, at_once
    with pytest.raises(BackendError, match="away"):
        hold.detach()
    lockfast_client._core.runtime.sleep = real
    lockfast_clock.advance(100)
    assert hold.is_held and lockfast_client.statistics().held == 1


def test_a_hold_lost_while_detaching_is_not_kept_again(lockfast_client):
    hold = lockfast_client.lock("a").acquire()

    async def lost(*args):
        lockfast_client._core.ledger.lose(hold._held, "broken")
        raise BackendError("away", transient=False)

    lockfast_client._core.store.transfer = lost
    with pytest.raises(BackendError, match="away"):
        hold.detach()
    assert lockfast_client.statistics().held == 0
    with pytest.raises(HoldLost):
        hold.release()


def test_detaching_waits_for_a_renewal_under_way_but_not_for_ever(lockfast_client, lockfast_clock):
    hold = lockfast_client.lock("a").acquire()
    slept = []

    async def at_once(seconds):
        slept.append(seconds)
        lockfast_clock._now += seconds

    lockfast_client._core.runtime.sleep = at_once
    lockfast_client._core.keeper.sending = [hold._held]
    hold.detach()
    assert sum(slept) == pytest.approx(5, abs=0.1)  # one operation's budget
    with pytest.raises(NotHeld):
        hold.check()


def test_a_waiter_whose_wakeup_was_lost_passes_an_open_latch_at_its_refresh(
    lockfast_client, lockfast_clock
):
    """The wake-up was lost: the keeper's next refresh is answered with the grant."""
    done = []
    waiter = threading.Thread(
        target=lambda: done.append(lockfast_client.latch("a", 1).wait()), daemon=True
    )
    waiter.start()
    while not lockfast_client.statistics().waiting:
        pass
    lockfast_client._endpoint.wakeups.deliver = lambda *args: None
    assert lockfast_client.latch("a", 1).count_down()
    lockfast_clock.advance(2)
    waiter.join(15)
    assert done == [True]


def test_a_barrier_answers_like_any_claim(lockfast_client):
    claim = claim_at_barrier()
    assert isinstance(lockfast_client._core.store.claim([claim], 5.0)[0], Busy)
    other = claim._replace(id="other")
    assert isinstance(lockfast_client._core.store.claim([other], 5.0)[0], Granted)

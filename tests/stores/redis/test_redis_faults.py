"""A faulty network in front of the server, and interrupted callers: every call ends, no grant is
left without an owner, and no call reads the reply of another."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, took, until

import lockfast
from lockfast import AcquireTimeout, BackendError, HoldLost, NotHeld, aio
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.scripts import CLAIM, LEAVE, RELEASE, RENEW, TRANSFER, Script

Make = Callable[..., Agent]
LEASE = 1.2
BUDGET = LEASE / 6
SLACK = 0.1 + 0.25  # the promised bound, and the delay of a busy machine


def sha(script: Script) -> bytes:
    return script.sha.encode()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")


@pytest.fixture
def loaded_scripts(redis_server: Any) -> None:
    """Load all scripts, so that each operation sends a single EVALSHA."""
    from lockfast.stores.redis.scripts import ALL

    for script in ALL:
        redis_server.call("SCRIPT", "LOAD", script.source)


# ---- every call ends ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hole, timeout, connected",
    [("both", 0, True), ("both", 0.2, False), ("down", 0.2, True)],
)
def test_an_acquire_in_a_black_hole_ends_after_its_timeout_and_one_budget(
    agent: Make, network: Any, proxied: str, name: str, hole: Any, timeout: float, connected: bool
) -> None:
    mine = agent(proxied, lease=LEASE)
    if connected:
        mine.do(lambda client: client.inspect(name))
    network.black_hole(hole)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    # The claim and its withdrawal, if the claim may have arrived, share the budget.
    assert time_of.unstalled < timeout + BUDGET * 1.5 + SLACK
    network.heal()
    hold = mine.do(lambda client: client.lock(f"{name}-2").acquire(timeout=PATIENCE))
    mine.do(lambda client: hold.release())


def test_a_wait_in_a_black_hole_ends_on_time(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(proxied, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: timed(client, name, 0.3))
    until(lambda: other.client.statistics().waiting)
    network.black_hole()
    error, seconds = waits.result(PATIENCE)
    assert isinstance(error, AcquireTimeout | BackendError)
    assert 0.3 <= seconds < 0.3 + BUDGET + SLACK
    assert hold.is_held


def timed(client: Any, name: str, timeout: float) -> Any:
    """Acquire with either API; return the hold or the error, and how long it took."""
    began = time.monotonic()
    if isinstance(client, lockfast.Client):
        try:
            return client.lock(name).acquire(timeout=timeout), time.monotonic() - began
        except (AcquireTimeout, BackendError) as error:
            return error, time.monotonic() - began

    async def work() -> Any:
        try:
            return await client.lock(name).acquire(timeout=timeout), time.monotonic() - began
        except (AcquireTimeout, BackendError) as error:
            return error, time.monotonic() - began

    return work()


def test_the_driver_does_not_retry(
    agent: Make, network: Any, proxied: str, name: str, loaded_scripts: None
) -> None:
    mine = agent(proxied, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire())
    accepted = network.accepted
    network.black_hole("down")
    with took() as time_of, pytest.raises(BackendError):
        mine.do(lambda client: hold.renew())
    assert time_of.seconds > 0.4 and time_of.unstalled < 0.5 + SLACK, "one budget per operation"
    assert network.accepted == accepted, "the driver has reconnected by itself"


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_silent_server_makes_the_outcome_unknown_within_the_budget(
    agent: Make, network: Any, proxied: str, name: str, verb: str
) -> None:
    mine = agent(proxied, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.black_hole()
    with took() as time_of, pytest.raises(BackendError):
        mine.do(lambda client: getattr(hold, verb)())
    assert time_of.unstalled < BUDGET + SLACK
    network.heal()


def test_a_freeze_shorter_than_a_lease_ends_neither_a_hold_nor_a_wait(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(proxied, lease=1.5), agent(proxied, lease=1.5)
    hold = mine.do(lambda client: client.lock(name, renew=True).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    network.freeze()
    time.sleep(0.6)
    network.thaw()
    renewed = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewed)
    assert hold.is_held and not waits.done()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence


def test_a_freeze_longer_than_a_lease_ends_the_hold_before_the_next_grant(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(proxied, lease=0.6), agent(redis_server.url)
    lost: list[float] = []
    hold = mine.do(
        lambda client: client.lock(
            name, on_lost=lambda hold: lost.append(time.monotonic())
        ).acquire()
    )
    waits = other.later(lambda client: timed(client, name, PATIENCE))
    until(lambda: other.client.statistics().waiting)
    network.freeze()
    later, _ = waits.result(PATIENCE)
    granted = time.monotonic()
    assert not hold.is_held, "two valid holds"
    until(lambda: lost)
    assert lost[0] < granted + 0.2 and later.fence > hold.fence
    network.thaw()
    time.sleep(0.2)  # the delayed renewals of the lost hold arrive
    assert hold.lost and len(lost) == 1
    assert [h.fence for h in other.do(lambda client: client.inspect(name)).holders] == [later.fence]
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert [h.fence for h in other.do(lambda client: client.inspect(name)).holders] == [later.fence]


# ---- lost replies -------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["reset", "silence"])
def test_a_claim_whose_reply_is_lost_is_retried_and_granted(
    agent: Make,
    network: Any,
    proxied: str,
    redis_server: Any,
    name: str,
    then: Any,
    loaded_scripts: None,
) -> None:
    mine, other = agent(proxied, lease=3), agent(redis_server.url)
    mine.do(lambda client: client.inspect(name))
    network.lose_replies(match=sha(CLAIM), then=then)
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=1.5))
    assert network.lost_replies == 1, "the reply was not lost"
    snapshot = other.do(lambda client: client.inspect(name))
    assert [holder.fence for holder in snapshot.holders] == [hold.fence]
    assert hold.remaining() <= 3
    mine.do(lambda client: hold.release())
    assert not other.do(lambda client: client.inspect(name)).holders


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_an_acquire_that_fails_without_a_reply_frees_the_lock_at_once(
    agent: Make,
    network: Any,
    proxied: str,
    redis_server: Any,
    name: str,
    timeout: float,
    loaded_scripts: None,
) -> None:
    mine, other = agent(proxied, lease=3), agent(redis_server.url)
    mine.do(lambda client: client.inspect(name))
    network.lose_replies(1000, match=sha(CLAIM))
    with pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    assert network.lost_replies >= 1
    # What the time-out left no time for is withdrawn by the keeper.
    hold = other.do(lambda client: client.lock(name).try_acquire(timeout=1.0))
    assert hold is not None, "a claim without an owner holds the lock"
    other.do(lambda client: hold.release())
    network.lose_replies(0)


@pytest.mark.parametrize("then", ["reset", "silence"])
@pytest.mark.parametrize("waiters", [0, 1])
def test_a_release_whose_reply_is_lost_does_not_report_a_lost_hold(
    agent: Make,
    network: Any,
    proxied: str,
    redis_server: Any,
    name: str,
    then: Any,
    waiters: int,
    loaded_scripts: None,
) -> None:
    mine, other = agent(proxied, lease=3), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = [
        other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        for _ in range(waiters)
    ]
    until(lambda: other.client.statistics().waiting == waiters)
    network.lose_replies(match=sha(RELEASE), then=then)
    mine.do(lambda client: hold.release())
    assert network.lost_replies == 1
    assert not hold.lost and not hold.is_held and mine.client.statistics().lost == 0
    for wait in waits:
        later = wait.result(PATIENCE)
        assert later.fence > hold.fence and later.is_held
        other.do(lambda client: later.release())  # noqa: B023


def test_a_release_without_a_reply_is_unknown_and_can_be_retried(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str, loaded_scripts: None
) -> None:
    mine, other = agent(proxied, lease=LEASE), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name, lease=5).acquire())
    network.refuse()
    network.reset()
    with pytest.raises(BackendError, match="unknown"):
        mine.do(lambda client: hold.release())
    assert other.do(lambda client: client.inspect(name)).holders
    network.accept()
    mine.do(lambda client: hold.release())
    assert not other.do(lambda client: client.inspect(name)).holders


@pytest.mark.parametrize("then", ["reset", "silence"])
def test_an_attach_whose_reply_is_lost_is_repeated_and_nobody_else_can_attach(
    agent: Make,
    network: Any,
    proxied: str,
    redis_server: Any,
    name: str,
    then: Any,
    loaded_scripts: None,
) -> None:
    mine, first = agent(proxied, lease=6), agent(redis_server.url, lease=6)
    hold = first.do(lambda client: client.lock(name).acquire())
    text = first.do(lambda client: hold.detach())
    mine.do(lambda client: client.inspect(name))
    network.lose_replies(match=sha(TRANSFER), then=then)
    attached = mine.do(lambda client: client.attach(name, text))
    assert network.lost_replies == 1, "the reply was not lost"
    assert attached.fence == hold.fence and attached.is_held
    with pytest.raises(NotHeld, match="cannot be taken over"):
        first.do(lambda client: client.attach(name, text))
    mine.do(lambda client: attached.release())
    assert not first.do(lambda client: client.inspect(name)).holders


def test_a_renewal_whose_reply_is_lost_does_not_end_the_hold(
    agent: Make, network: Any, proxied: str, name: str, loaded_scripts: None
) -> None:
    mine = agent(proxied, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.lose_replies(match=sha(RENEW))
    until(lambda: mine.client.statistics().renew_errors)
    until(lambda: mine.client.statistics().renewals)
    assert network.lost_replies == 1 and hold.is_held
    mine.do(lambda client: hold.release())


def test_validity_counts_from_before_the_claim_was_sent(
    agent: Make, network: Any, proxied: str, name: str, loaded_scripts: None
) -> None:
    mine = agent(proxied, lease=30)
    mine.do(lambda client: client.inspect(name))
    network.latency = 0.1
    hold = mine.do(lambda client: client.lock(name, lease=9).acquire())
    assert hold.remaining() <= 9 * 0.99 - 0.2
    network.latency = 0.0
    mine.do(lambda client: hold.release())


def test_a_late_first_reply_on_a_new_connection_is_not_taken_for_the_next_one(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str
) -> None:
    """The first request on a client's first connection is INFO, for the eviction policy."""
    network.lose_replies(match=b"INFO", then="silence")
    mine = agent(proxied, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=5))
    assert network.lost_replies == 1
    mine.do(lambda client: hold.release())
    network.latency = 0.02
    for _ in range(2):
        # The first attempt has 50 ms, enough for HELLO only; the next ones have 33 ms.
        slow = agent(proxied, lease=0.9)
        try:
            hold = slow.do(lambda client: client.lock(name).acquire(timeout=0))
            assert slow.api == "asyncio", (
                "only the async API goes on connecting between its attempts"
            )
            slow.do(lambda client, hold=hold: hold.release())
        except (BackendError, AcquireTimeout) as error:
            assert "unexpected reply" not in str(error) and "protocol" not in str(error)
    network.latency = 0.0


# ---- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("contended", [False, True])
def test_an_acquire_cancelled_at_any_step_leaves_nothing(
    redis_server: Any, name: str, contended: bool
) -> None:
    async def scene() -> int:
        async with aio.connect(redis_server.url) as client, aio.connect(redis_server.url) as other:
            hold = await other.lock(name).acquire() if contended else None
            for steps in range(200):
                task = asyncio.create_task(client.lock(name).acquire(timeout=0.05))
                for _ in range(steps):
                    await asyncio.sleep(0)
                    if contended and steps > 30:
                        await asyncio.sleep(0.001)
                task.cancel()
                try:
                    got = await task
                except asyncio.CancelledError:
                    pass
                except AcquireTimeout:
                    return steps
                else:
                    assert got.is_held
                    await got.release()
                    if not contended:
                        return steps
                snapshot = await other.inspect(name)
                assert not snapshot.waiters, f"a waiter is left after step {steps}"
                assert [h.fence for h in snapshot.holders] == ([hold.fence] if hold else [])
                if hold is None:
                    assert await other.lock(name).try_acquire() is not None
                    await other.lock(name).release()
                if contended and steps > 60:
                    return steps
        return 0

    assert asyncio.run(asyncio.wait_for(scene(), PATIENCE)) > 3


def test_a_release_cancelled_at_any_step_is_completed(redis_server: Any, name: str) -> None:
    async def scene() -> None:
        async with aio.connect(redis_server.url) as client, aio.connect(redis_server.url) as other:
            for steps in range(12):
                hold = await client.lock(name).acquire(timeout=5)
                task = asyncio.create_task(hold.release())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    if not steps:  # the release had not started
                        await hold.release()
                assert not (await other.inspect(name)).holders, f"still held after step {steps}"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_cancelled_calls_do_not_mix_up_the_replies_of_others(
    redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    """Replies to cancelled calls arrive later, between those of others, on one connection."""

    async def scene() -> None:
        async with aio.connect(proxied, lease=30) as client:
            held = [await client.lock(f"{name}-{i}").acquire() for i in range(3)]
            fences = {f"{name}-{i}": hold.fence for i, hold in enumerate(held)}
            network.latency = 0.02
            for cancelled in range(6):
                doomed = [
                    asyncio.create_task(client.inspect(f"{name}-{i % 3}")) for i in range(cancelled)
                ]
                await asyncio.sleep(0.005)
                for task in doomed[::2]:
                    task.cancel()
                for held_name, fence in fences.items():
                    assert (await client.inspect(held_name)).holders[0].fence == fence
                await asyncio.gather(*doomed, return_exceptions=True)
            network.latency = 0.0
            for hold in held:
                await hold.release()
            assert network.connections <= 2, "the client had to reconnect"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


class Interrupt(Exception):
    """An error raised by a signal handler; unlike KeyboardInterrupt it would not end pytest."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupt])
def test_an_interrupted_call_does_not_leave_its_reply_for_the_next_one(
    network: Any, proxied: str, name: str, kind: type[BaseException]
) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with lockfast.connect(proxied, lease=30) as client:
            holds = [client.lock(f"{name}-{i}").acquire() for i in range(2)]
            for attempt in range(4):
                network.latency = 0.08
                after = 0.02 + 0.02 * attempt
                timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(kind):
                    client.inspect(f"{name}-0")
                    time.sleep(PATIENCE)
                timer.join()
                network.latency = 0.0
                for i in (1, 0, 1):
                    (holder,) = client.inspect(f"{name}-{i}").holders
                    assert holder.fence == holds[i].fence, "that was the reply to another call"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("contended", [False, True])
def test_an_interrupted_acquire_leaves_nothing(
    network: Any, proxied: str, redis_server: Any, name: str, contended: bool, loaded_scripts: None
) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with (
            lockfast.connect(proxied, lease=30) as client,
            lockfast.connect(redis_server.url) as other,
        ):
            client.inspect(name)
            hold = other.lock(name).acquire() if contended else None
            for attempt in range(3):
                network.latency = 0.04
                after = 0.02 + 0.05 * attempt
                timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(KeyboardInterrupt), client.lock(name):
                    time.sleep(PATIENCE)
                timer.join()
                network.latency = 0.0
                snapshot = other.inspect(name)
                assert not snapshot.waiters
                assert [h.fence for h in snapshot.holders] == ([hold.fence] if hold else [])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_withdrawal_whose_reply_is_lost_leaves_no_waiter(
    agent: Make, network: Any, proxied: str, redis_server: Any, name: str, loaded_scripts: None
) -> None:
    mine, other = agent(redis_server.url), agent(proxied, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.lose_replies(match=sha(LEAVE))
    assert other.do(lambda client: client.lock(name).try_acquire(timeout=0.2)) is None
    # What the time-out left no time for is withdrawn by the keeper.
    until(lambda: not mine.do(lambda client: client.inspect(name)).waiters, 1.0)
    assert mine.do(lambda client: client.inspect(name)).holders[0].fence == hold.fence
    mine.do(lambda client: hold.release())
    assert redis_server.call("EXISTS", key_of(f"default:{name}") + ":q") == 0


def test_a_task_that_claims_while_another_subscribes_gets_a_wake_address_too(
    redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    """Its claim was sent without a wake address and answered after the subscription."""

    async def scene() -> None:
        async with aio.connect(proxied) as client, aio.connect(redis_server.url) as other:
            hold = await other.lock(name).acquire()
            await client.inspect(name)
            network.latency = 0.05
            waits = []
            for _ in range(4):  # before, during and after the subscription
                waits.append(asyncio.create_task(client.lock(name).acquire(timeout=PATIENCE)))
                await asyncio.sleep(0.06)
            await asyncio.sleep(0.3)
            network.latency = 0.0
            waiters = await asyncio.to_thread(
                redis_server.client().hgetall, key_of(f"default:{name}") + ":w"
            )
            wake_addresses = [row.split(b" ")[6] for key, row in waiters.items() if key != b".n"]
            assert len(wake_addresses) == 4 and b"." not in wake_addresses
            began = time.monotonic()
            await hold.release()
            for each in waits:
                await (await each).release()
            assert time.monotonic() - began < 1.0, "not woken by the releases"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_signals_do_not_prolong_a_call_to_a_frozen_server(
    network: Any, proxied: str, name: str
) -> None:
    """Python restarts a system call that a signal interrupted, with the whole of its time-out."""
    ticks: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    try:
        with lockfast.connect(proxied) as client:
            client.inspect(name)
            network.freeze()
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
                client.lock(name).acquire(timeout=0.4)
            signal.setitimer(signal.ITIMER_REAL, 0)
            network.thaw()
            assert len(ticks) >= 3
            assert time_of.unstalled < 0.4 + SLACK
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

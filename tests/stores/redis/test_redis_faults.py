"""A bad network before the server, and callers who are interrupted: every call has an end, nothing
is granted to nobody, and no call reads another's answer."""

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
from lockfast import AcquireTimeout, BackendError, HoldLost, aio
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.scripts import CLAIM, LEAVE, RELEASE, RENEW, Script

Make = Callable[..., Agent]
LEASE = 1.2
BUDGET = LEASE / 6
SLACK = 0.1 + 0.25  # what is promised, and what a noisy machine takes


def sha(script: Script) -> bytes:
    return script.sha.encode()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")


@pytest.fixture
def told_scripts(redis_server: Any) -> None:
    """The server knows all scripts: what is sent then is one EVALSHA per verb."""
    from lockfast.stores.redis.scripts import ALL

    for script in ALL:
        redis_server.call("SCRIPT", "LOAD", script.source)


# ---- everything has an end ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "hole, timeout, connected",
    [("both", 0, True), ("both", 0.2, False), ("down", 0.2, True)],
)
def test_a_black_hole_is_over_with_the_time_and_one_budget(
    agent: Make, network: Any, far: str, name: str, hole: Any, timeout: float, connected: bool
) -> None:
    mine = agent(far, lease=LEASE)
    if connected:
        mine.do(lambda client: client.inspect(name))
    network.black_hole(hole)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    # The claim, and leaving if it may have arrived, share the budget.
    assert time_of.seconds < timeout + BUDGET * 1.5 + SLACK
    network.heal()
    hold = mine.do(lambda client: client.lock(f"{name}-2").acquire(timeout=PATIENCE))
    mine.do(lambda client: hold.release())


def test_a_wait_that_falls_into_a_black_hole_is_over_on_time(
    agent: Make, network: Any, far: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(far, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: timed(client, name, 0.3))
    until(lambda: other.client.statistics().waiting)
    network.black_hole()
    error, seconds = waits.result(PATIENCE)
    assert isinstance(error, AcquireTimeout | BackendError)
    assert 0.3 <= seconds < 0.3 + BUDGET + SLACK
    assert hold.is_held


def timed(client: Any, name: str, timeout: float) -> Any:
    """Acquire, in either colour: what it raised, and how long it took."""
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


def test_no_call_is_sent_again_by_the_driver(
    agent: Make, network: Any, far: str, name: str, told_scripts: None
) -> None:
    mine = agent(far, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire())
    accepted = network.accepted
    network.black_hole("down")
    with took() as time_of, pytest.raises(BackendError):
        mine.do(lambda client: hold.renew())
    assert 0.4 < time_of.seconds < 0.5 + SLACK, "one operation's budget"
    assert network.accepted == accepted, "it connected again, on its own"


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_hold_whose_server_is_silent_says_unknown_within_the_budget(
    agent: Make, network: Any, far: str, name: str, verb: str
) -> None:
    mine = agent(far, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.black_hole()
    with took() as time_of, pytest.raises(BackendError):
        mine.do(lambda client: getattr(hold, verb)())
    assert time_of.seconds < BUDGET + SLACK
    network.heal()


def test_a_server_frozen_for_less_than_a_lease_costs_no_hold_and_no_place(
    agent: Make, network: Any, far: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(far, lease=1.5), agent(far, lease=1.5)
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


def test_a_server_frozen_for_longer_than_a_lease_ends_the_hold_before_anybody_else_gets_it(
    agent: Make, network: Any, far: str, redis_server: Any, name: str
) -> None:
    mine, other = agent(far, lease=0.6), agent(redis_server.url)
    told: list[float] = []
    hold = mine.do(
        lambda client: client.lock(
            name, on_lost=lambda hold: told.append(time.monotonic())
        ).acquire()
    )
    waits = other.later(lambda client: timed(client, name, PATIENCE))
    until(lambda: other.client.statistics().waiting)
    network.freeze()
    later, _ = waits.result(PATIENCE)
    got = time.monotonic()
    assert not hold.is_held, "two believe"
    until(lambda: told)
    assert told[0] < got + 0.2 and later.fence > hold.fence
    network.thaw()
    time.sleep(0.2)  # what was withheld arrives: renewals of what is over
    assert hold.lost and len(told) == 1
    assert [h.fence for h in other.do(lambda client: client.inspect(name)).holders] == [later.fence]
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert [h.fence for h in other.do(lambda client: client.inspect(name)).holders] == [later.fence]


# ---- lost replies -------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["reset", "silence"])
def test_a_lost_reply_of_a_claim_ends_in_holding_it(
    agent: Make, network: Any, far: str, redis_server: Any, name: str, then: Any, told_scripts: None
) -> None:
    mine, other = agent(far, lease=3), agent(redis_server.url)
    mine.do(lambda client: client.inspect(name))
    network.lose_replies(match=sha(CLAIM), then=then)
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert network.dropped == 1, "the reply was not lost: the test tests nothing"
    snapshot = other.do(lambda client: client.inspect(name))
    assert [holder.fence for holder in snapshot.holders] == [hold.fence]
    assert hold.remaining() <= 3
    mine.do(lambda client: hold.release())
    assert not other.do(lambda client: client.inspect(name)).holders


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_who_gives_up_without_a_reply_frees_it_at_once(
    agent: Make,
    network: Any,
    far: str,
    redis_server: Any,
    name: str,
    timeout: float,
    told_scripts: None,
) -> None:
    mine, other = agent(far, lease=3), agent(redis_server.url)
    mine.do(lambda client: client.inspect(name))
    network.lose_replies(1000, match=sha(CLAIM))
    with pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    assert network.dropped >= 1
    hold = other.do(lambda client: client.lock(name).try_acquire())
    assert hold is not None, "held by nobody"
    other.do(lambda client: hold.release())
    network.lose_replies(0)


@pytest.mark.parametrize("then", ["reset", "silence"])
@pytest.mark.parametrize("waiters", [0, 1])
def test_a_lost_reply_of_a_release_is_no_loss(
    agent: Make,
    network: Any,
    far: str,
    redis_server: Any,
    name: str,
    then: Any,
    waiters: int,
    told_scripts: None,
) -> None:
    mine, other = agent(far, lease=3), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = [
        other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        for _ in range(waiters)
    ]
    until(lambda: other.client.statistics().waiting == waiters)
    network.lose_replies(match=sha(RELEASE), then=then)
    mine.do(lambda client: hold.release())
    assert network.dropped == 1
    assert not hold.lost and not hold.is_held and mine.client.statistics().lost == 0
    for wait in waits:
        later = wait.result(PATIENCE)
        assert later.fence > hold.fence and later.is_held
        other.do(lambda client: later.release())  # noqa: B023


def test_a_release_that_nobody_answers_is_unknown_and_can_be_retried(
    agent: Make, network: Any, far: str, redis_server: Any, name: str, told_scripts: None
) -> None:
    mine, other = agent(far, lease=LEASE), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name, lease=5).acquire())
    network.refuse()
    network.reset()
    with pytest.raises(BackendError, match="unknown"):
        mine.do(lambda client: hold.release())
    assert other.do(lambda client: client.inspect(name)).holders
    network.accept()
    mine.do(lambda client: hold.release())
    assert not other.do(lambda client: client.inspect(name)).holders


def test_a_lost_reply_of_a_renewal_is_no_loss(
    agent: Make, network: Any, far: str, name: str, told_scripts: None
) -> None:
    mine = agent(far, lease=LEASE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.lose_replies(match=sha(RENEW))
    until(lambda: mine.client.statistics().renew_errors)
    until(lambda: mine.client.statistics().renewals)
    assert network.dropped == 1 and hold.is_held
    mine.do(lambda client: hold.release())


def test_a_claim_is_believed_from_before_it_was_sent(
    agent: Make, network: Any, far: str, name: str, told_scripts: None
) -> None:
    mine = agent(far, lease=30)
    mine.do(lambda client: client.inspect(name))
    network.latency = 0.1
    hold = mine.do(lambda client: client.lock(name, lease=9).acquire())
    assert hold.remaining() <= 9 * 0.99 - 0.2
    network.latency = 0.0
    mine.do(lambda client: hold.release())


def test_the_first_answer_on_a_new_connection_that_is_late_is_not_taken_for_the_next(
    agent: Make, network: Any, far: str, redis_server: Any, name: str
) -> None:
    """A client asks once, on its first connection, whether the server evicts."""
    network.lose_replies(match=b"INFO", then="silence")
    mine = agent(far, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=5))
    assert network.dropped == 1
    mine.do(lambda client: hold.release())
    network.latency = 0.02
    for _ in range(2):
        # The first attempt has 50 ms, enough for HELLO only; the next ones have 33.
        slow = agent(far, lease=0.9)
        try:
            hold = slow.do(lambda client: client.lock(name).acquire(timeout=0))
            assert slow.api == "asyncio", "which goes on connecting between its attempts"
            slow.do(lambda client, hold=hold: hold.release())
        except (BackendError, AcquireTimeout) as error:
            assert "no sense" not in str(error) and "protocol" not in str(error)
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
                assert not snapshot.waiters, f"a place is left after step {steps}"
                assert [h.fence for h in snapshot.holders] == ([hold.fence] if hold else [])
                if hold is None:
                    assert await other.lock(name).try_acquire() is not None
                    await other.lock(name).release()
                if contended and steps > 60:
                    return steps
        return 0

    assert asyncio.run(asyncio.wait_for(scene(), PATIENCE)) > 3


def test_a_release_cancelled_at_any_step_is_done(redis_server: Any, name: str) -> None:
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
                    if not steps:  # it had not begun
                        await hold.release()
                assert not (await other.inspect(name)).holders, f"held by nobody after {steps}"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_cancelled_calls_leave_the_connection_in_step(
    redis_server: Any, network: Any, far: str, name: str
) -> None:
    """Answers of cancelled calls come later, between those of others, on one connection."""

    async def scene() -> None:
        async with aio.connect(far, lease=30) as client:
            held = [await client.lock(f"{name}-{i}").acquire() for i in range(3)]
            fences = {f"{name}-{i}": hold.fence for i, hold in enumerate(held)}
            network.latency = 0.02
            for turn in range(6):
                doomed = [
                    asyncio.create_task(client.inspect(f"{name}-{i % 3}")) for i in range(turn)
                ]
                await asyncio.sleep(0.005)
                for task in doomed[::2]:
                    task.cancel()
                for which, fence in fences.items():
                    assert (await client.inspect(which)).holders[0].fence == fence
                await asyncio.gather(*doomed, return_exceptions=True)
            network.latency = 0.0
            for hold in held:
                await hold.release()
            assert network.connections <= 2, "it had to connect again"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


class Interrupt(Exception):
    """Stands for what a signal handler raises; KeyboardInterrupt would end pytest if it escaped."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupt])
def test_ctrl_c_in_the_middle_of_a_call_does_not_leave_its_answer_for_the_next(
    network: Any, far: str, name: str, kind: type[BaseException]
) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with lockfast.connect(far, lease=30) as client:
            holds = [client.lock(f"{name}-{i}").acquire() for i in range(2)]
            for turn in range(4):
                network.latency = 0.08
                after = 0.02 + 0.02 * turn
                timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(kind):
                    client.inspect(f"{name}-0")
                    time.sleep(PATIENCE)
                timer.join()
                network.latency = 0.0
                for i in (1, 0, 1):
                    (holder,) = client.inspect(f"{name}-{i}").holders
                    assert holder.fence == holds[i].fence, "that was another call's answer"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("contended", [False, True])
def test_ctrl_c_in_the_middle_of_an_acquire_leaves_nothing(
    network: Any, far: str, redis_server: Any, name: str, contended: bool, told_scripts: None
) -> None:
    def raise_it(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with lockfast.connect(far, lease=30) as client, lockfast.connect(redis_server.url) as other:
            client.inspect(name)
            hold = other.lock(name).acquire() if contended else None
            for turn in range(3):
                network.latency = 0.04
                after = 0.02 + 0.05 * turn
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


def test_a_lost_reply_of_leaving_leaves_no_place(
    agent: Make, network: Any, far: str, redis_server: Any, name: str, told_scripts: None
) -> None:
    mine, other = agent(redis_server.url), agent(far, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.lose_replies(match=sha(LEAVE))
    assert other.do(lambda client: client.lock(name).try_acquire(timeout=0.2)) is None
    snapshot = mine.do(lambda client: client.inspect(name))
    assert not snapshot.waiters and snapshot.holders[0].fence == hold.fence
    mine.do(lambda client: hold.release())
    assert redis_server.call("EXISTS", key_of(f"default:{name}") + ":q") == 0


def test_a_task_that_asks_while_another_begins_to_listen_is_heard_too(
    redis_server: Any, network: Any, far: str, name: str
) -> None:
    """Its claim still said that nobody hears it, and was answered when somebody did."""

    async def scene() -> None:
        async with aio.connect(far) as client, aio.connect(redis_server.url) as other:
            hold = await other.lock(name).acquire()
            await client.inspect(name)
            network.latency = 0.05
            waits = []
            for _ in range(4):  # one asks, one is about to subscribe, one has just done so
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
            assert time.monotonic() - began < 1.0, "not by bells"

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))

"""Test support for users: the virtual clock, the pytest fixtures, and `lose`."""

from __future__ import annotations

import asyncio
import threading

import pytest

import lockfast
from lockfast.testing import VirtualClock, aio_client, client, lose


def test_time_stands_still_until_it_is_advanced(lockfast_client, lockfast_clock):
    hold = lockfast_client.lock("report", lease=10).acquire()
    assert hold.remaining() == pytest.approx(9.9)
    lockfast_clock.advance(9)
    assert hold.is_held and not hold.lost
    lockfast_clock.advance(2)
    assert hold.lost and not hold.is_held and hold.remaining() == 0
    with pytest.raises(lockfast.HoldLost, match="lease of 10 s is over"):
        hold.check()
    with pytest.raises(lockfast.HoldLost):
        hold.release()
    with lockfast_client.lock("report") as again:
        assert again.fence > hold.fence


def test_the_keeper_renews_while_time_passes(lockfast_client, lockfast_clock):
    lost = []
    with lockfast_client.lock("report", on_lost=lost.append) as hold:
        for _ in range(20):
            lockfast_clock.advance(10)
            hold.check()
    assert lockfast_client.statistics().renewals >= 19
    assert lost == []


def test_max_hold_ends_renewal(lockfast_client, lockfast_clock):
    lost = []
    hold = lockfast_client.lock("report", max_hold=60, on_lost=lost.append).acquire()
    lockfast_clock.advance(59)
    assert hold.is_held
    lockfast_clock.advance(2)
    assert hold.lost and lost == [hold]
    with pytest.raises(lockfast.HoldLost, match="max_hold"):
        hold.release()


def test_lose_calls_on_lost_once_and_frees_the_lock_for_others(lockfast_client):
    lost = []
    lock = lockfast_client.lock("report", on_lost=lost.append)
    with (
        pytest.raises(lockfast.HoldLost, match=r"a test called lockfast\.testing\.lose\(\)"),
        lock as hold,
    ):
        assert lose(lockfast_client, "report") == 1
        assert hold.lost and lost == [hold]
        assert lose(lockfast_client, "report") == 0
        assert lockfast_client.lock("report", owner="another").try_acquire() is not None


def test_the_fixture_is_the_default_client(lockfast_client):
    with lockfast.lock("report"):
        assert lockfast_client.inspect("report").holders


def test_a_waiting_thread_gives_up_when_the_clock_gets_there(lockfast_client, lockfast_clock):
    raised = []

    def wait():
        try:
            lockfast_client.lock("report").acquire(timeout=5)
        except lockfast.AcquireTimeout as error:
            raised.append(error)

    with lockfast_client.lock("report"):
        thread = threading.Thread(target=wait)
        thread.start()
        while not lockfast_client._core.ledger.waiting:
            pass
        while thread.is_alive():
            lockfast_clock.advance(1)
            thread.join(0.01)
    assert "within 5 s" in str(raised[0])


def test_asyncio_bodies_are_cancelled_on_the_virtual_clock(lockfast_aio_client, lockfast_clock):
    async def main():
        async with lockfast_aio_client.lock("report", lease=10):
            asyncio.get_running_loop().call_soon(lockfast_clock.advance, 11)
            await asyncio.sleep(60)

    with pytest.raises(lockfast.HoldLost):
        asyncio.run(main())


def test_a_waiting_task_gives_up_when_the_clock_gets_there():
    clock = VirtualClock()
    tasks = aio_client(clock)

    async def main():
        async with tasks.lock("report"):
            waiting = asyncio.create_task(tasks.lock("report").try_acquire(timeout=5))
            await asyncio.sleep(0.01)
            clock.advance(6)
            assert await waiting is None

    asyncio.run(main())


def test_a_runtime_sleeps_on_the_virtual_clock():
    clock = VirtualClock()
    runtime = client(clock)._core.runtime

    def advance():
        while not clock._alarms:
            pass
        clock.advance(100)

    thread = threading.Thread(target=advance)

    async def main():
        thread.start()
        await runtime.sleep(50)

    began = clock.now()
    with pytest.raises(StopIteration):
        main().send(None)
    thread.join()
    assert clock.now() == began + 100

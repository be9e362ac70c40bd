"""Bugs that other libraries had on Redis, tried on lockfast (see tests/api/test_museum.py)."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, took, until

from lockfast import AcquireTimeout, BackendError, HoldLost, NotHeld
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.scripts import CLAIM, RELEASE, RENEW

Make = Callable[..., Agent]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")


def rows(server: Any, name: str) -> dict[bytes, bytes]:
    """Return the rows of the name's holders in the store: claim id → row."""
    found = server.client().hgetall(key_of(f"default:{name}"))
    return {key: value for key, value in found.items() if key != b".f"}


# ---- redis-py -----------------------------------------------------------------------------------


def test_redis_py_a_lost_reply_leaves_no_ghost_lock(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    mine = agent(proxied, lease=3)
    warm = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: warm.release())
    network.lose_replies(match=CLAIM.sha.encode())
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert network.lost_replies == 1
    ((_, row),) = rows(redis_server, name).items()
    assert row.startswith(f"{hold.fence} ".encode())
    mine.do(lambda client: hold.release())
    assert not rows(redis_server, name)


def test_redis_py_tasks_or_threads_sharing_a_lock_object_do_not_release_each_others_holds(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(redis_server.url)
    lock = mine.client.lock(name)
    entered, leave = threading.Event(), threading.Event()

    def hold(client: Any) -> Any:
        if mine.api == "blocking":
            with lock:
                entered.set()
                assert leave.wait(PATIENCE)
                return lock.is_held

        async def work() -> bool:
            async with lock:
                entered.set()
                while not leave.is_set():
                    await _pause()
                return bool(lock.is_held)

        return work()

    holding = mine.later(hold)
    assert entered.wait(PATIENCE)
    (claim_id,) = rows(redis_server, name)
    assert mine.later(lambda client: lock.try_acquire()).result(PATIENCE) is None
    with pytest.raises(NotHeld):
        mine.later(lambda client: lock.release()).result(PATIENCE)
    assert set(rows(redis_server, name)) == {claim_id}
    leave.set()
    assert holding.result(PATIENCE) is True
    assert not rows(redis_server, name)


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(0.005)


def test_redis_py_a_release_after_a_connection_error_can_be_retried(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    mine = agent(proxied, lease=2)
    lock = mine.client.lock(name, lease=5, owner="me")
    hold = mine.do(lambda client: lock.acquire())
    network.refuse()
    network.reset()
    with pytest.raises(BackendError, match="unknown"):
        mine.do(lambda client: lock.release())
    assert rows(redis_server, name), "the release did arrive"
    network.accept()
    mine.do(lambda client: hold.release())
    assert not rows(redis_server, name)


def test_redis_py_a_token_cannot_be_guessed(agent: Make, redis_server: Any, name: str) -> None:
    agents = [agent(redis_server.url) for _ in range(12)]
    tokens = []
    for number, mine in enumerate(agents):
        mine.do(lambda client, n=number: client.lock(f"{name}-{n}").acquire())
        (token,) = rows(redis_server, f"{name}-{number}")
        tokens.append(token.decode().split("-")[0])
    assert len(set(tokens)) == 12 and all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)
    for column in zip(*tokens, strict=True):  # a clock or a host name would be shared
        assert max(map(column.count, column)) < 8
    # Neither the snapshot nor a message nor a repr shows it.
    snapshot = agents[0].do(lambda client: client.inspect(f"{name}-1"))
    with pytest.raises(AcquireTimeout) as caught:
        agents[0].do(lambda client: client.lock(f"{name}-1").acquire(timeout=0))
    shown = f"{snapshot!r} {caught.value} {caught.value!r} {agents[1].client!r}"
    assert not any(token[:12] in shown for token in tokens)


def test_redis_py_does_not_give_up_early(agent: Make, redis_server: Any, name: str) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    mine.do(lambda client: client.lock(name).acquire())
    for timeout in (0.05, 0.25):
        with took() as time_of, pytest.raises(AcquireTimeout):
            other.do(lambda client: client.lock(name).acquire(timeout=timeout))  # noqa: B023
        assert timeout <= time_of.seconds and time_of.unstalled < timeout + 1
    # A lock that expires shortly before the timeout is acquired.
    short = f"{name}-short"
    mine.do(lambda client: client.lock(short, lease=0.3).acquire())
    assert other.do(lambda client: client.lock(short).acquire(timeout=0.6)).is_held


def test_redis_py_the_driver_does_not_retry_ten_times(
    agent: Make, network: Any, proxied: str, name: str
) -> None:
    mine = agent(proxied, lease=1.2)
    network.refuse()
    with took() as time_of, pytest.raises(BackendError):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert time_of.unstalled < 0.2 + 0.5
    network.accept()


# ---- python-redis-lock --------------------------------------------------------------------------


def test_python_redis_lock_half_a_second_is_not_for_ever(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    mine.do(lambda client: client.lock(name).acquire())
    with took() as time_of, pytest.raises(AcquireTimeout):
        other.do(lambda client: client.lock(name).acquire(timeout=0.5))
    assert time_of.seconds >= 0.5 and time_of.unstalled < 1.5
    half = other.do(lambda client: client.lock(f"{name}-half", lease=0.5).acquire())
    assert half.remaining() <= 0.5
    assert b" 500000 " in next(iter(rows(redis_server, f"{name}-half").values()))


def test_python_redis_lock_the_timer_does_not_restart_at_each_lost_race(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name, fair=False).try_acquire(timeout=0.4))
    until(lambda: other.client.statistics().waiting)
    (channel,) = until(lambda: redis_server.call("PUBSUB", "CHANNELS", "lf:wake:*"))
    (claim_id,) = other.client._core.ledger.waiting
    began, wakes = time.monotonic(), 0
    with redis_server.client() as publisher:
        while not waits.done():
            wakes += publisher.publish(channel, claim_id)
            time.sleep(0.02)
    assert waits.result() is None and time.monotonic() - began < 1.5 and wakes > 3


def test_python_redis_lock_the_renewal_thread_survives_errors(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    mine = agent(proxied, lease=1.5)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.lose_replies(2, match=RENEW.sha.encode())
    until(lambda: mine.client.statistics().renew_errors >= 2)
    renewals = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewals)
    assert hold.is_held and rows(redis_server, name)
    mine.do(lambda client: hold.release())


def test_python_redis_lock_a_crashed_holder_is_noticed_on_time(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    lease = 0.7
    crashed, other = agent(proxied, lease=lease), agent(redis_server.url)
    crashed.do(lambda client: client.lock(name).acquire())
    network.black_hole()
    with took() as time_of:
        other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert time_of.unstalled < lease * 1.25 + 0.3
    network.heal()


# ---- sherlock, celery-once, coredis -------------------------------------------------------------


def test_sherlock_no_lease_still_excludes(agent: Make, redis_server: Any, name: str) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name, lease=None).acquire())
    assert other.do(lambda client: client.lock(name, lease=None).try_acquire()) is None
    assert redis_server.call("PTTL", key_of(f"default:{name}")) > 0, "the key would never expire"
    mine.do(lambda client: hold.release())


def test_celery_once_a_stale_release_does_not_delete_anothers_lock(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    stale = mine.do(lambda client: client.lock(name).acquire())
    redis_server.call("DEL", key_of(f"default:{name}"))
    theirs = other.do(lambda client: client.lock(name).acquire(timeout=0))
    before = rows(redis_server, name)
    with pytest.raises(HoldLost):
        mine.do(lambda client: stale.release())
    assert rows(redis_server, name) == before and theirs.is_held
    with pytest.raises((HoldLost, NotHeld)):
        mine.do(lambda client: stale.renew())
    assert rows(redis_server, name) == before


# ---- Redisson -----------------------------------------------------------------------------------


def test_redisson_a_dead_waiter_does_not_delay_the_others(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    mine, dead, alive = agent(redis_server.url), agent(proxied), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    doomed = dead.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: len(mine.do(lambda client: client.inspect(name)).waiters) == 1)
    until(lambda: redis_server.call("PUBSUB", "CHANNELS", "lf:wake:*"))
    waits = alive.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: len(mine.do(lambda client: client.inspect(name)).waiters) == 2)
    network.refuse()
    network.reset()  # as if the process were gone: no listener for its wake-up
    until(lambda: len(redis_server.call("PUBSUB", "CHANNELS", "lf:wake:*")) <= 1)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.unstalled < 1.5 and not doomed.done()
    network.accept()
    alive.do(lambda client: later.release())
    last = doomed.result(PATIENCE)
    dead.do(lambda client: last.release())


def test_redisson_renewal_does_not_outlive_unlock(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    """Redisson #7272, including a renewal in flight."""
    mine = agent(proxied, lease=0.9)
    for attempt in range(2):
        hold = mine.do(lambda client: client.lock(name).acquire())
        time.sleep(0.295 + attempt * 0.01)  # the renewal is due just now
        mine.do(lambda client: hold.release())  # noqa: B023
        assert not rows(redis_server, name)
    ttl = redis_server.call("PTTL", key_of(f"default:{name}"))
    time.sleep(0.35)
    assert redis_server.call("PTTL", key_of(f"default:{name}")) < ttl, "something still renews it"
    assert not rows(redis_server, name)


def test_redisson_renewal_does_not_stop_for_ever_after_one_error(
    agent: Make, network: Any, proxied: str, name: str
) -> None:
    """Redisson #2515."""
    mine = agent(proxied, lease=0.9)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.reset()
    until(lambda: mine.client.statistics().renewals >= 2)
    assert hold.is_held
    mine.do(lambda client: hold.release())


def test_redisson_a_fence_is_the_holds_own_and_not_the_next_holders(
    agent: Make, redis_server: Any, name: str
) -> None:
    """getToken() asked the store and returned the fence of the next holder."""
    mine, other = agent(redis_server.url), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    fence = hold.fence
    assert mine.do(lambda client: client.break_hold(name, fence))
    later = other.do(lambda client: client.lock(name).acquire(timeout=5))
    assert hold.fence == fence < later.fence
    with pytest.raises(HoldLost) as caught:
        mine.do(lambda client: hold.release())
    assert caught.value.fence == fence


def test_redisson_an_unlock_of_another_thread_is_refused(
    agent: Make, redis_server: Any, network: Any, proxied: str, name: str
) -> None:
    mine = agent(proxied)
    lock = mine.client.lock(name)
    hold = mine.later(lambda client: lock.acquire()).result(PATIENCE)
    network.lose_replies(match=RELEASE.sha.encode())
    with pytest.raises(NotHeld):
        mine.later(lambda client: lock.release()).result(PATIENCE)
    assert rows(redis_server, name) and hold.is_held and network.lost_replies == 0
    network.lose_replies(0)
    mine.do(lambda client: hold.release())

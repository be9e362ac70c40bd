"""The museum: bugs of other libraries, one test each, that must not live here.

Each test is named after where the bug was found. Bugs that need a server stand with that store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockfast
from lab.conformance.adapters import AroundStore
from lockfast import AcquireTimeout, BackendError, ConfigurationError, HoldLost, NotHeld, aio
from lockfast.model import Granted
from lockfast.stores.memory import MemoryStore

SOON = 15.0


class Shop:
    """A memory store whose clock can be pushed forward, and its clients, whose verbs can fail."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.store = MemoryStore(lambda: time.monotonic() + self.ahead, time.time)
        self._clients: list[lockfast.Client] = []

    def client(
        self, hook: Callable[[str, str], None] | None = None, lease: float = 30
    ) -> lockfast.Client:
        client = lockfast.Client.on(self.around(hook), lease=lease, namespace="default")
        self._clients.append(client)
        return client

    def around(self, hook: Callable[[str, str], None] | None) -> AroundStore:
        async def tell(verb: str, moment: str) -> None:
            if hook is not None:
                hook(verb, moment)

        return AroundStore(self.store, tell)

    def wake_all(self) -> None:
        """A false bell for everybody who waits."""
        self.store.wakeups.wake_all()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


class Fails:
    """A verb whose request or reply is lost so many times: ``Fails("claim", "after", 1)``."""

    def __init__(self, verb: str, moment: str, times: float = float("inf")) -> None:
        self.verb = verb
        self.moment = moment
        self.left = times
        self.seen: list[str] = []

    def __call__(self, verb: str, moment: str) -> None:
        if moment == "before":
            self.seen.append(verb)
        if (verb, moment) == (self.verb, self.moment) and self.left > 0:
            self.left -= 1
            raise BackendError("the network swallowed it")


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start it; the value is to wait for its result."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(SOON)
        assert box, "it did not end, or raised"
        return box[0]

    return result


def until(what: Callable[[], Any]) -> None:
    ends = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.005)


# ---- redis-py ---------------------------------------------------------------------------------


def test_redis_py_a_lost_reply_leaves_no_ghost_lock(shop: Shop) -> None:
    lost = Fails("claim", "after", 1)
    client, other = shop.client(lost), shop.client()
    hold = client.lock("a").acquire(timeout=0)
    assert lost.seen.count("claim") == 2, "the reply was not lost: the test tests nothing"
    (holder,) = other.inspect("a").holders
    assert holder.fence == hold.fence
    hold.release()
    assert not other.names()


def test_redis_py_a_lost_reply_in_asyncio_leaves_no_ghost_lock(shop: Shop) -> None:
    async def body() -> None:
        async with aio.Client.on(
            shop.around(Fails("claim", "after", 1)), lease=30, namespace="default"
        ) as client:
            hold = await client.lock("a").acquire(timeout=0)
            assert [held.fence for held in (await client.inspect("a")).holders] == [hold.fence]

    asyncio.run(body())


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_redis_py_who_gives_up_without_a_reply_leaves_no_ghost_lock(
    shop: Shop, timeout: float
) -> None:
    client, other = shop.client(Fails("claim", "after"), lease=1.2), shop.client()
    with pytest.raises((BackendError, AcquireTimeout)):
        client.lock("a").acquire(timeout=timeout)
    assert not other.names(), "granted to somebody who was told that it failed"


def test_redis_py_two_tasks_sharing_a_lock_object_do_not_free_each_others(shop: Shop) -> None:
    async def body() -> None:
        async with aio.Client.on(shop.around(None), lease=30, namespace="default") as client:
            lock = client.lock("a")
            entered = asyncio.Event()
            leave = asyncio.Event()

            async def hold() -> None:
                async with lock:
                    entered.set()
                    await leave.wait()
                    assert lock.is_held

            async def meddle() -> None:
                await entered.wait()
                assert await lock.try_acquire() is None and not lock.is_held
                with pytest.raises(NotHeld):
                    await lock.release()
                leave.set()

            await asyncio.gather(hold(), meddle())

    asyncio.run(body())


def test_redis_py_a_release_is_asked_again_after_a_connection_error(shop: Shop) -> None:
    for moment in ("before", "after"):
        client, other = shop.client(Fails("release", moment, 3)), shop.client()
        client.lock("a").acquire().release()
        assert not other.names()


def test_redis_py_a_release_whose_outcome_is_unknown_can_be_retried(shop: Shop) -> None:
    down = Fails("release", "before")
    client, other = shop.client(down, lease=3), shop.client()
    lock = client.lock("a")
    hold = lock.acquire()
    with pytest.raises(BackendError, match="unknown"):
        lock.release()
    assert other.lock("a").locked(), "the release did arrive: the test tests nothing"
    down.left = 0
    hold.release()
    assert not other.lock("a").locked()
    with pytest.raises(NotHeld):
        hold.release()


def test_redis_py_another_thread_gets_not_held_and_no_attribute_error(shop: Shop) -> None:
    lock = shop.client().lock("a")

    def release() -> BaseException | None:
        try:
            lock.release()
        except BaseException as error:
            return error
        return None

    assert isinstance(release(), NotHeld), "never acquired"
    hold = lock.acquire()
    assert isinstance(in_thread(release)(), NotHeld)
    assert hold.is_held


def test_redis_py_timeout_zero_is_not_for_ever(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    hold = client.lock("a", timeout=0).acquire()
    assert hold.lease == 30, "timeout is how long to wait, not how long it lasts"
    began = time.monotonic()
    with pytest.raises(AcquireTimeout):
        other.lock("a", timeout=0).acquire()
    assert time.monotonic() - began < 5
    with pytest.raises(ConfigurationError):
        client.lock("a", lease=0)


def test_redis_py_a_claim_id_cannot_be_guessed(shop: Shop) -> None:
    clients = [shop.client() for _ in range(50)]
    ids = [client.lock(str(i)).acquire()._held.claim.id for i, client in enumerate(clients)]
    secrets = {re.match("[0-9a-f]+", claim_id)[0] for claim_id in ids}  # type: ignore[index]
    assert len(secrets) == 50 and all(len(secret) >= 32 for secret in secrets)
    # A clock or a host in it would show as digits that most of them share.
    for column in zip(*secrets, strict=True):
        assert max(map(column.count, column)) < 20
    # A neighbour's id does not follow from ours.
    mine = clients[0].lock("a").acquire().detach()
    version, claim_id, _, *terms = mine.split(":")
    theirs = clients[1].lock("b").acquire()
    forged = ":".join((version, claim_id, str(theirs.fence), *terms))
    with pytest.raises(NotHeld):
        clients[0].attach("b", forged)
    assert theirs.is_held


def test_redis_py_does_not_give_up_early(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    client.lock("a").acquire()
    for timeout in (0.05, 0.3):
        began = time.monotonic()
        assert other.lock("a").try_acquire(timeout=timeout) is None
        assert time.monotonic() - began >= timeout


# ---- python-redis-lock ------------------------------------------------------------------------


def test_python_redis_lock_half_a_second_is_not_for_ever(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    client.lock("a").acquire()
    began = time.monotonic()
    with pytest.raises(AcquireTimeout):
        other.lock("a").acquire(timeout=0.5)
    assert 0.5 <= time.monotonic() - began < 5
    assert other.lock("b", lease=0.5).acquire().remaining() <= 0.5


def test_python_redis_lock_the_timer_does_not_restart_at_each_lost_race(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    over = threading.Event()

    # Held all the time, so every ring of the waiter's bell is a lost race.
    client.lock("a").acquire()
    racing = in_thread(lambda: _ring_until(shop, over))
    began = time.monotonic()
    assert other.lock("a", fair=False).try_acquire(timeout=0.4) is None
    assert 0.4 <= time.monotonic() - began < 3
    over.set()
    assert racing() > 3


def _ring_until(shop: Shop, over: threading.Event) -> int:
    wakes = 0
    while not over.wait(0.02):
        shop.wake_all()
        wakes += 1
    return wakes


def test_python_redis_lock_the_renewal_thread_survives_errors(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    fails = Fails("renew", "before", 4)
    client, other = shop.client(fails, lease=1.5), shop.client()
    hold = client.lock("a").acquire()
    until(lambda: client.statistics().renewals >= 2)
    assert client.statistics().renew_errors == 4
    assert hold.is_held and other.lock("a").try_acquire() is None
    hold.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_python_redis_lock_a_keeper_that_dies_is_noticed_and_replaced(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    broken = [True]

    def bug(verb: str, moment: str) -> None:
        if verb == "renew" and broken[0]:
            broken[0] = False
            raise RuntimeError("a bug in a driver, not a BackendError")

    told: list[object] = []
    client = shop.client(bug, lease=1.0)
    kept = client.lock("kept", lease=30, renew=True).acquire()
    doomed = client.lock("doomed", on_lost=told.append).acquire()
    until(lambda: not broken[0])
    # Our own clock tells, whatever became of the keeper; and the next acquire has one again.
    until(lambda: doomed.lost or client.statistics().renewals > 0)
    with client.lock("next") as hold:
        until(lambda: client.statistics().renewals > 0)
        assert hold.is_held
    assert kept.is_held


def test_python_redis_lock_a_crashed_holder_is_noticed_on_time(shop: Shop) -> None:
    lease = 1.0
    crashed = shop.client(Fails("renew", "before"), lease=lease)
    client = shop.client()
    crashed.lock("a").acquire()
    began = time.monotonic()
    client.lock("a").acquire(timeout=SOON)
    assert lease * 0.9 <= time.monotonic() - began < lease * 1.25 + 0.5


# ---- sherlock, etcd3, tooz, celery-once, coredis, ShedLock, Curator -----------------------------


def test_sherlock_no_lease_still_excludes(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    with client.lock("a", lease=None):
        assert other.lock("a", lease=None).try_acquire() is None


def test_etcd3_body_does_not_run_without_the_lock(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    client.lock("a").acquire()
    with pytest.raises(AcquireTimeout), other.lock("a", timeout=0.05):
        pytest.fail("the body ran")


def test_etcd3_body_does_not_run_in_asyncio_without_the_lock(shop: Shop) -> None:
    shop.client().lock("a").acquire()

    async def body() -> None:
        async with aio.Client.on(shop.around(None), lease=30, namespace="default") as client:
            with pytest.raises(AcquireTimeout):
                async with client.lock("a", timeout=0.05):
                    pytest.fail("the body ran")

    asyncio.run(body())


def test_tooz_names_are_not_cut_to_a_small_hash(shop: Shop) -> None:
    client = shop.client()
    for number in range(3000):  # of 65,536 buckets some would meet, almost surely
        assert client.lock(f"name-{number}").try_acquire() is not None


def test_celery_once_a_stale_release_does_not_delete_anothers_lock(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    stale = client.lock("a").acquire()
    assert other.break_hold("a", stale.fence)
    theirs = other.lock("a").acquire(timeout=0)
    with pytest.raises(HoldLost):
        stale.release()  # it did not hear of it yet, and does send
    assert theirs.is_held and client.inspect("a").holders[0].fence == theirs.fence


def test_shedlock_a_foreign_process_cannot_release(shop: Shop) -> None:
    client, foreign = shop.client(), shop.client()  # same host, same pid, same owner= even
    hold = client.lock("a", owner="job").acquire()
    with pytest.raises(NotHeld):
        foreign.lock("a", owner="job").release()
    assert foreign.lock("a", owner="job").try_acquire() is None
    assert hold.is_held and foreign.lock("a").locked()


def test_curator_reentry_fails_after_loss(shop: Shop) -> None:
    client, other = shop.client(lease=0.6), shop.client()
    hold = client.lock("a").acquire()
    other.break_hold("a", hold.fence)
    assert hold.wait_lost(SOON)
    with pytest.raises(HoldLost):
        client.lock("a").acquire(timeout=0)
    with pytest.raises(HoldLost), client.lock("a"):
        pytest.fail("the body ran")


# ---- kazoo ------------------------------------------------------------------------------------


def test_kazoo_is_not_held_after_it_was_lost(shop: Shop) -> None:
    client = shop.client(Fails("renew", "before"), lease=0.5)
    hold = client.lock("a").acquire()
    assert hold.wait_lost(SOON)
    assert not hold.is_held and not client.lock("a").is_held


def test_kazoo_timeout_is_total_under_spurious_wakes(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    client.lock("a").acquire()
    over = threading.Event()
    ringing = in_thread(lambda: _ring_until(shop, over))
    began = time.monotonic()
    with pytest.raises(AcquireTimeout):
        other.lock("a").acquire(timeout=0.4)
    assert 0.4 <= time.monotonic() - began < 3
    over.set()
    assert ringing() > 3
    assert not other.inspect("a").waiters


def test_kazoo_no_orphan_contender_after_the_connection_was_away(shop: Shop) -> None:
    client, other = shop.client(), shop.client(Fails("leave", "before"))
    hold = client.lock("a").acquire()
    assert other.lock("a").try_acquire(timeout=0.1) is None  # it cannot leave
    assert len(client.inspect("a").waiters) == 1, "it did leave: the test tests nothing"
    shop.ahead += 7
    assert not client.inspect("a").waiters
    hold.release()
    assert client.lock("a").try_acquire() is not None


def test_kazoo_does_not_hang_after_fork(shop: Shop) -> None:
    client = shop.client(lease=0.9)
    hold = client.lock("a").acquire()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            assert not hold.is_held
            with client.lock("b", timeout=5) as mine:
                time.sleep(1.2)
                assert mine.is_held
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert hold.is_held


# ---- Redisson, Redlock ------------------------------------------------------------------------


def test_redisson_a_dead_waiter_does_not_cost_minutes(shop: Shop) -> None:
    client, dead, living = shop.client(), shop.client(Fails("leave", "before")), shop.client()
    hold = client.lock("a").acquire()
    assert dead.lock("a").try_acquire(timeout=0.1) is None  # leaves its place behind
    alive = in_thread(lambda: living.lock("a").acquire(timeout=SOON))
    until(lambda: len(client.inspect("a").waiters) == 2)
    hold.release()  # serves the dead one, with a short first lease
    shop.ahead += 6
    mine = alive()
    assert mine.fence > hold.fence and mine.is_held


def test_redisson_fence_is_never_the_next_holders(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    first = client.lock("a", lease=0.2).acquire()
    fence = first.fence
    second = other.lock("a").acquire(timeout=SOON)
    assert first.fence == fence < second.fence
    with pytest.raises(HoldLost) as lost:
        first.release()
    assert lost.value.fence == fence
    second.release()
    third = client.lock("a").acquire(timeout=0)
    assert (first.fence, second.fence) < (fence + 1, third.fence)


def test_redisson_renewal_does_not_outlive_unlock(shop: Shop) -> None:
    on_the_way, go_on = threading.Event(), threading.Event()

    def slow(verb: str, moment: str) -> None:
        if (verb, moment) == ("renew", "before"):
            on_the_way.set()
            go_on.wait(SOON)

    client, other = shop.client(slow, lease=3), shop.client()
    hold = client.lock("a").acquire()
    assert on_the_way.wait(SOON)
    hold.release()
    go_on.set()  # the renewal arrives after the release
    until(lambda: client.statistics().held == 0)
    time.sleep(0.1)
    assert not other.names(), "the renewal brought it back"
    assert not hold.is_held and not hold.lost and client.statistics().renewals == 0


def test_redisson_renewal_does_not_stop_for_ever_after_one_error(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    client = shop.client(Fails("renew", "after", 1), lease=0.9)
    with client.lock("a") as hold:
        until(lambda: client.statistics().renewals >= 3)
        assert hold.is_held


def test_redlock_a_late_reply_shortens_the_belief(shop: Shop) -> None:
    def slow(verb: str, moment: str) -> None:
        if (verb, moment) == ("claim", "after"):
            time.sleep(0.6)

    hold = shop.client(slow).lock("a", lease=1.0).acquire()
    assert hold.remaining() <= 0.4


def test_redlock_a_reply_later_than_the_lease_is_no_hold(shop: Shop) -> None:
    slow_ones = [True]

    def slow(verb: str, moment: str) -> None:
        if (verb, moment) == ("claim", "after") and slow_ones:
            slow_ones.pop()
            time.sleep(0.6)

    client = shop.client(slow)
    try:
        with client.lock("a", lease=0.4, timeout=SOON) as hold:
            assert hold.is_held, "the body runs without the lock"
    except (BackendError, AcquireTimeout):
        pass  # honest too


def test_redlock_a_renewal_answered_after_the_deadline_is_a_loss(shop: Shop) -> None:
    def slow(verb: str, moment: str) -> None:
        if (verb, moment) == ("renew", "after"):
            time.sleep(0.8)

    told: list[object] = []
    client = shop.client(slow, lease=0.6)
    hold = client.lock("a", on_lost=told.append).acquire()
    assert hold.wait_lost(SOON)
    time.sleep(0.9)  # the good answer is here by now
    assert hold.lost and not hold.is_held and len(told) == 1
    with pytest.raises(HoldLost):
        hold.release()


def test_pottery_giving_up_leaves_no_orphans(shop: Shop) -> None:
    client, other = shop.client(), shop.client()
    hold = client.lock("a").acquire()
    for timeout in (0, 0.01, 0.1):
        assert other.lock("a").try_acquire(timeout=timeout) is None
    hold.release()
    assert not client.names()


def test_a_bell_of_a_grant_that_is_over_is_not_believed(shop: Shop) -> None:
    """Ours: a served waiter needs no round trip, so a late or forged bell must not be taken."""
    client, other = shop.client(), shop.client()
    client.lock("a").acquire()
    waiting = in_thread(lambda: other.lock("a").try_acquire(timeout=0.4))
    until(lambda: client.inspect("a").waiters)
    until(lambda: other.statistics().waiting)
    for wake in list(shop.store.wakeups._wakes.values()):
        wake(Granted(1, 30.0))
    assert waiting() is None


# ---- latches, turns and leaders: Redisson, ShedLock, Curator ------------------------------------


def test_redisson_a_latch_that_was_never_set_is_not_open(shop: Shop) -> None:
    latch = shop.client().latch("a", 1)
    assert latch.remaining() == 1
    assert latch.wait(0) is False and latch.wait(0.05) is False
    waiter = in_thread(lambda: latch.wait(SOON))
    until(lambda: shop.client().inspect("a").waiters)
    assert shop.client().latch("a", 1).count_down()
    assert waiter() is True


def test_shedlock_a_foreign_process_cannot_end_a_turn(shop: Shop) -> None:
    client, foreign = shop.client(), shop.client()  # same host, same pid, same thread even
    seen: list[Any] = []

    def job() -> str:
        seen.append(foreign.once_every("1d", name="job")(lambda: "foreign")())
        with pytest.raises(NotHeld):
            foreign.lock("job").release()
        seen.append(foreign.once_every("1d", name="job")(lambda: "foreign")())
        return "ran"

    assert client.once_every("1d", name="job")(job)() == "ran"
    assert seen == [None, None]


@pytest.mark.parametrize("at_work", [True, False])
def test_shedlock_a_run_that_lost_its_turn_does_not_end_the_next_ones(
    shop: Shop, at_work: bool
) -> None:
    """When it comes to its end, the next is at work, or has left its mark."""
    client, other = shop.client(), shop.client()
    begun, go_on = threading.Event(), threading.Event()

    def next_one() -> str:
        begun.set()
        assert go_on.wait(SOON)
        return "next"

    def late() -> None:
        time.sleep(0.5)
        running.append(in_thread(other.once_every("1d", name="job")(next_one)))
        assert begun.wait(SOON)
        if not at_work:
            go_on.set()
            assert running[0]() == "next"

    running: list[Callable[[], Any]] = []
    with pytest.raises(HoldLost):
        client.once_every("1d", name="job", at_most=0.2)(late)()
    third = client.once_every("1d", name="job")(lambda: "third")
    assert third() is None
    go_on.set()
    assert running[0]() == "next" and third() is None


def test_curator_a_leader_that_lost_the_lead_does_not_say_that_it_leads(shop: Shop) -> None:
    client, other = shop.client(lease=0.6), shop.client()
    lead = client.election("a", metadata="old").lead()
    hold = lead.acquire()
    assert other.break_hold("a", hold.fence)
    theirs = other.election("a", metadata="new").lead(timeout=0).acquire()
    assert hold.wait_lost(SOON)
    assert not hold.is_held and not lead.is_held
    leader = client.election("a").leader()
    assert leader is not None and (leader.metadata, leader.term) == ("new", theirs.fence)
    with pytest.raises(HoldLost):
        lead.acquire(timeout=0)


# ---- Redisson, pottery: many at once ----------------------------------------------------------


def crashing(shop: Shop, **terms: Any) -> tuple[lockfast.Client, Callable[[], None]]:
    """A client whose process ends in the middle of everything when told so."""
    gone: list[str] = []

    def hook(verb: str, moment: str) -> None:
        if gone:
            raise BackendError("this process is no more")

    return shop.client(hook, **terms), lambda: gone.append("crashed")


def test_redisson_a_semaphore_does_not_leak_the_permits_of_a_crash(shop: Shop) -> None:
    (dying, crash), other = crashing(shop), shop.client()
    dying.semaphore("a", 3).acquire(2)
    mine = other.semaphore("a", 3).acquire()
    crash()
    assert other.semaphore("a", 3).try_acquire(2) is None
    shop.ahead += 25
    mine.renew()
    assert other.semaphore("a", 3).available() == 0
    shop.ahead += 6
    with other.semaphore("a", 3).acquire(2, timeout=SOON):
        assert mine.is_held and other.semaphore("a", 3).available() == 0
    assert other.semaphore("a", 3).available() == 2


def test_redisson_a_permit_of_a_crashed_process_ends_with_its_lease(shop: Shop) -> None:
    (dying, crash), other = crashing(shop), shop.client()
    permit = dying.permits("a", 1, lease=20).acquire()
    crash()
    shop.ahead += 19
    assert other.permits("a", 1).try_acquire() is None
    shop.ahead += 2
    again = other.permits("a", 1).acquire(timeout=SOON)
    with pytest.raises(HoldLost):
        other.permits("a", 1).release(permit)
    other.permits("a", 1).release(again)


def test_redisson_writers_do_not_starve(shop: Shop) -> None:
    """Readers that overlap, so that there is never an instant without one."""
    clients = [shop.client() for _ in range(3)]
    wrote = threading.Event()
    reads: list[int] = []

    def read(number: int) -> int:
        while not wrote.is_set():
            with clients[number % 2].rwlock("a", timeout=60).read() as hold:
                reads.append(hold.fence)
                time.sleep(0.01)
        return number

    readers = [in_thread(lambda number=number: read(number)) for number in range(5)]
    until(lambda: len(reads) > 20)
    writing = clients[2].rwlock("a").write().try_acquire(timeout=SOON)
    wrote.set()
    assert writing is not None, "readers that come later went past the writer for ever"
    writing.release()
    assert [reader() for reader in readers] == [0, 1, 2, 3, 4]


def test_redisson_the_lease_of_a_crashed_reader_is_not_kept_by_the_others(shop: Shop) -> None:
    """One key with one expiry for all readers: as long as one reads, nobody's lease ends."""
    (dying, crash), other, third = crashing(shop), shop.client(), shop.client()
    fence = dying.rwlock("a").read().acquire().fence
    mine = other.rwlock("a").read().acquire()
    crash()
    for _ in range(2):
        shop.ahead += 16
        mine.renew()
    assert fence not in [holder.fence for holder in third.inspect("a").holders]
    assert third.rwlock("a").write().try_acquire() is None and mine.is_held
    mine.release()
    with third.rwlock("a", timeout=0).write():
        pass


def test_redisson_a_multi_lock_is_not_held_when_its_first_name_ended_meanwhile(shop: Shop) -> None:
    """RedLock without a validity check: what was got first may be over when the last is got."""
    client, other = shop.client(lease=0.6), shop.client()
    blocker = other.lock("b").acquire()
    refused: list[HoldLost] = []

    def wait() -> bool:
        try:
            client.multi_lock("a", "b").acquire(timeout=SOON)
        except HoldLost as error:
            refused.append(error)
        return True

    waiting = in_thread(wait)
    until(lambda: other.inspect("b").waiters)
    (holder,) = other.inspect("a").holders
    other.break_hold("a", holder.fence)
    theirs = other.lock("a").acquire(timeout=0)
    until(lambda: client.statistics().lost)
    blocker.release()
    assert waiting() and [error.name for error in refused] == ["a"]
    assert theirs.is_held and other.names() == ["a"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_pottery_a_multi_lock_that_fails_leaves_no_orphans(shop: Shop, moment: str) -> None:
    """redlock-py too: one of several is not to be had, and the others stay locked."""
    other = shop.client()
    blocker = other.lock("c").acquire()
    lost = Fails("claim_batch", moment, 1)
    client = shop.client(lost)
    assert client.multi_lock("a", "b", "c").try_acquire() is None
    assert lost.seen.count("claim_batch") == 2 and other.names() == ["c"]
    blocker.release()

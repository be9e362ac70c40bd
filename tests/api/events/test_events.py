"""What those who listen are told, in both APIs: everything once, at no expense of the lock."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import pytest

import lockfast
from both_apis import APIS, until
from lockfast import AcquireTimeout, BackendError, ConfigurationError, HoldLost, NotHeld, aio
from lockfast.events import (
    Acquired,
    Detached,
    Failed,
    Lost,
    Refused,
    Released,
    RenewFailed,
    TimedOut,
    WaitBegan,
    WaitEnded,
)
from lockfast.testing import kit


@pytest.fixture(params=APIS)
def agent(request):
    agent = APIS[request.param]("memory://")
    yield agent
    agent.close()


@pytest.fixture
def told(agent):
    events = []
    agent.client.on_event(events.append)
    return events


def kinds(events):
    return [type(event) for event in events]


def cycle(name, **terms):
    """Acquire and release, in either colour."""

    def blocking(client):
        with client.lock(name, **terms) as hold:
            return hold.fence

    async def tasks(client):
        async with client.lock(name, **terms) as hold:
            return hold.fence

    return lambda client: (blocking if client.api == "blocking" else tasks)(client)


def test_a_hold_is_told_of_when_it_begins_and_when_it_ends(agent, told):
    fence = agent.do(cycle("orders:42"))
    assert kinds(told) == [Acquired, Released]
    for event in told:
        assert (event.store, event.name, event.template) == ("memory", "orders:42", "")
        assert event.fence == fence
    assert 0 <= told[0].waited < 5 and 0 <= told[1].lasted < 5


def test_one_that_has_to_wait_is_told_of_when_it_waits_and_no_more(agent, told):
    hold = agent.do(lambda client: client.lock("n").acquire())
    waiter = agent.later(cycle("n"))
    until(lambda: WaitBegan in kinds(told))
    assert kinds(told) == [Acquired, WaitBegan]
    agent.do(lambda client: hold.release())
    waiter.result(15)
    rest = kinds(told[2:])
    assert sorted(rest, key=str) == sorted([Released, WaitEnded, Acquired, Released], key=str)
    assert rest.index(WaitEnded) < rest.index(Acquired)


def test_an_acquire_that_was_in_vain_says_why(agent, told):
    agent.do(lambda client: client.lock("n").acquire())
    told.clear()
    # In a thread or a task of its own, which is another owner.
    assert agent.later(lambda client: client.lock("n").try_acquire()).result(15) is None
    assert kinds(told) == [Refused]
    told.clear()
    with pytest.raises(AcquireTimeout):
        agent.later(lambda client: client.lock("n", timeout=0.05).acquire()).result(15)
    assert kinds(told) == [WaitBegan, WaitEnded, TimedOut]
    assert 0.04 < told[-1].waited < 5
    assert agent.client.statistics().timed_out == 1


def test_a_cancelled_task_that_waited_is_told_of():
    async def main():
        client = aio.connect("memory://")
        told, waits = [], asyncio.Event()

        @client.on_event
        def subscribe(event):
            told.append(event)
            if isinstance(event, WaitBegan):
                waits.set()

        hold = await client.lock("n").acquire()
        waiter = asyncio.create_task(client.lock("n").acquire())
        await waits.wait()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert kinds(told) == [Acquired, WaitBegan, WaitEnded, Failed]
        assert told[-1].error == "CancelledError"
        await hold.release()
        await client.close()

    asyncio.run(main())


def test_reentry_gives_no_event(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    with lockfast_client.lock("n"), lockfast_client.lock("n"):
        assert kinds(told) == [Acquired]
    assert kinds(told) == [Acquired, Released]


def test_durations_are_those_of_the_lock(lockfast_client, lockfast_clock):
    told = []
    lockfast_client.on_event(told.append)
    with lockfast_client.lock("n"):
        lockfast_clock.advance(7)
    assert told[0].waited == 0 and told[1].lasted == 7


def test_a_loss_is_told_once_with_its_cause(lockfast_client, lockfast_clock):
    told = []
    lockfast_client.on_event(told.append)
    with pytest.raises(HoldLost), lockfast_client.lock("n", lease=10):
        lockfast_clock.advance(11)
    assert kinds(told) == [Acquired, Lost]
    assert told[1].lasted == pytest.approx(9.9, abs=0.2) and "lease of 10 s" in told[1].cause


@pytest.mark.parametrize("quick", [False, True])
def test_a_loss_that_is_noticed_only_at_the_release_is_a_loss(quick, tmp_path, lockfast_client):
    client = lockfast.connect(f"sqlite://{tmp_path}/l.db") if quick else lockfast_client
    told = []
    client.on_event(told.append)
    hold = client.lock("n").acquire()
    assert client.break_hold("n", hold.fence)
    with pytest.raises(HoldLost, match="no longer knew it when it was released"):
        hold.release()
    assert kinds(told) == [Acquired, Lost]
    statistics = client.statistics()
    assert (statistics.lost, statistics.released, statistics.held) == (1, 0, 0)
    if quick:
        client.close()


def test_the_quick_way_of_a_store_tells_the_same(tmp_path):
    with lockfast.connect(f"sqlite://{tmp_path}/l.db") as client:
        told = []
        client.on_event(told.append)
        with client.lock("n"):
            pass
        assert kinds(told) == [Acquired, Released] and told[0].store == "sqlite"


def test_a_release_that_is_not_answered_is_told_of_once(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    hold = lockfast_client.lock("n").acquire()
    release = lockfast_client.core.backend.release

    async def away(*said):
        raise BackendError("away", transient=False)

    lockfast_client.core.backend.release = away
    with pytest.raises(BackendError):
        hold.release()
    lockfast_client.core.backend.release = release
    hold.release()
    assert kinds(told) == [Acquired, Released]


def test_a_hold_that_is_passed_on_is_detached_here_and_acquired_there(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    text = lockfast_client.lock("n").acquire().detach()
    lockfast_client.attach("n", text).release()
    assert kinds(told) == [Acquired, Detached, Acquired, Released]
    lockfast_client.permits("p", 2, lease=5).acquire()
    assert kinds(told[4:]) == [Acquired, Detached]


def test_a_permit_whose_taking_fails_halfway_is_told_to_have_ended(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)

    async def away(*said):
        raise BackendError("away", transient=False)

    lockfast_client.core.backend.transfer = away
    with pytest.raises(BackendError):
        lockfast_client.permits("p", 2, lease=5).acquire()
    assert kinds(told) == [Acquired, Released]


def test_all_names_of_a_multi_lock_are_told_of(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    with lockfast_client.multi_lock("a", "b", "c"):
        assert [event.name for event in told] == ["a", "b", "c"]
    assert kinds(told) == [Acquired] * 3 + [Released] * 3


def test_a_multi_lock_whose_store_fails_is_told_of_for_each_name(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)

    async def broken(*said):
        raise BackendError("broken", transient=False)

    lockfast_client.core.backend.claim_batch = broken
    with pytest.raises(BackendError):
        lockfast_client.multi_lock("a", "b").acquire()
    assert [(type(event), event.name) for event in told] == [(Failed, "a"), (Failed, "b")]
    assert told[0].error == "BackendError"


def test_renewals_that_fail_are_told_of_on_the_keepers_thread():
    with lockfast.connect("memory://", lease=0.3) as client:
        told, threads = [], set()

        def subscribe(event):
            if isinstance(event, RenewFailed):
                threads.add(threading.current_thread().name)
                told.append(event)

        client.on_event(subscribe)

        async def away(*said):
            raise BackendError("the store is away")

        client.core.backend.renew = away
        hold = client.lock("n").acquire()
        until(lambda: told)
        assert told[0].count == 1 and "away" in told[0].error
        assert threads == {"lockfast-keeper"}
        until(lambda: hold.lost)
        assert client.statistics().renew_errors == len(told)


def test_closing_a_client_ends_what_it_holds_and_says_so(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    lockfast_client.lock("n").acquire()
    lockfast_client.close()
    assert kinds(told) == [Acquired, Released]


def test_what_is_refused_because_the_client_was_closed_meanwhile_leaves_nothing_counted(
    lockfast_client,
):
    told = []
    lockfast_client.on_event(told.append)
    claim = lockfast_client.core.backend.claim

    async def closes(*said):
        granted = await claim(*said)
        lockfast_client.core.ledger.closed = True
        return granted

    lockfast_client.core.backend.claim = closes
    with pytest.raises(NotHeld, match="closed"):
        lockfast_client.lock("n").acquire()
    assert kinds(told) == [Acquired, Released, Failed]


def test_what_a_listener_raises_is_logged_once_and_breaks_nothing(lockfast_client, caplog):
    told = []

    def broken(event):
        raise RuntimeError("in the listener")

    lockfast_client.on_event(broken)
    lockfast_client.on_event(told.append)
    for _ in range(3):
        with lockfast_client.lock("n"):
            pass
    assert len(told) == 6
    assert caplog.text.count("Traceback") == 1 and "in the listener" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_a_listener_may_use_the_client_that_tells_it(lockfast_client):
    """It is called under no lock of ours, when the store has been told."""
    free = []

    def subscribe(event):
        assert lockfast_client.statistics().acquired
        if isinstance(event, Released) and event.name == "n":
            with lockfast_client.lock("of the listener", timeout=1):
                free.append(not lockfast_client.lock("n").locked())

    lockfast_client.on_event(subscribe)
    with lockfast_client.lock("n"):
        pass
    assert free == [True]


def test_what_was_held_before_anybody_listened_is_not_told_of(lockfast_client):
    told = []
    with lockfast_client.lock("n"):
        lockfast_client.on_event(told.append)
    assert told == []


def test_a_decorated_function_tells_its_expression_not_only_the_name(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)

    @lockfast_client.locked("account:{user}", prefix="shop")
    def plain(user): ...

    @lockfast_client.locked("room:{n}", semaphore=3)
    def counted(n): ...

    @lockfast_client.locked("page:{n}", kind="read")
    def reads(n): ...

    @lockfast_client.locked(lambda n: f"x{n}")
    def computed(n): ...

    plain("ann"), counted(7), reads(1), computed(1)
    seen = {(event.name, event.template) for event in told}
    function = computed.__qualname__
    assert seen == {
        ("shop:account:ann", "shop:account:{user}"),
        ("room:7", "room:{n}"),
        ("page:1", "page:{n}"),
        ("x1", function),
    }
    told.clear()
    with lockfast_client.lock("shop:account:ann"):
        assert [event.template for event in told] == [""], "no template was said"


def test_what_runs_once_per_period_tells_its_name_as_its_template(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)

    @lockfast_client.once_every("5m", name="sweep")
    def sweep(): ...

    sweep()
    assert {(event.name, event.template) for event in told} == {("sweep", "sweep")}


@pytest.mark.parametrize("early", [True, False], ids=["before the twin", "after the twin"])
def test_a_listener_hears_of_functions_of_the_other_colour_too(early):
    told = []
    with lockfast.connect("memory://") as client:

        @client.locked("n")
        async def work(): ...

        if not early:
            asyncio.run(work())
        client.on_event(told.append)
        asyncio.run(work())
        assert kinds(told) == [Acquired, Released]


def test_a_child_after_a_fork_tells_of_its_own_and_not_of_its_parents(tmp_path):
    with lockfast.connect(f"sqlite://{tmp_path}/l.db") as client:
        told = []
        client.on_event(told.append)
        hold = client.lock("parent").acquire()
        child = os.fork()
        if child == 0:
            try:
                told.clear()
                with client.lock("child"):
                    pass
                with pytest.raises(HoldLost):
                    hold.release()
                right = [event.name for event in told] == ["child", "child"]
                os._exit(0 if right else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hold.release()
        assert [event.name for event in told] == ["parent", "parent"]


def test_a_listener_is_something_that_can_be_called(lockfast_client):
    with pytest.raises(ConfigurationError, match="on_event"):
        lockfast_client.on_event("print")

    @lockfast_client.on_event
    def listener(event): ...

    assert callable(listener)


def test_no_event_holds_a_claims_secret(lockfast_client):
    told = []
    lockfast_client.on_event(told.append)
    with lockfast_client.lock("n"):
        secret = lockfast_client.core._secret
    assert not [event for event in told if secret in repr(event)]


def test_counts_and_events_are_the_same_numbers(lockfast_client, lockfast_clock):
    told = []
    lockfast_client.on_event(told.append)
    for _ in range(4):
        with lockfast_client.lock("n"):
            pass
    kit_lost = lockfast_client.lock("m").acquire()
    assert kit.lose(lockfast_client, "m") == 1
    assert kit_lost.lost
    statistics = lockfast_client.statistics()
    assert kinds(told).count(Acquired) == statistics.acquired == 5
    assert kinds(told).count(Released) == statistics.released == 4
    assert kinds(told).count(Lost) == statistics.lost == 1

"""Events that listeners receive, in both APIs: each once, and without harm to the lock."""

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
def events(agent):
    received = []
    agent.client.on_event(received.append)
    return received


def kinds(events):
    return [type(event) for event in events]


def cycle(name, **terms):
    """Acquire and release, in either API."""

    def blocking(client):
        with client.lock(name, **terms) as hold:
            return hold.fence

    async def tasks(client):
        async with client.lock(name, **terms) as hold:
            return hold.fence

    return lambda client: (blocking if client._api == "blocking" else tasks)(client)


def test_a_hold_emits_an_event_when_it_begins_and_when_it_ends(agent, events):
    fence = agent.do(cycle("orders:42"))
    assert kinds(events) == [Acquired, Released]
    for event in events:
        assert (event.store, event.name, event.template) == ("memory", "orders:42", "")
        assert event.fence == fence
    assert 0 <= events[0].waited < 5 and 0 <= events[1].lasted < 5


def test_a_waiter_emits_an_event_when_it_begins_and_when_it_ends_waiting(agent, events):
    hold = agent.do(lambda client: client.lock("n").acquire())
    waiter = agent.later(cycle("n"))
    until(lambda: WaitBegan in kinds(events))
    assert kinds(events) == [Acquired, WaitBegan]
    agent.do(lambda client: hold.release())
    waiter.result(15)
    rest = kinds(events[2:])
    assert sorted(rest, key=str) == sorted([Released, WaitEnded, Acquired, Released], key=str)
    assert rest.index(WaitEnded) < rest.index(Acquired)


def test_an_acquire_without_success_emits_the_reason(agent, events):
    agent.do(lambda client: client.lock("n").acquire())
    events.clear()
    # In another thread or task, which is another owner.
    assert agent.later(lambda client: client.lock("n").try_acquire()).result(15) is None
    assert kinds(events) == [Refused]
    events.clear()
    with pytest.raises(AcquireTimeout):
        agent.later(lambda client: client.lock("n", timeout=0.05).acquire()).result(15)
    assert kinds(events) == [WaitBegan, WaitEnded, TimedOut]
    assert 0.04 < events[-1].waited < 5
    assert agent.client.statistics().timed_out == 1


def test_a_cancelled_waiter_emits_failed():
    async def main():
        client = aio.connect("memory://")
        events, waiting = [], asyncio.Event()

        @client.on_event
        def listen(event):
            events.append(event)
            if isinstance(event, WaitBegan):
                waiting.set()

        hold = await client.lock("n").acquire()
        waiter = asyncio.create_task(client.lock("n").acquire())
        await waiting.wait()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert kinds(events) == [Acquired, WaitBegan, WaitEnded, Failed]
        assert events[-1].error == "CancelledError"
        await hold.release()
        await client.close()

    asyncio.run(main())


def test_reentry_emits_no_event(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    with lockfast_client.lock("n"), lockfast_client.lock("n"):
        assert kinds(events) == [Acquired]
    assert kinds(events) == [Acquired, Released]


def test_events_carry_the_time_waited_and_held(lockfast_client, lockfast_clock):
    events = []
    lockfast_client.on_event(events.append)
    with lockfast_client.lock("n"):
        lockfast_clock.advance(7)
    assert events[0].waited == 0 and events[1].lasted == 7


def test_a_loss_is_emitted_once_with_its_cause(lockfast_client, lockfast_clock):
    events = []
    lockfast_client.on_event(events.append)
    with pytest.raises(HoldLost), lockfast_client.lock("n", lease=10):
        lockfast_clock.advance(11)
    assert kinds(events) == [Acquired, Lost]
    assert events[1].lasted == pytest.approx(9.9, abs=0.2) and "lease of 10 s" in events[1].cause


@pytest.mark.parametrize("inline", [False, True])
def test_a_loss_that_is_noticed_only_at_the_release_is_emitted_as_lost(
    inline, tmp_path, lockfast_client
):
    client = lockfast.connect(f"sqlite://{tmp_path}/l.db") if inline else lockfast_client
    events = []
    client.on_event(events.append)
    hold = client.lock("n").acquire()
    assert client.break_hold("n", hold.fence)
    with pytest.raises(HoldLost, match="no longer knew it when it was released"):
        hold.release()
    assert kinds(events) == [Acquired, Lost]
    statistics = client.statistics()
    assert (statistics.lost, statistics.released, statistics.held) == (1, 0, 0)
    if inline:
        client.close()


def test_sqlite_emits_the_same_events(tmp_path):
    with lockfast.connect(f"sqlite://{tmp_path}/l.db") as client:
        events = []
        client.on_event(events.append)
        with client.lock("n"):
            pass
        assert kinds(events) == [Acquired, Released] and events[0].store == "sqlite"


def test_a_release_without_an_answer_is_emitted_once(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    hold = lockfast_client.lock("n").acquire()
    release = lockfast_client._core.store.release

    async def away(*args):
        raise BackendError("away", transient=False)

    lockfast_client._core.store.release = away
    with pytest.raises(BackendError):
        hold.release()
    lockfast_client._core.store.release = release
    hold.release()
    assert kinds(events) == [Acquired, Released]


def test_a_hold_that_is_passed_on_emits_detached_and_then_acquired(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    text = lockfast_client.lock("n").acquire().detach()
    lockfast_client.attach("n", text).release()
    assert kinds(events) == [Acquired, Detached, Acquired, Released]
    lockfast_client.permits("p", 2, lease=5).acquire()
    assert kinds(events[4:]) == [Acquired, Detached]


def test_a_permit_whose_acquire_fails_halfway_emits_released(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)

    async def away(*args):
        raise BackendError("away", transient=False)

    lockfast_client._core.store.transfer = away
    with pytest.raises(BackendError):
        lockfast_client.permits("p", 2, lease=5).acquire()
    assert kinds(events) == [Acquired, Released]


def test_a_multi_lock_emits_events_for_each_name(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    with lockfast_client.multi_lock("a", "b", "c"):
        assert [event.name for event in events] == ["a", "b", "c"]
    assert kinds(events) == [Acquired] * 3 + [Released] * 3


def test_a_multi_lock_whose_store_fails_emits_failed_for_each_name(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)

    async def broken(*args):
        raise BackendError("broken", transient=False)

    lockfast_client._core.store.claim = broken
    with pytest.raises(BackendError):
        lockfast_client.multi_lock("a", "b").acquire()
    assert [(type(event), event.name) for event in events] == [(Failed, "a"), (Failed, "b")]
    assert events[0].error == "BackendError"


def test_failed_renewals_are_emitted_on_the_keepers_thread():
    with lockfast.connect("memory://", lease=0.3) as client:
        events, threads = [], set()

        def listen(event):
            if isinstance(event, RenewFailed):
                threads.add(threading.current_thread().name)
                events.append(event)

        client.on_event(listen)

        async def away(*args):
            raise BackendError("the store is down")

        client._core.store.renew = away
        hold = client.lock("n").acquire()
        until(lambda: events)
        assert events[0].count == 1 and "down" in events[0].error
        assert threads == {"lockfast-keeper"}
        until(lambda: hold.lost)
        assert client.statistics().renew_errors == len(events)


def test_closing_a_client_emits_released_for_its_holds(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    lockfast_client.lock("n").acquire()
    lockfast_client.close()
    assert kinds(events) == [Acquired, Released]


def test_an_acquire_during_close_emits_the_end_of_the_hold_it_could_not_keep(
    lockfast_client,
):
    events = []
    lockfast_client.on_event(events.append)
    claim = lockfast_client._core.store.claim

    async def closes(*args):
        granted = claim(*args)
        lockfast_client._core.ledger.closed = True
        return granted

    lockfast_client._core.store.claim = closes
    with pytest.raises(NotHeld, match="closed"):
        lockfast_client.lock("n").acquire()
    assert kinds(events) == [Acquired, Released, Failed]


def test_an_exception_of_a_listener_is_logged_once_and_breaks_nothing(lockfast_client, caplog):
    events = []

    def broken(event):
        raise RuntimeError("in the listener")

    lockfast_client.on_event(broken)
    lockfast_client.on_event(events.append)
    for _ in range(3):
        with lockfast_client.lock("n"):
            pass
    assert len(events) == 6
    assert caplog.text.count("Traceback") == 1 and "in the listener" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR


def test_a_listener_may_use_the_client_that_calls_it(lockfast_client):
    """The listener runs without any internal mutex held, after the store knows of the release."""
    free = []

    def listen(event):
        assert lockfast_client.statistics().acquired
        if isinstance(event, Released) and event.name == "n":
            with lockfast_client.lock("used by the listener", timeout=1):
                free.append(not lockfast_client.lock("n").locked())

    lockfast_client.on_event(listen)
    with lockfast_client.lock("n"):
        pass
    assert free == [True]


def test_a_hold_from_before_the_first_listener_emits_nothing(lockfast_client):
    events = []
    with lockfast_client.lock("n"):
        lockfast_client.on_event(events.append)
    assert events == []


def test_events_of_a_decorated_function_carry_its_key_expression(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)

    @lockfast_client.locked("account:{user}", prefix="shop")
    def plain(user): ...

    @lockfast_client.locked("room:{n}", semaphore=3)
    def counted(n): ...

    @lockfast_client.locked("page:{n}", kind="read")
    def reads(n): ...

    @lockfast_client.locked(lambda n: f"x{n}")
    def computed(n): ...

    plain("ann"), counted(7), reads(1), computed(1)
    seen = {(event.name, event.template) for event in events}
    function = computed.__qualname__
    assert seen == {
        ("shop:account:ann", "shop:account:{user}"),
        ("room:7", "room:{n}"),
        ("page:1", "page:{n}"),
        ("x1", function),
    }
    events.clear()
    with lockfast_client.lock("shop:account:ann"):
        assert [event.template for event in events] == [""], "a plain lock has no template"


def test_events_of_once_every_carry_its_name_as_template(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)

    @lockfast_client.once_every("5m", name="sweep")
    def sweep(): ...

    sweep()
    assert {(event.name, event.template) for event in events} == {("sweep", "sweep")}


@pytest.mark.parametrize(
    "early", [True, False], ids=["before the counterpart", "after the counterpart"]
)
def test_a_listener_receives_events_of_functions_of_the_other_api(early):
    events = []
    with lockfast.connect("memory://") as client:

        @client.locked("n")
        async def work(): ...

        if not early:
            asyncio.run(work())
        client.on_event(events.append)
        asyncio.run(work())
        assert kinds(events) == [Acquired, Released]


def test_a_forked_child_emits_its_own_events_and_not_its_parents(tmp_path):
    with lockfast.connect(f"sqlite://{tmp_path}/l.db") as client:
        events = []
        client.on_event(events.append)
        hold = client.lock("parent").acquire()
        child = os.fork()
        if child == 0:
            try:
                events.clear()
                with client.lock("child"):
                    pass
                with pytest.raises(HoldLost):
                    hold.release()
                right = [event.name for event in events] == ["child", "child"]
                os._exit(0 if right else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hold.release()
        assert [event.name for event in events] == ["parent", "parent"]


def test_a_listener_must_be_callable(lockfast_client):
    with pytest.raises(ConfigurationError, match="on_event"):
        lockfast_client.on_event("print")

    @lockfast_client.on_event
    def listener(event): ...

    assert callable(listener)


def test_no_event_contains_the_secret_of_a_claim(lockfast_client):
    events = []
    lockfast_client.on_event(events.append)
    with lockfast_client.lock("n"):
        secret = lockfast_client._core._secret
    assert not [event for event in events if secret in repr(event)]


def test_statistics_and_events_agree(lockfast_client, lockfast_clock):
    events = []
    lockfast_client.on_event(events.append)
    for _ in range(4):
        with lockfast_client.lock("n"):
            pass
    doomed = lockfast_client.lock("m").acquire()
    assert kit.lose(lockfast_client, "m") == 1
    assert doomed.lost
    statistics = lockfast_client.statistics()
    assert kinds(events).count(Acquired) == statistics.acquired == 5
    assert kinds(events).count(Released) == statistics.released == 4
    assert kinds(events).count(Lost) == statistics.lost == 1

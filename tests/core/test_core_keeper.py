"""The keeper beside its client's own requests: leases that change, keepers that end or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import lockfast
from lockfast.core.keeper import IDLE, LONGEST_SLEEP, Keeper
from lockfast.core.ledger import Ledger
from lockfast.model import Claim, Who
from lockfast.runtime.threads import run

LIMIT = 20.0


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://", lease=30) as client:
        yield client


class DelayedReply:
    """The first renewal is executed at once, and its reply delayed until `arrive`."""

    def __init__(self, store: Any) -> None:
        self._renew, store.renew = store.renew, self._delayed
        self._arrives = threading.Event()
        self.executed = threading.Event()
        self.sent = 0

    def _delayed(self, *arguments: Any) -> Any:
        self.sent += 1
        answers = self._renew(*arguments)
        if not self.executed.is_set():
            self.executed.set()
            assert self._arrives.wait(LIMIT)
        return answers

    def arrive(self) -> None:
        self._arrives.set()


def until(predicate: Callable[[], object]) -> None:
    ends = time.monotonic() + LIMIT
    while not predicate():
        assert time.monotonic() < ends
        time.sleep(0.005)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_reply_to_the_keeper_does_not_restore_a_lease_that_was_shortened(
    client: lockfast.Client,
) -> None:
    hold = client.lock("a").acquire()
    keeper = client._core.keeper
    reply = DelayedReply(keeper.store)
    keeper.mark_uncertain()  # so that it renews now
    assert reply.executed.wait(LIMIT)
    renewing = in_thread(lambda: hold.renew(lease=2))
    time.sleep(0.1)  # without the rule, the lease is shortened by now
    reply.arrive()
    renewing.join(LIMIT)
    until(lambda: not keeper.sending)
    assert hold.lease == 2
    assert hold.remaining() <= 2
    hold.release()


def test_the_keeper_does_not_renew_a_hold_whose_lease_is_being_changed(
    client: lockfast.Client,
) -> None:
    hold = client.lock("a").acquire()
    other = client.lock("b").acquire()
    reply = DelayedReply(client._core.store)
    renewing = in_thread(lambda: hold.renew(lease=2))
    assert reply.executed.wait(LIMIT)
    before = client.statistics().renewals
    client._core.keeper.mark_uncertain()
    until(lambda: client.statistics().renewals > before)  # of the other hold
    assert hold._held.confirmed < hold._held.uncertain_since, "the keeper renewed it"
    reply.arrive()
    renewing.join(LIMIT)
    assert hold.remaining() <= 2 < other.remaining()
    hold.release()
    other.release()


def test_changes_of_a_lease_are_sent_one_after_the_other(client: lockfast.Client) -> None:
    hold = client.lock("a").acquire()
    reply = DelayedReply(client._core.store)
    first = in_thread(lambda: hold.renew(lease=60))
    assert reply.executed.wait(LIMIT)
    second = in_thread(lambda: hold.renew(lease=2))
    time.sleep(0.1)
    assert reply.sent == 1
    reply.arrive()
    first.join(LIMIT)
    second.join(LIMIT)
    assert hold.lease == 2 and hold.remaining() <= 2
    hold.release()


def test_after_a_failed_thread_start_nothing_is_held_and_the_next_hold_is_renewed(
    client: lockfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(client._core.keeper.runtime, "spawn", no_thread, raising=False)
        with pytest.raises(RuntimeError, match="can't start"):
            client.lock("a").acquire()
        # Claims that were given up are left to their leases.
        client._core.keeper.keep_withdrawing(Claim("default:b", "1", "who", 30.0))
    assert client.names() == [] and client.statistics().held == 0
    with client.lock("a"):
        assert client._core.keeper.running
        before = client.statistics().renewals
        client._core.keeper.mark_uncertain()
        until(lambda: client.statistics().renewals > before)


def test_a_keeper_that_retires_leaves_the_schedule_of_the_next_one() -> None:
    now = iter(range(0, 1000, int(IDLE)))

    async def listen(timeout: float) -> None:
        pass

    started: list[str] = []
    runtime: Any = SimpleNamespace(
        now=lambda: next(now), mutex=nullcontext, spawn=lambda name, work: started.append(name)
    )
    keeper = Keeper(
        runtime,
        SimpleNamespace(listen=listen, in_session=False, on_uncertain=lambda callback: None),
        Ledger(runtime),
    )  # type: ignore[arg-type]
    retire = keeper._retire

    def retire_as_a_hold_arrives() -> bool:
        retired = retire()
        keeper.schedule(5000.0)
        return retired

    keeper._retire = retire_as_a_hold_arrives  # type: ignore[method-assign]
    run(keeper.run())
    assert started and keeper.running and keeper.wakes_at == 5000.0


def test_the_keeper_sleeps_in_portions_that_every_poll_accepts(client: lockfast.Client) -> None:
    store: Any = client._core.keeper.store
    listen, timeouts = store.listen, []

    async def recorded(timeout: float) -> None:
        timeouts.append(timeout)
        await listen(timeout)

    store.listen = recorded
    with client.lock("a", lease=30 * 86400, renew=False):
        until(lambda: timeouts)
    assert max(timeouts) == LONGEST_SLEEP


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("no")])
def test_an_on_lost_callback_that_raises_or_exits_does_not_end_the_keeper(
    client: lockfast.Client, error: BaseException
) -> None:
    called = []

    def on_lost(hold: lockfast.Hold) -> None:
        called.append(hold)
        raise error

    client.lock("a", on_lost=on_lost).acquire()
    client.multi_lock("b", "c", on_lost=on_lost).acquire()
    kept = client.lock("d").acquire()
    for name in ("a", "b"):
        client._endpoint.forget(f"default:{name}")  # type: ignore[attr-defined]
    client._core.keeper.mark_uncertain()
    until(lambda: len(called) == 2)
    before = client.statistics().renewals
    client._core.keeper.mark_uncertain()
    until(lambda: client.statistics().renewals > before)
    assert kept.is_held


def test_of_a_read_and_a_write_lock_of_one_name_a_multi_lock_takes_the_write(
    client: lockfast.Client,
) -> None:
    lock = client.rwlock("a")
    for locks in ([lock.write(), lock.read()], [lock.read(), lock.write()]):
        with client.multi_lock(*locks):
            assert client.rwlock("a", owner="other").read().try_acquire() is None
    assert client.names() == []


def test_a_thread_may_have_any_name() -> None:
    who = Who("host", 1, "worker \udc80", "label")
    assert Who.decoded(who.encoded()).thread == "worker \\udc80"

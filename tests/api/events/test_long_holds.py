"""``warn_after=``: a hold that lasts too long is logged once, with the stack of its holder."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref

import pytest

import lockfast
from both_apis import until
from lockfast import ConfigurationError
from lockfast.runtime import stacks
from lockfast.runtime.stacks import current_stack
from lockfast.testing import kit


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "warn_after" in record.getMessage()]


def test_a_long_hold_is_logged_once_with_its_name_fence_and_duration(
    lockfast_client, lockfast_clock, caplog
):
    with lockfast_client.lock("orders:42", warn_after=10, label="import") as hold:
        lockfast_clock.advance(9)
        assert warnings(caplog) == []
        lockfast_clock.advance(2)
        (message,) = warnings(caplog)
        lockfast_clock.advance(500)
    assert warnings(caplog) == [message]
    assert "'orders:42' has been held for 10.0 s" in message and f"fence {hold.fence}" in message
    assert "warn_after=10 s" in message and "(import)" in message
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_hold_that_ends_in_time_is_not_logged(lockfast_client, lockfast_clock, caplog):
    for _ in range(3):
        with lockfast_client.lock("n", warn_after=10):
            lockfast_clock.advance(9)
    lockfast_clock.advance(100)
    assert caplog.text == ""


def test_each_hold_has_its_own_warn_after(lockfast_client, lockfast_clock, caplog):
    first = lockfast_client.lock("a", warn_after=25).acquire()
    lockfast_clock.advance(3)
    second = lockfast_client.lock("b", warn_after=4).acquire()
    third = lockfast_client.lock("c").acquire()
    lockfast_clock.advance(5)
    assert ["'b'" in message for message in warnings(caplog)] == [True]
    lockfast_clock.advance(20)
    assert [message.split("'")[1] for message in warnings(caplog)] == ["b", "a"]
    for hold in (first, second, third):
        hold.release()


def test_warn_after_of_a_client_applies_to_all_its_locks_unless_a_lock_sets_its_own(
    lockfast_clock, caplog
):
    client = kit.client(lockfast_clock)
    client._warn_after = 5.0  # as connect() sets it
    holds = [
        client.lock("plain").acquire(),
        client.lock("own", warn_after=60).acquire(),
        client.lock("labelled", label="x").acquire(),
        client.semaphore("s", 2).acquire(),
        client.rwlock("rw").write().acquire(),
        client.multi_lock("m").acquire(),
        client.election("lead").lead().acquire(),
    ]
    lockfast_clock.advance(30)
    assert sorted(message.split("'")[1] for message in warnings(caplog)) == [
        "labelled", "m", "plain", "rw", "s",
    ]  # fmt: skip
    lockfast_clock.advance(31)
    assert "'own'" in warnings(caplog)[-1]
    for hold in holds:
        hold.release()
    client.close()


def test_every_kind_of_lock_takes_warn_after(lockfast_client, lockfast_clock, caplog):
    @lockfast_client.locked("decorated", warn_after=5)
    def decorated():
        with (
            lockfast_client.semaphore("s", 2, warn_after=5),
            lockfast_client.rwlock("rw", warn_after=5).read(),
            lockfast_client.multi_lock("m", warn_after=5),
        ):
            lockfast_clock.advance(6)

    decorated()
    names = sorted(message.split("'")[1] for message in warnings(caplog))
    assert names == ["decorated", "m", "rw", "s"]


class Trap:
    """Code in which a holder gets stuck until the test sets it free."""

    def __init__(self):
        self.caught, self.free = threading.Event(), threading.Event()

    def holds_a_thread(self):
        self.caught.set()
        assert self.free.wait(15)

    async def holds_a_task(self):
        await self.deep_inside()

    async def deep_inside(self):
        asyncio.get_running_loop().call_soon(self.caught.set)  # once this task is suspended
        assert await asyncio.to_thread(self.free.wait, 15)


def warned(work, trap, clock, caplog):
    """Return the message that is logged while a holder is stuck in the trap."""
    thread = threading.Thread(target=work)
    thread.start()
    assert trap.caught.wait(15)
    clock.advance(6)
    trap.free.set()
    thread.join(15)
    (message,) = warnings(caplog)
    return message


KINDS = {
    "lock": lambda client: client.lock("n", warn_after=5),
    # Each hold of a semaphore has an owner of its own, which is not the acquiring thread or task.
    "semaphore": lambda client: client.semaphore("n", 1, warn_after=5),
    "custom owner": lambda client: client.lock("n", owner="somebody", warn_after=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_shows_the_stack_of_the_thread_that_acquired(
    kind, lockfast_client, lockfast_clock, caplog
):
    trap = Trap()

    def work():
        with KINDS[kind](lockfast_client):
            trap.holds_a_thread()

    message = warned(work, trap, lockfast_clock, caplog)
    assert message.index("in work") < message.index("in holds_a_thread")


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_shows_what_the_task_that_acquired_awaits(
    kind, lockfast_aio_client, lockfast_clock, caplog
):
    trap = Trap()

    async def work():
        async with KINDS[kind](lockfast_aio_client):
            await trap.holds_a_task()

    message = warned(lambda: asyncio.run(work()), trap, lockfast_clock, caplog)
    assert (
        message.index("in work")
        < message.index("in holds_a_task")
        < message.index("in deep_inside")
    )


def test_the_log_shows_where_a_task_blocks_its_loop(lockfast_aio_client, lockfast_clock, caplog):
    trap = Trap()

    async def work():
        async with lockfast_aio_client.lock("n", warn_after=5):
            trap.holds_a_thread()  # which blocks the loop and all its tasks

    message = warned(lambda: asyncio.run(work()), trap, lockfast_clock, caplog)
    assert message.index("in work") < message.index("in holds_a_thread")
    assert "run_until_complete" not in message  # frames outside of the task are left out


def test_the_stack_of_an_ended_thread_or_task_says_so():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_stack()))
    thread.start()
    thread.join()
    assert "thread has ended" in seen[0]()
    # Its thread id may belong to another thread by now, whose stack must not be shown.
    message = stacks._of_thread(weakref.ref(thread), threading.get_ident())
    assert message == "  (the thread has ended)"
    del thread
    gc.collect()
    assert "thread has ended" in seen[0]()

    async def main():
        async def short():
            seen.append(current_stack())

        task = asyncio.create_task(short())
        await task
        assert "task has ended" in seen[1]()
        del task
        gc.collect()
        assert "task has ended" in seen[1]()

    asyncio.run(main())


def test_warn_after_keeps_no_task_alive():
    async def main():
        async def one():
            return current_stack()

        task = asyncio.create_task(one())
        stack, gone = await task, weakref.ref(task)
        del task
        await asyncio.sleep(0)  # the loop still refers to it
        gc.collect()
        assert gone() is None and "task has ended" in stack()

    asyncio.run(main())


def test_an_object_that_is_no_coroutine_has_no_frames():
    assert list(stacks._suspended(object())) == []
    assert "no Python frames" in stacks._formatted([])


def test_a_very_deep_stack_is_cut_to_its_innermost_frames():
    free, deep, seen = threading.Event(), threading.Event(), []

    def down(n):
        if n:
            down(n - 1)
        else:
            seen.append(current_stack())
            deep.set()
            free.wait(15)

    thread = threading.Thread(target=down, args=(200,))
    thread.start()
    assert deep.wait(15)
    until(lambda: "free.wait" in seen[0]())
    assert len(seen[0]().splitlines()) < 100
    free.set()
    thread.join()


@pytest.mark.parametrize("wrong", [0, -1, "5", float("nan"), True])
def test_an_invalid_warn_after_is_refused(wrong, lockfast_client):
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast_client.lock("n", warn_after=wrong)
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast.connect("memory://", warn_after=wrong)
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast_client.locked("n", warn_after=wrong)


def test_a_hold_taken_over_from_another_process_is_logged_too(lockfast_clock, caplog):
    client = kit.client(lockfast_clock)
    text = client.lock("n", renew=True).acquire().detach()
    client._warn_after = 5.0
    hold = client.attach("n", text)
    lockfast_clock.advance(6)
    assert len(warnings(caplog)) == 1
    hold.release()
    client.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_keeper_in_real_time_logs_a_long_hold(store, tmp_path, caplog):
    url = "memory://" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url, warn_after=0.1) as client, client.lock("n"):
        until(lambda: warnings(caplog))
        assert "'n' has been held for" in warnings(caplog)[0]

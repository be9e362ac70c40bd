"""``warn_after=``: a hold that lasts too long is logged once, with where its holder is stuck."""

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


def test_it_is_logged_once_with_the_name_the_fence_and_how_long(
    lockfast_client, lockfast_clock, caplog
):
    with lockfast_client.lock("orders:42", warn_after=10, label="import") as hold:
        lockfast_clock.advance(9)
        assert warnings(caplog) == []
        lockfast_clock.advance(2)
        (said,) = warnings(caplog)
        lockfast_clock.advance(500)
    assert warnings(caplog) == [said]
    assert "'orders:42' has been held for 10.0 s" in said and f"fence {hold.fence}" in said
    assert "warn_after=10 s" in said and "(import)" in said
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_hold_that_ends_in_time_is_not_worth_a_word(lockfast_client, lockfast_clock, caplog):
    for _ in range(3):
        with lockfast_client.lock("n", warn_after=10):
            lockfast_clock.advance(9)
    lockfast_clock.advance(100)
    assert caplog.text == ""


def test_each_hold_has_its_own_time(lockfast_client, lockfast_clock, caplog):
    first = lockfast_client.lock("a", warn_after=25).acquire()
    lockfast_clock.advance(3)
    second = lockfast_client.lock("b", warn_after=4).acquire()
    third = lockfast_client.lock("c").acquire()
    lockfast_clock.advance(5)
    assert ["'b'" in said for said in warnings(caplog)] == [True]
    lockfast_clock.advance(20)
    assert [said.split("'")[1] for said in warnings(caplog)] == ["b", "a"]
    for hold in (first, second, third):
        hold.release()


def test_a_client_says_it_for_all_its_locks_and_a_lock_for_itself(lockfast_clock, caplog):
    client = kit.client(lockfast_clock)
    client.warn_after = 5.0  # as connect() sets it
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
    assert sorted(said.split("'")[1] for said in warnings(caplog)) == [
        "labelled", "m", "plain", "rw", "s",
    ]  # fmt: skip
    lockfast_clock.advance(31)
    assert "'own'" in warnings(caplog)[-1]
    for hold in holds:
        hold.release()
    client.close()


def test_every_kind_of_lock_takes_the_word(lockfast_client, lockfast_clock, caplog):
    @lockfast_client.locked("decorated", warn_after=5)
    def decorated():
        with (
            lockfast_client.semaphore("s", 2, warn_after=5),
            lockfast_client.rwlock("rw", warn_after=5).read(),
            lockfast_client.multi_lock("m", warn_after=5),
        ):
            lockfast_clock.advance(6)

    decorated()
    names = sorted(said.split("'")[1] for said in warnings(caplog))
    assert names == ["decorated", "m", "rw", "s"]


class Trap:
    """Holders get stuck in it; when one is, the test lets time pass, and then lets it go."""

    def __init__(self):
        self.caught, self.free = threading.Event(), threading.Event()

    def holds_a_thread(self):
        self.caught.set()
        assert self.free.wait(15)

    async def holds_a_task(self):
        await self.deep_inside()

    async def deep_inside(self):
        asyncio.get_running_loop().call_soon(self.caught.set)  # when this task is suspended
        assert await asyncio.to_thread(self.free.wait, 15)


def warned(work, trap, clock, caplog):
    """What is logged of a holder that is in the trap when its time is over."""
    thread = threading.Thread(target=work)
    thread.start()
    assert trap.caught.wait(15)
    clock.advance(6)
    trap.free.set()
    thread.join(15)
    (said,) = warnings(caplog)
    return said


KINDS = {
    "lock": lambda client: client.lock("n", warn_after=5),
    # Of a semaphore each hold is an owner of its own, and yet somebody acquired it.
    "semaphore": lambda client: client.semaphore("n", 1, warn_after=5),
    "given owner": lambda client: client.lock("n", owner="somebody", warn_after=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_shows_where_the_thread_that_acquired_it_is(
    kind, lockfast_client, lockfast_clock, caplog
):
    trap = Trap()

    def work():
        with KINDS[kind](lockfast_client):
            trap.holds_a_thread()

    said = warned(work, trap, lockfast_clock, caplog)
    assert said.index("in work") < said.index("in holds_a_thread")


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_shows_what_the_task_that_acquired_it_awaits(
    kind, lockfast_aio_client, lockfast_clock, caplog
):
    trap = Trap()

    async def work():
        async with KINDS[kind](lockfast_aio_client):
            await trap.holds_a_task()

    said = warned(lambda: asyncio.run(work()), trap, lockfast_clock, caplog)
    assert said.index("in work") < said.index("in holds_a_task") < said.index("in deep_inside")


def test_a_task_that_blocks_its_loop_is_found_where_it_blocks(
    lockfast_aio_client, lockfast_clock, caplog
):
    trap = Trap()

    async def work():
        async with lockfast_aio_client.lock("n", warn_after=5):
            trap.holds_a_thread()  # and with it the loop, and all tasks there

    said = warned(lambda: asyncio.run(work()), trap, lockfast_clock, caplog)
    assert said.index("in work") < said.index("in holds_a_thread")
    assert "run_until_complete" not in said  # what is outside of the task is nobody's business


def test_one_that_has_ended_meanwhile_is_said_to_have():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_stack()))
    thread.start()
    thread.join()
    assert "thread has ended" in seen[0]()
    # Its number may be another's by now, whose stack this is not.
    said = stacks._of_thread(weakref.ref(thread), threading.get_ident())
    assert said == "  (the thread has ended)"
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


def test_to_be_able_to_warn_keeps_no_task_alive():
    async def main():
        async def one():
            return current_stack()

        task = asyncio.create_task(one())
        stack, gone = await task, weakref.ref(task)
        del task
        await asyncio.sleep(0)  # the loop still has it in its hands
        gc.collect()
        assert gone() is None and "task has ended" in stack()

    asyncio.run(main())


def test_what_is_not_python_has_no_frames():
    assert list(stacks._suspended(object())) == []
    assert "no frames" in stacks._told([])


def test_a_very_deep_stack_is_cut_to_its_inner_end():
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
def test_a_time_that_is_none_is_refused(wrong, lockfast_client):
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast_client.lock("n", warn_after=wrong)
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast.connect("memory://", warn_after=wrong)
    with pytest.raises(ConfigurationError, match="warn_after"):
        lockfast_client.locked("n", warn_after=wrong)


def test_what_was_taken_over_from_another_process_is_warned_of_too(lockfast_clock, caplog):
    client = kit.client(lockfast_clock)
    text = client.lock("n", renew=True).acquire().detach()
    client.warn_after = 5.0
    hold = client.attach("n", text)
    lockfast_clock.advance(6)
    assert len(warnings(caplog)) == 1
    hold.release()
    client.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_keeper_in_real_time_notices_it(store, tmp_path, caplog):
    url = "memory://" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url, warn_after=0.1) as client, client.lock("n"):
        until(lambda: warnings(caplog))
        assert "'n' has been held for" in warnings(caplog)[0]

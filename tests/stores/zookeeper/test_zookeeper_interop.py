"""Interoperation on one path with kazoo's Lock and with nodes named like Curator's. They exclude
each other in both directions, in arrival order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import KazooException, LockTimeout
from zookeeper_nodes import nodes

from both_apis import PATIENCE, Agent, until
from lockfast import AcquireTimeout

Make = Callable[..., Agent]


@pytest.fixture
def kazoo(zookeeper_server: Any) -> Iterator[Any]:
    client = zookeeper_server.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path(agent: Make, zookeeper_server: Any, name: str) -> str:
    """The path of this name's nodes in kazoo's layout."""
    mine = agent(zookeeper_server.url)
    hold = mine.do(lambda client: client.lock(name, layout="kazoo").acquire())
    (node,) = nodes(zookeeper_server, name)
    mine.do(lambda client: hold.release())
    return node.path.rpartition("/")[0]


def wait_of(agent: Agent, name: str) -> Any:
    return agent.later(lambda client: client.lock(name, layout="kazoo").acquire(timeout=PATIENCE))


class Theirs:
    """A kazoo Lock that a thread acquires."""

    def __init__(self, kazoo: Any, path: str, identifier: str = "them") -> None:
        self.lock = kazoo.Lock(path, identifier)
        self.got = threading.Event()
        threading.Thread(target=self._acquire, daemon=True).start()

    def _acquire(self) -> None:
        try:
            if self.lock.acquire(timeout=PATIENCE):
                self.got.set()
        except KazooException:
            pass  # the test is over and has failed already


def test_a_waiter_for_kazoos_lock_gets_it_when_it_is_released(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    lock = kazoo.Lock(path, "their worker")
    assert lock.acquire(timeout=PATIENCE)
    ours = mine.client.lock(name, layout="kazoo")
    assert mine.do(lambda client: ours.try_acquire()) is None
    assert len(nodes(zookeeper_server, name)) == 1, "a failed try_acquire left a node"
    with pytest.raises(AcquireTimeout, match="their worker"):
        mine.do(lambda client: ours.acquire(timeout=0.2))
    assert mine.do(lambda client: ours.locked())
    waits = wait_of(mine, name)
    until(lambda: len(nodes(zookeeper_server, name)) == 2)
    time.sleep(0.3)
    assert not waits.done()
    lock.release()
    hold = waits.result(PATIENCE)
    (node,) = nodes(zookeeper_server, name)
    assert hold.is_held and hold.fence == node.czxid
    mine.do(lambda client: hold.release())
    assert not nodes(zookeeper_server, name)


def test_kazoos_lock_waits_for_ours(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    hold = mine.do(lambda client: client.lock(name, layout="kazoo").acquire())
    assert not kazoo.Lock(path).acquire(blocking=False)
    theirs = Theirs(kazoo, path)
    assert not theirs.got.wait(0.4)
    assert hold.is_held
    assert len(kazoo.Lock(path).contenders()) == 2
    mine.do(lambda client: hold.release())
    assert theirs.got.wait(PATIENCE)
    assert mine.do(lambda client: client.lock(name, layout="kazoo").try_acquire()) is None
    theirs.lock.release()


def test_a_mixed_queue_is_served_in_arrival_order(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    first = kazoo.Lock(path)
    first.acquire(timeout=PATIENCE)
    ours, theirs = [], []
    for number in range(6):
        if number % 2:
            theirs.append(Theirs(kazoo, path))
        else:
            ours.append(wait_of(mine, name))
        until(lambda number=number: len(nodes(zookeeper_server, name)) == number + 2)
    first.release()
    for number in range(6):
        if number % 2:
            one = theirs.pop(0)
            assert one.got.wait(PATIENCE)
            assert not any(wait.done() for wait in ours)
            one.lock.release()
        else:
            hold = ours.pop(0).result(PATIENCE)
            assert hold.is_held
            assert not any(other.got.is_set() for other in theirs)
            assert not any(wait.done() for wait in ours)
            mine.do(lambda client, hold=hold: hold.release())
    assert not nodes(zookeeper_server, name)


def test_a_kazoo_waiter_that_leaves_the_queue_is_skipped(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    """The watched node is gone, but an earlier one still holds the lock."""
    mine, other = agent(zookeeper_server.url), agent(zookeeper_server.url)
    hold = mine.do(lambda client: client.lock(name, layout="kazoo").acquire())

    def try_it() -> None:
        with pytest.raises(LockTimeout):
            kazoo.Lock(path).acquire(timeout=0.6)

    impatient = threading.Thread(target=try_it)
    impatient.start()
    until(lambda: len(nodes(zookeeper_server, name)) == 2)
    waits = wait_of(other, name)
    until(lambda: len(nodes(zookeeper_server, name)) == 3)
    impatient.join(PATIENCE)
    time.sleep(0.3)
    assert hold.is_held and not waits.done()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).is_held


def test_nodes_named_like_curators_hold_and_wait_like_all_others(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    def curator() -> str:
        guid = uuid.uuid4()
        return str(kazoo.create(f"{path}/_c_{guid}-lock-", b"", ephemeral=True, sequence=True))

    mine = agent(zookeeper_server.url)
    holds = curator()
    assert mine.do(lambda client: client.lock(name, layout="kazoo").try_acquire()) is None
    waits = [wait_of(mine, name)]
    until(lambda: len(nodes(zookeeper_server, name)) == 2)
    position = curator()
    waits.append(wait_of(mine, name))
    until(lambda: len(nodes(zookeeper_server, name)) == 4)
    time.sleep(0.2)
    assert not any(wait.done() for wait in waits)
    kazoo.delete(holds)
    hold = waits[0].result(PATIENCE)
    mine.do(lambda client: hold.release())
    time.sleep(0.3)
    assert not waits[1].done(), "Curator's node is first"
    kazoo.delete(position)
    later = waits[1].result(PATIENCE)
    assert later.is_held and later.fence > hold.fence
    mine.do(lambda client: later.release())


def test_contending_clients_of_both_kinds_exclude_each_other(
    agent: Make, zookeeper_server: Any, kazoo: Any, path: str, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    inside: list[str] = []
    most = [0]
    counts = {"ours": 0, "theirs": 0}

    def enter(who: str) -> None:
        inside.append(who)
        most[0] = max(most[0], len(inside))
        time.sleep(0.002)
        counts[who] += 1
        inside.remove(who)

    def ours(client: Any) -> Any:
        lock = client.lock(name, layout="kazoo", timeout=PATIENCE)
        if mine.api == "blocking":
            for _ in range(10):
                with lock:
                    enter("ours")
            return None

        async def work() -> None:
            for _ in range(10):
                async with lock:
                    enter("ours")

        return work()

    def theirs() -> None:
        lock = kazoo.Lock(path)
        for _ in range(10):
            with lock:
                enter("theirs")

    threads = [threading.Thread(target=theirs) for _ in range(3)]
    futures = [mine.later(ours) for _ in range(3)]
    for thread in threads:
        thread.start()
    for future in futures:
        future.result(2 * PATIENCE)
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert most[0] == 1 and counts == {"ours": 30, "theirs": 30}

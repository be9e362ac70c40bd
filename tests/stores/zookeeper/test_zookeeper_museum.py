"""Bugs of kazoo and Curator, reproduced against lockfast on a real ZooKeeper."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zookeeper_nodes import SESSION, expire, lose_next, nodes, with_session

import lockfast
from both_apis import PATIENCE, Agent, took, until
from lockfast import AcquireTimeout, BackendError, HoldLost

Make = Callable[..., Agent]
SOURCE = Path(lockfast.__file__).parent.parent


# ---- kazoo --------------------------------------------------------------------------------------


def test_a_hold_is_not_held_after_its_session_was_lost_unlike_kazoos(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    lock = mine.client.lock(name, owner="me")
    hold = mine.do(lambda client: lock.acquire())
    assert lock.is_held
    (node,) = nodes(zookeeper_server, name)
    expire(zookeeper_server, node.session)
    until(lambda: not hold.is_held, SESSION)
    # The client is connected again, in a new session without the old nodes.
    mine.do(lambda client: client.inspect(name))
    time.sleep(0.3)
    assert not hold.is_held and not lock.is_held and hold.lost
    with pytest.raises(HoldLost):
        hold.check()
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.renew())
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())


def test_a_timeout_does_not_start_again_at_each_wakeup_unlike_kazoos(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    holder, others, mine = (agent(zookeeper_server.url) for _ in range(3))
    hold = holder.do(lambda client: client.lock(name).acquire())
    waits = []
    for number, seconds in enumerate((1.6, 1.3, 1.0, 0.7, 0.4)):  # the last one leaves first
        waits.append(
            others.later(lambda client, s=seconds: client.lock(name).try_acquire(timeout=s))
        )
        until(lambda number=number: len(nodes(zookeeper_server, name)) == number + 2)
    with took() as time_of, pytest.raises(AcquireTimeout):
        mine.do(lambda client: client.lock(name).acquire(timeout=1.2))
    assert time_of.seconds >= 1.2 and time_of.unstalled < 1.2 + 0.5
    assert [wait.result(PATIENCE) for wait in waits] == [None] * 5
    holder.do(lambda client: hold.release())


@pytest.mark.parametrize("when", ["comes", "waits"])
def test_kazoo_732_a_waiter_that_times_out_while_suspended_leaves_no_orphan(
    agent: Make, zookeeper_server: Any, network: Any, proxied_url: str, name: str, when: str
) -> None:
    holder, mine = agent(zookeeper_server.url), agent(proxied_url, session=25)
    hold = holder.do(lambda client: client.lock(name).acquire())
    assert mine.do(lambda client: client.lock(name).try_acquire()) is None  # this connects it
    if when == "comes":
        lose_next(network, name)
        network.refuse()  # no other connection replaces the lost one
        with pytest.raises((AcquireTimeout, BackendError)):
            mine.do(lambda client: client.lock(name).acquire(timeout=0.2))
        assert network.lost_replies == 1
    else:
        waits = mine.later(lambda client: client.lock(name).acquire(timeout=1.0))
        until(lambda: len(nodes(zookeeper_server, name)) == 2)
        network.refuse()
        network.reset()
        with pytest.raises((AcquireTimeout, BackendError)):
            waits.result(PATIENCE)
    assert len(nodes(zookeeper_server, name)) == 2, "no orphan was left: the test tests nothing"
    network.accept()
    # Its session stays alive, and so would the node.
    until(lambda: len(nodes(zookeeper_server, name)) == 1)
    assert nodes(zookeeper_server, name)[0].czxid == hold.fence
    holder.do(lambda client: hold.release())
    later = holder.do(lambda client: client.lock(name).try_acquire())
    assert later is not None, "an orphan is ahead in the queue"
    holder.do(lambda client: later.release())


FORKING = """
import os, sys, lockfast
url, name = sys.argv[1:]
client = lockfast.connect(url)
lock = client.lock(name)
hold = lock.acquire()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert not hold.is_held, "the child holds its parent's lock"
        assert lock.try_acquire() is None, "parent and child hold the lock"
        with client.lock(name + "-child", timeout=10) as mine:
            assert mine.is_held and mine.fence > hold.fence
        code = 0
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        # With exit handlers, or without.
        sys.exit(code) if name.endswith("gently") else os._exit(code)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
assert hold.is_held
hold.renew()
assert client.inspect(name).holders[0].fence == hold.fence
hold.release()
print("fine", flush=True)
"""


@pytest.mark.parametrize("end", ["gently", "at once"])
def test_a_fork_does_not_hang_unlike_kazoos(zookeeper_server: Any, name: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, with_session(zookeeper_server.url, 4), f"{name}-{end}"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.stdout == "fine\n", done.stdout + done.stderr
    until(lambda: not nodes(zookeeper_server, name))


# ---- Curator ------------------------------------------------------------------------------------


def test_curator_604_a_node_of_the_previous_session_is_not_taken_for_our_own(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    """A node of the same claim is still visible after its session ended, as on a server that lags
    behind. It belongs to another session, and grants us nothing."""
    holder, mine = agent(zookeeper_server.url), agent(zookeeper_server.url)
    hold = holder.do(lambda client: client.lock(name).acquire())
    waits = mine.later(lambda client: client.lock(name).acquire(timeout=2 * PATIENCE))
    waiter = until(lambda: len(found := nodes(zookeeper_server, name)) == 2 and found)[1]
    client = zookeeper_server.client()
    old = client.create(waiter.path[:-10], waiter.data, ephemeral=True, sequence=True)
    expire(zookeeper_server, waiter.session)
    until(lambda: len(nodes(zookeeper_server, name)) == 3)  # a new node, behind the old one
    holder.do(lambda client: hold.release())
    time.sleep(0.7)
    assert not waits.done(), "the waiter holds by a node of another session"
    client.delete(old)
    later = waits.result(PATIENCE)
    (node,) = nodes(zookeeper_server, name)
    assert node.czxid == later.fence and node.session not in (waiter.session, client.client_id[0])
    mine.do(lambda _: later.release())
    client.stop()
    client.close()


def test_an_owner_that_lost_its_session_cannot_reenter_unlike_curators(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine, other = agent(zookeeper_server.url), agent(zookeeper_server.url)
    lock = mine.client.lock(name, owner="me")
    hold = mine.do(lambda client: lock.acquire())
    again = mine.do(lambda client: lock.acquire())
    assert again.fence == hold.fence
    (node,) = nodes(zookeeper_server, name)
    expire(zookeeper_server, node.session)
    theirs = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: hold.lost)
    for timeout in (0, 0.2, None):
        with pytest.raises(HoldLost):
            mine.do(lambda client, t=timeout: lock.acquire(timeout=t))
    for held in (again, hold):
        with pytest.raises(HoldLost):
            mine.do(lambda client, held=held: held.release())
    assert theirs.is_held
    other.do(lambda client: theirs.release())
    # All its holds are released: now the owner may acquire like any other.
    fresh = mine.do(lambda client: lock.acquire(timeout=PATIENCE))
    assert fresh.fence > theirs.fence
    mine.do(lambda client: fresh.release())

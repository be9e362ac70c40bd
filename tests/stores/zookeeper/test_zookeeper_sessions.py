"""Sessions that end, processes that stop and die, and servers that restart: a hold ends with its
session, is reported lost once, and the next waiter is served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zookeeper_nodes import SESSION, TICK, expire, nodes, sessions, with_session

import lockfast
from both_apis import PATIENCE, Agent, until
from lockfast import HoldLost

Make = Callable[..., Agent]
SOURCE = Path(lockfast.__file__).parent.parent


def waiting(agent: Agent, number: int = 1) -> None:
    until(lambda: agent.client.statistics().waiting == number)


# ---- by force -----------------------------------------------------------------------------------


def test_an_expired_session_is_reported_lost_once_and_the_next_waiter_is_served(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine, other = agent(zookeeper_server.url), agent(zookeeper_server.url)
    losses: list[int] = []
    lock = mine.client.lock(name, owner="me", on_lost=lambda hold: losses.append(hold.fence))
    hold = mine.do(lambda client: lock.acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(other)
    expire(zookeeper_server, nodes(zookeeper_server, name)[0].session)
    later = waits.result(PATIENCE)
    until(lambda: losses)
    assert hold.lost and not hold.is_held and later.fence > hold.fence
    with pytest.raises(HoldLost):
        mine.do(lambda client: lock.acquire(timeout=0))  # no reentry
    time.sleep(SESSION)  # nothing is renewed, and nothing is created again
    assert losses == [hold.fence]
    (node,) = nodes(zookeeper_server, name)
    assert node.czxid == later.fence
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert later.is_held
    other.do(lambda client: later.release())
    again = mine.do(lambda client: lock.acquire(timeout=PATIENCE))
    assert again.fence > later.fence
    mine.do(lambda client: again.release())
    assert not nodes(zookeeper_server, name)


def test_all_holds_of_an_expired_session_are_lost_each_once(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    losses: list[int] = []
    holds = [
        mine.do(
            lambda client, n=n: client.lock(
                f"{name}-{n}", on_lost=lambda hold: losses.append(hold.fence)
            ).acquire()
        )
        for n in range(5)
    ]
    for session in {node.session for node in nodes(zookeeper_server, name)}:
        expire(zookeeper_server, session)
    until(lambda: len(losses) == 5)
    time.sleep(0.3)
    assert sorted(losses) == sorted(hold.fence for hold in holds)
    assert not any(hold.is_held for hold in holds)


def test_a_waiter_whose_session_expires_goes_on_waiting_and_is_served(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine, other = agent(zookeeper_server.url), agent(zookeeper_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(other)
    first, waiter = until(lambda: len(found := nodes(zookeeper_server, name)) == 2 and found)
    expire(zookeeper_server, waiter.session)
    new = until(
        lambda: len(found := nodes(zookeeper_server, name)) == 2 and found[1] != waiter and found[1]
    )
    assert not waits.done() and hold.is_held
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence >= new.czxid > first.czxid and later.is_held
    other.do(lambda client: later.release())
    until(lambda: not nodes(zookeeper_server, name))


def test_a_waiter_in_the_middle_can_leave_without_the_next_being_served_early(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    """The watched node is gone, but an earlier one still holds the lock."""
    line = [agent(zookeeper_server.url) for _ in range(3)]
    hold = line[0].do(lambda client: client.lock(name).acquire())
    waits = []
    for number, other in enumerate(line[1:], 2):
        waits.append(other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE)))
        until(lambda number=number: len(nodes(zookeeper_server, name)) == number)
    expire(zookeeper_server, nodes(zookeeper_server, name)[1].session)
    time.sleep(0.5)
    assert hold.is_held and not any(wait.done() for wait in waits)
    line[0].do(lambda client: hold.release())
    # The waiter that kept its node is before the one that had to enqueue again.
    last = waits[1].result(PATIENCE)
    assert not waits[0].done()
    line[2].do(lambda client: last.release())
    assert waits[0].result(PATIENCE).fence > last.fence


def test_a_node_that_is_deleted_by_hand_is_a_loss(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine = agent(zookeeper_server.url)
    losses: list[int] = []
    hold = mine.do(
        lambda client: client.lock(name, on_lost=lambda h: losses.append(h.fence)).acquire()
    )
    (node,) = nodes(zookeeper_server, name)
    client = zookeeper_server.client()
    client.delete(node.path)
    client.stop()
    client.close()
    until(lambda: losses, SESSION)
    assert not hold.is_held and losses == [hold.fence]
    time.sleep(0.5)
    assert not nodes(zookeeper_server, name), "the client created the node again"


# ---- processes ----------------------------------------------------------------------------------

HOLDER = """
import json, sys, lockfast
url, name = sys.argv[1:]
losses = []
client = lockfast.connect(url)
hold = client.lock(name, on_lost=lambda hold: losses.append(hold.fence)).acquire()
print(json.dumps(hold.fence), flush=True)
sys.stdin.readline()
held = hold.is_held
try:
    hold.release()
    outcome = "released"
except lockfast.HoldLost:
    outcome = "lost"
print(json.dumps([held, outcome, hold.lost, losses]), flush=True)
sys.stdin.readline()
"""


class Holder:
    """Another process that holds the lock until `go_on` is called."""

    def __init__(self, url: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, with_session(url), name],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.fence = self.reply()

    def reply(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.reply()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(zookeeper_server: Any, name: str) -> Iterator[Holder]:
    holder = Holder(zookeeper_server.url, name)
    yield holder
    holder.close()


def test_a_stopped_holder_loses_the_lock_and_touches_no_other_hold_when_it_goes_on(
    agent: Make, zookeeper_server: Any, name: str, holder: Holder
) -> None:
    other = agent(zookeeper_server.url)
    holder.signal(signal.SIGSTOP)
    began = time.monotonic()
    later = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert time.monotonic() - began < 1.25 * SESSION + 2 * TICK
    assert later.fence > holder.fence
    time.sleep(0.3)
    holder.signal(signal.SIGCONT)
    held, outcome, lost, _ = holder.go_on()
    assert (held, outcome, lost) == (False, "lost", True)
    (node,) = nodes(zookeeper_server, name)
    assert node.czxid == later.fence and later.is_held
    other.do(lambda client: later.release())


def test_a_holder_stopped_for_less_than_its_session_keeps_the_lock(
    zookeeper_server: Any, name: str, holder: Holder
) -> None:
    holder.signal(signal.SIGSTOP)
    time.sleep(0.3 * SESSION)
    holder.signal(signal.SIGCONT)
    time.sleep(SESSION)
    assert holder.go_on() == [True, "released", False, []]
    assert not nodes(zookeeper_server, name)


def test_the_lock_of_a_killed_holder_is_free_within_one_session(
    agent: Make, zookeeper_server: Any, name: str, holder: Holder
) -> None:
    other = agent(zookeeper_server.url)
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(other)
    time.sleep(0.3)
    began = time.monotonic()
    holder.signal(signal.SIGKILL)
    later = waits.result(PATIENCE)
    # P4, and a tick of the server, which ends sessions at ticks.
    assert time.monotonic() - began < 1.25 * SESSION + 2 * TICK
    assert later.fence > holder.fence
    other.do(lambda client: later.release())


def test_a_killed_waiter_delays_the_next_no_longer_than_its_session(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    # A loaded machine may not renew a hold of two seconds while the processes start.
    mine, last = agent(zookeeper_server.url, session=20), agent(zookeeper_server.url, session=20)
    hold = mine.do(lambda client: client.lock(name).acquire())
    code = (
        "import sys, lockfast\n"
        "client = lockfast.connect(sys.argv[1])\n"
        "client.lock(sys.argv[2]).acquire()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, with_session(zookeeper_server.url), name],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    try:
        until(lambda: len(nodes(zookeeper_server, name)) == 2)
        waits = last.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        until(lambda: len(nodes(zookeeper_server, name)) == 3)
        began = time.monotonic()
    finally:
        child.kill()
        child.wait()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).is_held
    assert time.monotonic() - began < 1.25 * SESSION + 2 * TICK


def test_a_process_that_exits_normally_releases_its_locks_at_once(
    zookeeper_server: Any, name: str
) -> None:
    code = (
        "import sys, lockfast\n"
        "hold = lockfast.connect(sys.argv[1]).lock(sys.argv[2]).acquire()\n"
        "print(hold.fence, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, with_session(zookeeper_server.url, 20), name],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr
    assert not nodes(zookeeper_server, name)


def test_a_client_that_is_closed_ends_its_session(
    agent: Make, zookeeper_server: Any, name: str
) -> None:
    mine = agent(zookeeper_server.url, session=20)
    mine.do(lambda client: client.lock(name).acquire())
    (node,) = nodes(zookeeper_server, name)
    mine.close()
    until(lambda: node.session not in sessions(zookeeper_server).values(), 3.0)
    assert hex(node.session) not in zookeeper_server.command("dump"), "20 s are not over"


# ---- the server restarts ------------------------------------------------------------------------


def test_a_server_that_restarts_with_its_data_costs_no_hold(
    agent: Make, new_zookeepers: Callable[..., Any], name: str
) -> None:
    (server,) = new_zookeepers(1).nodes
    # The start takes a second or two of the session.
    mine, other = agent(server.url, session=10), agent(server.url, session=10)
    losses: list[int] = []
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda h: losses.append(1)).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=40))
    waiting(other)
    server.restart(keep_data=True)
    renewed = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewed)
    assert hold.is_held and not losses and not waits.done()
    assert nodes(server, name)[0].czxid == hold.fence
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    server.kill()  # without closing its connections
    server.start()
    renewed = other.client.statistics().renewals
    until(lambda: other.client.statistics().renewals > renewed)
    assert later.is_held
    other.do(lambda client: later.release())


def test_a_hold_on_a_server_that_restarts_empty_is_reported_lost(
    agent: Make, new_zookeepers: Callable[..., Any], name: str
) -> None:
    (server,) = new_zookeepers(1).nodes
    mine = agent(server.url, session=4)
    losses: list[int] = []
    hold = mine.do(
        lambda client: client.lock(name, on_lost=lambda h: losses.append(h.fence)).acquire()
    )
    server.restart(keep_data=False)
    until(lambda: losses)
    assert not hold.is_held and losses == [hold.fence]
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert not nodes(server, name), "the client created the node again"

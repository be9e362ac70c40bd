"""While ZooKeeper cannot be reached: calls return in time, the keeper rests, a fork works, and
what could not be withdrawn is withdrawn later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zookeeper_nodes import nodes, with_session

import lockfast
from both_apis import PATIENCE, Agent, took, until
from lab.fault_proxy import FaultProxy
from lockfast import AcquireTimeout, BackendError
from lockfast.core import keeper

Make = Callable[..., Agent]
SOURCE = Path(lockfast.__file__).parent.parent


@pytest.mark.parametrize("fault", ["refuse", "freeze", "black_hole"])
@pytest.mark.parametrize("timeout", [0, 0.5])
def test_the_first_call_returns_in_time(
    agent: Make, network: FaultProxy, proxied_url: str, name: str, fault: str, timeout: float
) -> None:
    mine = agent(proxied_url, session=10, lease=30)
    getattr(network, fault)()
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    assert time_of.unstalled < timeout + 0.1


def test_a_client_whose_first_call_came_too_early_is_served_later(
    agent: Make, network: FaultProxy, proxied_url: str, name: str
) -> None:
    mine = agent(proxied_url, session=10, lease=30)
    network.refuse()
    waits = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    time.sleep(0.5)
    network.accept()
    hold = waits.result(PATIENCE)
    mine.do(lambda client: hold.release())


RESTS = """
import sys, time, lockfast
client = lockfast.connect(sys.argv[1])
hold = client.lock(sys.argv[2]).acquire()
with client.lock(sys.argv[2] + "-other"):
    pass
print("held", flush=True)
sys.stdin.readline()
time.sleep(2.5)  # the parent of the other name is due to be deleted
began = time.process_time()
time.sleep(3.0)
print((time.process_time() - began) / 3.0, flush=True)
"""


@pytest.mark.parametrize("fault", ["refuse", "black_hole"])
def test_the_keeper_rests_while_the_servers_are_away(
    network: FaultProxy, proxied_url: str, name: str, fault: str
) -> None:
    child = program(RESTS, with_session(proxied_url, 4), name)
    try:
        assert child.stdout.readline() == "held\n"
        getattr(network, fault)()
        network.reset()
        share = float(answer(child))
        assert share < 0.02, f"{share:.0%} of a core"
    finally:
        child.kill()
        child.communicate()


FORKS = """
import os, sys, lockfast
client = lockfast.connect(sys.argv[1])
hold = client.lock(sys.argv[2]).acquire()
print("held", flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    with client.lock(sys.argv[2] + "-child", timeout=10) as mine:
        print("child", mine.is_held, hold.is_held, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_child_forked_while_the_connection_is_lost_acquires(
    network: FaultProxy, proxied_url: str, name: str
) -> None:
    session = 1.0
    child = program(FORKS, with_session(proxied_url, session), name)
    try:
        assert child.stdout.readline() == "held\n"
        network.refuse()
        network.reset()
        time.sleep(0.3)
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(2 * session)  # nothing of the parent's session may be valid any more
        network.accept()
        assert child.stdout.readline() == "child True False\n"
    finally:
        child.kill()
        child.communicate()


def test_a_waiter_is_withdrawn_although_the_session_is_longer_than_asked(
    agents: Any, new_zookeepers: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks for half a second, and the server grants fifteen."""
    monkeypatch.setattr(keeper, "LEAVE_FOR", 0.5)
    (server,) = new_zookeepers(1, minSessionTimeout=15000).nodes
    with FaultProxy(("127.0.0.1", server.port)) as network:
        holder = agents("blocking", server.url, session=10)
        waiter = agents("blocking", f"zookeeper://127.0.0.1:{network.port}", session=0.5, lease=20)
        hold = holder.client.lock(name).acquire()
        waits = waiter.later(lambda client: client.lock(name).acquire(timeout=1.0))
        until(lambda: len(nodes(server, name)) == 2)
        network.black_hole()
        with pytest.raises((AcquireTimeout, BackendError)):
            waits.result(PATIENCE)
        time.sleep(2.0)  # more than the asked session, less than the granted one
        network.heal()
        until(lambda: len(nodes(server, name)) == 1)
        hold.release()


def program(code: str, *arguments: str) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(child: Any) -> str:
    child.stdin.write("\n")
    child.stdin.flush()
    return str(child.stdout.readline())

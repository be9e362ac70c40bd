"""An ensemble of three whose leader is killed, or the server that a client is connected to: holds
and queue positions survive, no two clients hold at once, and fences grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from zookeeper_nodes import SESSION, TICK, Networks, nodes

from both_apis import PATIENCE, Agent, until
from lockfast import AcquireTimeout, BackendError, HoldLost

Make = Callable[..., Agent]
LONG = 40.0  # seconds for an election on a busy machine, with a margin
CALM = 8.0  # a session that outlives an election


def waiting(agent: Agent, number: int = 1) -> None:
    until(lambda: agent.client.statistics().waiting == number)


def renewed(agent: Agent) -> None:
    """Wait until the client has renewed its holds once more."""
    before = agent.client.statistics().renewals
    until(lambda: agent.client.statistics().renewals > before, LONG)


def test_a_killed_leader_costs_no_hold_and_no_queue_position(
    agent: Make, three: Any, name: str
) -> None:
    mine, other, third = (agent(three.url, session=CALM) for _ in range(3))
    losses: list[int] = []
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda h: losses.append(1)).acquire())
    waits = []
    for number, one in enumerate((other, third), 2):
        waits.append(one.later(lambda client: client.lock(name).acquire(timeout=LONG)))
        until(lambda number=number: len(nodes(three, name)) == number)
    before = nodes(three, name)
    three.leader().kill()
    three.settle()
    renewed(mine)
    assert hold.is_held and not losses and not any(wait.done() for wait in waits)
    assert nodes(three, name) == before
    mine.do(lambda client: hold.release())
    later = waits[0].result(LONG)
    assert later.fence > hold.fence and not waits[1].done()
    other.do(lambda client: later.release())
    assert waits[1].result(LONG).fence > later.fence


def test_a_caller_without_a_leader_is_served_within_its_timeout(
    agent: Make, three: Any, name: str
) -> None:
    mine = agent(three.url, session=CALM)
    first = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: first.release())
    three.leader().kill()
    hold = None
    until_then = time.monotonic() + LONG
    while hold is None and time.monotonic() < until_then:
        try:
            hold = mine.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        except BackendError as error:  # the outcome is unknown, and the call may be retried
            assert error.transient
    assert hold is not None and hold.fence > first.fence
    (node,) = nodes(three, name)
    assert node.czxid == hold.fence
    mine.do(lambda client: hold.release())


def test_a_release_while_there_is_no_leader_is_done_in_the_end_and_serves_the_next(
    agent: Make, three: Any, name: str
) -> None:
    mine, other = agent(three.url, session=CALM), agent(three.url, session=CALM)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=LONG))
    waiting(other)
    three.leader().kill()
    until_then = time.monotonic() + LONG
    while time.monotonic() < until_then:
        try:
            mine.do(lambda client: hold.release())
            break
        except HoldLost:
            break  # reported as lost, not as released
        except BackendError:
            continue  # unknown, and can be retried
    assert not hold.is_held
    assert waits.result(LONG).fence > hold.fence


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_client_that_loses_its_server_goes_to_another_and_keeps_its_holds(
    agent: Make, three: Any, name: str, how: str
) -> None:
    mine, other = agent(three.url, session=CALM), agent(three.url, session=CALM)
    hold = mine.do(lambda client: client.lock(name).acquire())
    (node,) = nodes(three, name)
    own_server = next(
        server for server in three.nodes if hex(node.session) in server.command("cons")
    )
    getattr(own_server, how)()
    renewed(mine)
    assert hold.is_held
    if how == "pause":
        own_server.resume()
        three.settle()
    waits = other.later(lambda client: client.lock(name).acquire(timeout=LONG))
    time.sleep(0.5)
    assert not waits.done() and hold.is_held
    mine.do(lambda client: hold.release())
    assert waits.result(LONG).fence > hold.fence


def when_reached(agent: Any, call: Any) -> Any:
    """The result of the call, once the client is connected to a server that has just started."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return agent.do(call)
        except BackendError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def test_without_a_majority_a_hold_ends_on_time_and_no_client_gets_it(
    agent: Make, three: Any, name: str
) -> None:
    # The lease is longer than the session, so the session ends first.
    mine, other = agent(three.url, lease=30), agent(three.url)
    losses: list[float] = []
    hold = mine.do(
        lambda client: client.lock(
            name, on_lost=lambda h: losses.append(time.monotonic())
        ).acquire()
    )
    for node in three.followers():
        node.kill()
    began = time.monotonic()
    until(lambda: not hold.is_held, SESSION + 2 * TICK)
    with pytest.raises((BackendError, AcquireTimeout)):
        other.do(lambda client: client.lock(name).acquire(timeout=0.3))
    until(lambda: losses)
    assert losses[0] - began < SESSION + 4 * TICK
    for node in three.nodes:
        if not node.is_running:
            node.start()
    three.settle()
    later = when_reached(other, lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert later.fence > hold.fence and not hold.is_held and len(losses) == 1
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert later.is_held
    other.do(lambda client: later.release())


def test_a_hold_cut_off_from_all_three_servers_ends_before_another_client_gets_the_lock(
    agent: Make, three: Any, networks: Networks, name: str
) -> None:
    mine, other = agent(networks.url, lease=30), agent(three.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=LONG))
    waiting(other)
    last = [0.0]

    def list_nodes() -> None:
        while hold.is_held:
            last[0] = time.monotonic()
            time.sleep(0.001)

    looks = threading.Thread(target=list_nodes, daemon=True)
    looks.start()
    networks.all("freeze")
    later = waits.result(LONG)
    got = time.monotonic()
    looks.join(PATIENCE)
    assert last[0] < got and not hold.is_held and later.fence > hold.fence
    networks.all("thaw")
    time.sleep(0.5)
    assert later.is_held and nodes(three, name)[0].czxid == later.fence


def test_holds_never_overlap_and_fences_grow_while_leaders_are_killed(
    agents: Make, three: Any, name: str
) -> None:
    """Four clients contend; the shared lists record which of them are inside."""
    inside: list[int] = []
    seen: list[int] = []
    wrong: list[str] = []
    over = threading.Event()

    def contend(client: Any) -> None:
        while not over.is_set():
            try:
                hold = client.lock(name).acquire(timeout=1)
            except (AcquireTimeout, BackendError):
                continue
            inside.append(hold.fence)
            if len(inside) > 1:
                wrong.append(f"two inside: {inside}")
            if seen and hold.fence <= max(seen):
                wrong.append(f"fence {hold.fence} after {max(seen)}")
            seen.append(hold.fence)
            time.sleep(0.002)
            inside.remove(hold.fence)
            try:
                hold.release()
            except (HoldLost, BackendError):
                pass  # reported, and no more is promised here

    contenders = [agents("blocking", three.url, session=CALM) for _ in range(4)]
    futures = [one.later(contend) for one in contenders]
    for _ in range(2):
        count = len(seen)
        leader = three.leader()
        leader.kill()
        until(lambda count=count: len(seen) > count + 10, LONG)
        leader.start()
        three.settle()
    over.set()
    for future in futures:
        future.result(LONG)
    assert not wrong

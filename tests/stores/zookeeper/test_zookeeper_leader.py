"""Three that vote, and the one who leads is killed, or the one that a client is connected to: holds
and places survive it, nobody overlaps, fences grow."""

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
LONG = 40.0  # for a vote on a busy machine, and then some
CALM = 8.0  # a session that outlives a vote


def waiting(agent: Agent, number: int = 1) -> None:
    until(lambda: agent.client.statistics().waiting == number)


def renewed(agent: Agent) -> None:
    """It has been heard of since."""
    before = agent.client.statistics().renewals
    until(lambda: agent.client.statistics().renewals > before, LONG)


def test_a_killed_leader_costs_no_hold_and_no_place(agent: Make, three: Any, name: str) -> None:
    mine, other, third = (agent(three.url, session=CALM) for _ in range(3))
    told: list[int] = []
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda h: told.append(1)).acquire())
    waits = []
    for number, one in enumerate((other, third), 2):
        waits.append(one.later(lambda client: client.lock(name).acquire(timeout=LONG)))
        until(lambda number=number: len(nodes(three, name)) == number)
    before = nodes(three, name)
    three.leader().kill()
    three.settle()
    renewed(mine)
    assert hold.is_held and not told and not any(wait.done() for wait in waits)
    assert nodes(three, name) == before
    mine.do(lambda client: hold.release())
    later = waits[0].result(LONG)
    assert later.fence > hold.fence and not waits[1].done()
    other.do(lambda client: later.release())
    assert waits[1].result(LONG).fence > later.fence


def test_who_asks_while_there_is_no_leader_is_served_within_its_time(
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
        except BackendError as error:  # said to be unknown, and may be tried again
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
            break  # it was told so, and not that it was released
        except BackendError:
            continue  # unknown, and can be retried
    assert not hold.is_held
    assert waits.result(LONG).fence > hold.fence


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_who_loses_its_own_server_goes_to_another_and_keeps_what_it_holds(
    agent: Make, three: Any, name: str, how: str
) -> None:
    mine, other = agent(three.url, session=CALM), agent(three.url, session=CALM)
    hold = mine.do(lambda client: client.lock(name).acquire())
    (node,) = nodes(three, name)
    wake_address = next(server for server in three.nodes if hex(node.session) in server.say("cons"))
    getattr(wake_address, how)()
    renewed(mine)
    assert hold.is_held
    if how == "pause":
        wake_address.resume()
        three.settle()
    waits = other.later(lambda client: client.lock(name).acquire(timeout=LONG))
    time.sleep(0.5)
    assert not waits.done() and hold.is_held
    mine.do(lambda client: hold.release())
    assert waits.result(LONG).fence > hold.fence


def when_reached(agent: Any, call: Any) -> Any:
    """What it answers, as soon as it has found its way back to a server that has just started."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return agent.do(call)
        except BackendError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def test_without_a_majority_belief_ends_on_time_and_nobody_gets_it(
    agent: Make, three: Any, name: str
) -> None:
    # Its lease is longer: what ends is the session.
    mine, other = agent(three.url, lease=30), agent(three.url)
    told: list[float] = []
    hold = mine.do(
        lambda client: client.lock(name, on_lost=lambda h: told.append(time.monotonic())).acquire()
    )
    for node in three.followers():
        node.kill()
    began = time.monotonic()
    until(lambda: not hold.is_held, SESSION + 2 * TICK)
    with pytest.raises((BackendError, AcquireTimeout)):
        other.do(lambda client: client.lock(name).acquire(timeout=0.3))
    until(lambda: told)
    assert told[0] - began < SESSION + 4 * TICK
    for node in three.nodes:
        if not node.is_running:
            node.start()
    three.settle()
    later = when_reached(other, lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert later.fence > hold.fence and not hold.is_held and len(told) == 1
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert later.is_held
    other.do(lambda client: later.release())


def test_who_is_cut_off_from_all_three_believes_no_more_before_another_gets_it(
    agent: Make, three: Any, networks: Networks, name: str
) -> None:
    mine, other = agent(networks.url, lease=30), agent(three.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=LONG))
    waiting(other)
    last = [0.0]

    def look() -> None:
        while hold.is_held:
            last[0] = time.monotonic()
            time.sleep(0.001)

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    networks.all("freeze")
    later = waits.result(LONG)
    got = time.monotonic()
    looks.join(PATIENCE)
    assert last[0] < got and not hold.is_held and later.fence > hold.fence
    networks.all("thaw")
    time.sleep(0.5)
    assert later.is_held and nodes(three, name)[0].czxid == later.fence


def test_while_leaders_are_killed_one_after_another_nobody_overlaps_and_fences_grow(
    agents: Make, three: Any, name: str
) -> None:
    """Four who come and go; the resource between them notes who is inside."""
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
                pass  # told, and that is all that is promised here

    crowd = [agents("blocking", three.url, session=CALM) for _ in range(4)]
    futures = [one.later(contend) for one in crowd]
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

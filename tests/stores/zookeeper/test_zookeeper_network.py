"""A faulty network in front of the server: a client that is cut off stops holding before another
client can acquire, and a repeated request creates one node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from zookeeper_nodes import SESSION, TICK, lose_next, nodes

from both_apis import PATIENCE, Agent, took, until
from lockfast import AcquireTimeout, BackendError, HoldLost

Make = Callable[..., Agent]


class ValidityProbe:
    """A thread that polls a hold, and records when it was last held."""

    def __init__(self, hold: Any) -> None:
        self.hold = hold
        self.last = 0.0  # when it was last held; the clock is read before `is_held`
        self.over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        until_then = time.monotonic() + PATIENCE
        while (now := time.monotonic()) < until_then:
            if not self.hold.is_held:
                break
            self.last = now
            time.sleep(0.001)
        self.over.set()


def acquired(client: Any, name: str, timeout: float = PATIENCE) -> Any:
    """In either API: the hold, and when it was acquired; the clock is read afterwards."""
    answer = client.lock(name).acquire(timeout=timeout)
    if not hasattr(answer, "__await__"):
        return answer, time.monotonic()

    async def wait() -> Any:
        return await answer, time.monotonic()

    return wait()


def waiting(agent: Agent, number: int = 1) -> None:
    until(lambda: agent.client.statistics().waiting == number)


# ---- shorter than the session -------------------------------------------------------------------


# The APIs differ in how they wait for an answer, not in their session: one of them for each fault.
@pytest.mark.parametrize(
    "fault, api",
    [("freeze", "blocking"), ("reset", "asyncio"), ("refuse", "blocking"), ("hole", "asyncio")],
)
def test_a_fault_shorter_than_the_session_costs_no_hold_and_no_queue_position(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str, fault: str
) -> None:
    """SUSPENDED, then connected again: an unknown state is not a loss."""
    mine, other = agent(proxied_url), agent(proxied_url)
    losses: list[int] = []
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda h: losses.append(1)).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    waiting(other)
    before = until(lambda: len(found := nodes(zookeeper_server, name)) == 2 and found)
    if fault == "reset":
        assert network.reset() >= 2
    else:
        begin, end = {
            "freeze": (network.freeze, network.thaw),
            "refuse": (lambda: (network.refuse(), network.reset()), network.accept),
            "hole": (network.black_hole, network.heal),
        }[fault]
        begin()
        time.sleep(0.4)
        end()
    time.sleep(SESSION)  # without a renewal it would be over
    assert hold.is_held and not losses and not waits.done()
    assert nodes(zookeeper_server, name) == before, "the same nodes, of the same sessions"
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence and later.is_held
    other.do(lambda client: later.release())
    assert not nodes(zookeeper_server, name)


def test_while_the_connection_is_lost_a_hold_is_held_and_not_certain(
    agent: Make, network: Any, proxied_url: str, name: str
) -> None:
    """SUSPENDED is reported at once, not when the next renewal fails (after 2.5 s here)."""
    mine = agent(proxied_url, session=10, lease=30)
    hold = mine.do(lambda client: client.lock(name).acquire())
    assert hold.is_held and hold.is_certain
    network.refuse()
    network.reset()
    until(lambda: not hold.is_certain, 2.0)
    assert hold.is_held and 0 < hold.remaining() < 10 and "unconfirmed" in repr(hold)
    network.accept()
    until(lambda: hold.is_certain)
    assert hold.is_held and mine.client.statistics().lost == 0
    mine.do(lambda client: hold.release())


# ---- longer than the session --------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, api",
    [
        ("freeze", "asyncio"),
        ("up", "blocking"),
        ("down", "asyncio"),
        ("both", "blocking"),
        ("refuse", "asyncio"),
    ],
)
def test_a_hold_that_is_cut_off_ends_before_another_client_gets_the_lock(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str, fault: str
) -> None:
    # The lease is longer than the session, so the session ends first.
    mine, other = agent(proxied_url, lease=30), agent(zookeeper_server.url)
    losses: list[float] = []
    hold = mine.do(
        lambda client: client.lock(
            name, on_lost=lambda h: losses.append(time.monotonic())
        ).acquire()
    )
    waits = other.later(lambda client: acquired(client, name))
    waiting(other)
    time.sleep(0.3 * SESSION)  # at some moment of its session
    probe = ValidityProbe(hold)
    began = time.monotonic()
    {
        "freeze": network.freeze,
        "refuse": lambda: (network.refuse(), network.reset()),
    }.get(fault, lambda: network.black_hole(fault))()
    later, got = waits.result(PATIENCE)
    assert probe.last < got, "two clients held at once"
    assert not hold.is_held and later.fence > hold.fence
    # P4, from the fault on: the session may have been renewed just then. If only the answers are
    # lost, the client keeps its session alive until it notices the silence, after a third of it.
    longest = (1.25 if fault != "down" else 4 / 3) * SESSION
    assert got - began < longest + 2 * TICK
    until(lambda: losses)
    assert losses[0] - probe.last < 1.0, "reported late: the client waited for an answer"
    {"freeze": network.thaw, "refuse": network.accept}.get(fault, network.heal)()
    time.sleep(0.5)  # the withheld requests arrive
    assert hold.lost and len(losses) == 1, "not reported exactly once"
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    (node,) = nodes(zookeeper_server, name)
    assert node.czxid == later.fence and later.is_held, "the client touched another's node"
    other.do(lambda client: later.release())
    again = mine.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert again.fence > later.fence
    mine.do(lambda client: again.release())


def test_validity_counts_from_before_the_last_renewal_was_sent(
    agent: Make, network: Any, proxied_url: str, name: str
) -> None:
    """Late answers do not extend a hold."""
    session = 2 * SESSION  # a busy machine may miss the renewals of a shorter one
    mine = agent(proxied_url, session=session)
    hold = mine.do(lambda client: client.lock(name).acquire())
    longest = _longest(hold)
    assert longest <= session
    network.latency = 0.1  # each way
    time.sleep(session)
    assert _longest(hold) <= longest - 0.2 + 0.02
    assert hold.is_held
    network.latency = 0.0
    mine.do(lambda client: hold.release())


def _longest(hold: Any) -> float:
    """The longest remaining validity over a time with a few renewals."""
    seen = []
    for _ in range(400):
        seen.append(hold.remaining())
        time.sleep(0.004)
    return float(max(seen))


# ---- bounded times ------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.5])
@pytest.mark.parametrize("hole", ["both", "down"])
def test_an_acquire_into_a_black_hole_is_over_soon_and_leaves_nothing(
    agent: Make,
    network: Any,
    proxied_url: str,
    zookeeper_server: Any,
    name: str,
    hole: Any,
    timeout: float,
) -> None:
    mine, other = agent(proxied_url), agent(zookeeper_server.url)
    mine.do(lambda client: client.inspect(name))
    network.black_hole(hole)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    assert time_of.unstalled < timeout + SESSION
    network.heal()
    hold = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    other.do(lambda client: hold.release())
    until(lambda: not nodes(zookeeper_server, name))


def test_a_wait_that_falls_into_a_black_hole_is_over_on_time(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str
) -> None:
    mine, other = agent(zookeeper_server.url), agent(proxied_url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    began = time.monotonic()
    waits = other.later(lambda client: client.lock(name).acquire(timeout=0.8))
    waiting(other)
    network.black_hole()
    with pytest.raises((AcquireTimeout, BackendError)):
        waits.result(PATIENCE)
    assert 0.8 <= time.monotonic() - began < 0.8 + SESSION
    assert hold.is_held
    network.heal()
    until(lambda: len(nodes(zookeeper_server, name)) == 1)  # its node does not stay
    mine.do(lambda client: hold.release())


def test_a_release_that_nobody_answers_is_unknown_and_can_be_retried(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str
) -> None:
    mine = agent(proxied_url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    network.refuse()
    network.reset()
    with pytest.raises(BackendError, match="unknown"):
        mine.do(lambda client: hold.release())
    assert nodes(zookeeper_server, name)
    network.accept()
    mine.do(lambda client: hold.release())
    assert not nodes(zookeeper_server, name)


# ---- lost replies -------------------------------------------------------------------------------


def warm(agent: Agent, name: str) -> None:
    """Connect, and create the parent: the next request creates a node below it."""
    hold = agent.do(lambda client: client.lock(name).acquire())
    agent.do(lambda client: hold.release())


def test_a_lost_reply_of_a_create_ends_in_holding_that_very_node(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str
) -> None:
    mine = agent(proxied_url)
    warm(mine, name)
    lose_next(network, name)
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert network.lost_replies == 1, "the reply was not lost: the test tests nothing"
    (node,) = nodes(zookeeper_server, name)
    assert node.czxid == hold.fence
    mine.do(lambda client: hold.release())
    assert not nodes(zookeeper_server, name), "an orphan"


def test_a_create_whose_answer_never_comes_is_unknown_and_is_withdrawn(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str
) -> None:
    """The connection stays open and silent for longer than the caller has time; the session stays
    alive, and so does the node until the client deletes it."""
    mine, other = agent(proxied_url, session=20, lease=3), agent(zookeeper_server.url)
    warm(mine, name)
    lose_next(network, name, then="silence")
    with pytest.raises(BackendError) as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=1.0))
    assert caught.value.transient and network.lost_replies == 1
    network.heal()
    later = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert [node.czxid for node in nodes(zookeeper_server, name)] == [later.fence]
    other.do(lambda client: later.release())


def test_a_lost_reply_of_a_waiters_create_leaves_one_node_in_the_queue(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str
) -> None:
    mine, other = agent(zookeeper_server.url), agent(proxied_url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    assert other.do(lambda client: client.lock(name).try_acquire()) is None
    lose_next(network, name)
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: network.lost_replies == 1)
    waiting(other)
    first, waiter = until(lambda: len(found := nodes(zookeeper_server, name)) == 2 and found)
    assert first.czxid == hold.fence
    mine.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    (node,) = nodes(zookeeper_server, name)
    assert node == waiter and node.czxid == later.fence
    other.do(lambda client: later.release())
    assert not nodes(zookeeper_server, name), "an orphan"


@pytest.mark.parametrize("timeout", [0, 0.5])
def test_an_acquire_that_fails_without_a_reply_leaves_no_orphan(
    agent: Make, network: Any, proxied_url: str, zookeeper_server: Any, name: str, timeout: float
) -> None:
    mine, other = agent(proxied_url), agent(zookeeper_server.url)
    warm(mine, name)
    lose_next(network, name, 1000)
    try:
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=timeout))
    except (BackendError, AcquireTimeout):
        hold = None
    assert network.lost_replies >= 1
    network.lose_replies(0)
    if hold is not None:  # it found its node all the same
        mine.do(lambda client: hold.release())
    later = other.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    (node,) = until(lambda: len(found := nodes(zookeeper_server, name)) == 1 and found)
    assert node.czxid == later.fence
    other.do(lambda client: later.release())


@pytest.mark.parametrize("then", ["reset", "silence"])
@pytest.mark.parametrize("waiters", [0, 1])
def test_a_lost_reply_of_a_release_is_no_loss(
    agent: Make,
    network: Any,
    proxied_url: str,
    zookeeper_server: Any,
    name: str,
    then: Any,
    waiters: int,
) -> None:
    mine, other = agent(proxied_url), agent(zookeeper_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = [other.later(lambda client: acquired(client, name)) for _ in range(waiters)]
    waiting(other, waiters)
    lose_next(network, name, then=then)
    try:
        mine.do(lambda client: hold.release())
    except BackendError as error:
        assert then == "silence" and "unknown" in str(error)  # no answer came in time
        network.heal()
        until(lambda: released(mine, hold))
    assert network.lost_replies == 1
    assert not hold.lost and not hold.is_held and mine.client.statistics().lost == 0
    for wait in waits:
        later, _ = wait.result(PATIENCE)
        assert later.fence > hold.fence and later.is_held
        other.do(lambda client: later.release())  # noqa: B023
    until(lambda: not nodes(zookeeper_server, name))


def released(agent: Agent, hold: Any) -> bool:
    try:
        agent.do(lambda client: hold.release())
    except BackendError:
        return False
    return True

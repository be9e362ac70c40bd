"""A quorum of real servers survives nodes that are down, hang, or restart empty, and leaves nothing
behind at any of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockfast
from both_apis import took
from lockfast import QuorumError, aio
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redlock.nodes import MARK

NewRedlock = Callable[..., Any]
PATIENCE = 10.0
SLACK = 0.1 + 0.25  # the promised bound, and the delay of a busy machine


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")


@pytest.fixture
def nodes(new_redlock: NewRedlock) -> Iterator[Any]:
    return new_redlock(3)


def rows(node: Any, name: str) -> list[bytes]:
    """Return the ids of the name's holders and waiters at a node."""
    key = key_of(f"default:{name}")
    with node.client() as client:
        found = [*client.hgetall(key), *client.hgetall(f"{key}:w")]
    return [claim for claim in found if not claim.startswith(b".")]


def fences(node: Any, name: str) -> list[int]:
    """Return the fences of the name's holds at a node."""
    with node.client() as client:
        held = client.hgetall(key_of(f"default:{name}"))
    return [int(text.split()[0]) for key, text in held.items() if not key.startswith(b".")]


def until(what: Callable[[], Any]) -> Any:
    ends = time.monotonic() + PATIENCE
    while not (value := what()):
        assert time.monotonic() < ends, "the condition never became true"
        time.sleep(0.01)
    return value


def test_a_hold_has_one_fence_at_a_majority_and_is_released_at_every_node(nodes):
    with lockfast.connect(nodes.url) as client:
        with client.lock("a") as hold:
            until(lambda: all(len(rows(node, "a")) == 1 for node in nodes.nodes))
            assert sum(hold.fence in fences(node, "a") for node in nodes.nodes) >= 2
        until(lambda: not any(rows(node, "a") for node in nodes.nodes))


def test_with_one_of_three_nodes_down_locks_are_granted_and_nothing_is_left_behind(nodes):
    """redlock-py raises in this case, and leaves its keys behind."""
    with lockfast.connect(nodes.url) as client:
        with client.lock("a"):
            pass
        nodes[1].kill()
        fences = []
        for _ in range(20):
            with client.lock("a", timeout=5) as hold:
                fences.append(hold.fence)
        assert fences == sorted(set(fences))
        assert not rows(nodes[0], "a") and not rows(nodes[2], "a")


def test_a_release_reaches_a_node_that_hung_when_it_is_back(nodes):
    """pottery returns when a majority has answered, and forgets the others."""
    with lockfast.connect(nodes.url) as client:
        hold = client.lock("a").acquire()
        until(lambda: rows(nodes[2], "a"))
        nodes[2].pause()
        hold.release()
        time.sleep(0.7)  # the node hangs, so its connection is closed
        with client.lock("b"):
            pass
        nodes[2].resume()

        def was_withdrawn() -> bool:
            with client.lock("b"):
                return not rows(nodes[2], "a")

        until(was_withdrawn)


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
def test_a_node_that_hangs_does_not_slow_down_a_majority(nodes, api):
    took: list[float] = []

    def blocking() -> None:
        with lockfast.connect(nodes.url) as client:
            with client.lock("a"):
                pass
            nodes[0].pause()
            for _ in range(40):
                began = time.perf_counter()
                with client.lock("a", timeout=5):
                    pass
                took.append(time.perf_counter() - began)
                time.sleep(0.02)

    async def tasks() -> None:
        client = aio.connect(nodes.url)
        async with client.lock("a"):
            pass
        nodes[0].pause()
        for _ in range(40):
            began = time.perf_counter()
            async with client.lock("a", timeout=5):
                pass
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        await client.close()

    try:
        blocking() if api == "blocking" else asyncio.run(tasks())
    finally:
        nodes[0].resume()
    assert sorted(took)[len(took) // 2] < 0.1 and max(took) < 0.5, took


def test_without_a_majority_an_error_names_the_nodes_and_why(nodes):
    with lockfast.connect(nodes.url, lease=1) as client:
        with client.lock("a"):
            pass
        for number in (0, 1):
            nodes[number].kill()
        with pytest.raises(QuorumError) as caught:
            client.lock("a", timeout=0).acquire()
        message = str(caught.value)
        assert "1 of 3 nodes answered, and 2 are needed" in message
        assert str(nodes[0].port) in message and str(nodes[1].port) in message
        assert caught.value.transient
        until(lambda: not rows(nodes[2], "a"))


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_time_out_ends_a_first_call_whose_connections_get_no_answer(api, timeout):
    def blocking(url: str) -> None:
        with lockfast.connect(url) as client, pytest.raises(QuorumError, match="0 of 3 nodes"):
            client.lock("a", timeout=timeout).acquire()

    async def tasks(url: str) -> None:
        async with aio.connect(url) as client:
            with pytest.raises(QuorumError, match="0 of 3 nodes"):
                await client.lock("a", timeout=timeout).acquire()

    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        url = "redlock://" + ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
        with took() as time_of:
            blocking(url) if api == "blocking" else asyncio.run(tasks(url))
    assert time_of.unstalled < timeout + SLACK


def test_a_node_that_restarted_empty_does_not_vote_until_the_longest_lease_has_passed(nodes):
    url = f"{nodes.url}?longest_lease=1.5"
    with lockfast.connect(url, lease=1.5) as client, lockfast.connect(url, lease=1.5) as other:
        hold = client.lock("a").acquire()
        until(lambda: rows(nodes[2], "a"))
        nodes[2].call("DEL", key_of("default:a"))  # it votes without knowing of the hold
        nodes[1].restart(keep_data=False)
        # Two of three nodes know of no hold now. They must not form a majority.
        for _ in range(5):
            assert other.lock("a").try_acquire() is None
            time.sleep(0.02)
        with nodes[1].client() as plain:
            assert int(plain.get(MARK).split()[0]) > 0, "its mark says when it votes again"
        with other.lock("a", timeout=PATIENCE) as theirs:
            assert theirs.fence > hold.fence
        with pytest.raises(lockfast.HoldLost):
            hold.release()


def mark_of(node: Any) -> bytes | None:
    with node.client() as client:
        return client.get(MARK)


def test_nodes_that_restart_empty_one_after_the_other_do_not_look_new(nodes):
    """A renewal that a majority answered also has the others marked, as a vote does."""
    url = f"{nodes.url}?longest_lease=3"
    with lockfast.connect(url, lease=1.5) as client, lockfast.connect(url, lease=1.5) as other:
        hold = client.lock("a").acquire()
        nodes[0].restart(keep_data=False)
        until(lambda: mark_of(nodes[0]))  # nobody votes: the keeper's renewals must write it
        for number in (1, 2):
            nodes[number].restart(keep_data=False)
        assert hold.is_held
        while hold.is_held:
            with contextlib.suppress(QuorumError):
                assert other.lock("a").try_acquire() is None or not hold.is_held
        with other.lock("a", timeout=PATIENCE) as theirs:
            assert theirs.fence > hold.fence


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
def test_a_distant_node_that_restarted_empty_is_marked_although_its_votes_come_late(nodes, api):
    from lab.fault_proxy import FaultProxy

    def blocking(url: str) -> None:
        with lockfast.connect(url) as client:
            with client.lock("a"):
                nodes[2].restart(keep_data=False)

            def is_marked() -> bytes | None:
                with client.lock("b"):
                    return mark_of(nodes[2])

            until(is_marked)

    async def tasks(url: str) -> None:
        async with aio.connect(url) as client:
            async with client.lock("a"):
                nodes[2].restart(keep_data=False)
            async with asyncio.timeout(PATIENCE):
                while not mark_of(nodes[2]):
                    async with client.lock("b"):
                        await asyncio.sleep(0.01)

    with FaultProxy(("127.0.0.1", nodes[2].port)) as proxy:
        ports = [nodes[0].port, nodes[1].port, proxy.port]
        url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with lockfast.connect(url) as client, client.lock("a"):
            pass
        proxy.latency = 0.02
        blocking(url) if api == "blocking" else asyncio.run(tasks(url))


def test_one_of_several_clients_initializes_new_nodes_at_once(nodes):
    clients = [lockfast.connect(nodes.url) for _ in range(4)]
    fences = []
    for client in clients:
        with client.lock("a", timeout=5) as hold:
            fences.append(hold.fence)
        client.close()
    assert fences == sorted(set(fences))
    assert [mark.split()[0] for mark in nodes.call("GET", MARK)] == [b"0"] * 3


def test_all_clients_must_agree_on_the_longest_lease(nodes):
    with lockfast.connect(f"{nodes.url}?longest_lease=5", lease=5) as client, client.lock("a"):
        pass
    other = lockfast.connect(nodes.url, lease=30)
    with other, pytest.raises(lockfast.Unsupported, match="at most 5 s"):
        other.lock("a").acquire()


def test_scripts_are_sent_again_after_a_flush(nodes):
    with lockfast.connect(nodes.url) as client:
        for _ in range(3):
            with client.lock("a"):
                pass
            nodes.call("SCRIPT", "FLUSH")


def test_an_acquire_that_took_most_of_its_lease_fails_and_is_withdrawn(nodes):
    """Redisson's RedLock does not check how much of the lease is left."""
    from lab.fault_proxy import FaultProxy

    proxies = [FaultProxy(("127.0.0.1", node.port)) for node in nodes.nodes]
    try:
        for proxy in proxies:
            proxy.__enter__()
        url = "redlock://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        with lockfast.connect(url) as client:
            with client.lock("a"):
                pass
            for proxy in proxies:
                proxy.latency = 0.3
            with pytest.raises(QuorumError):
                client.lock("a", lease=0.4).acquire(timeout=0)
            for proxy in proxies:
                proxy.latency = 0
            until(lambda: not any(rows(node, "a") for node in nodes.nodes))
    finally:
        for proxy in proxies:
            proxy.__exit__(None, None, None)


class ChangingAddresses(list[str]):
    """Wake addresses that change between two reads, because a listener starts at every node."""

    def __init__(self, size: int) -> None:
        self.reads = 0
        super().__init__("." * size)

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return iter(["."] * len(self) if self.reads == 1 else ["listener"] * len(self))


def test_a_listener_may_start_while_a_claim_is_sent(nodes):
    """Listeners start on other threads."""
    with lockfast.connect(nodes.url) as client:
        with client.lock("a"):
            pass  # the nodes are initialized
        nodes_of_client = client._store._nodes
        nodes_of_client.wake_addresses = ChangingAddresses(nodes_of_client.size)
        with client.lock("a") as hold:
            assert hold.is_held
        assert nodes_of_client.wake_addresses.reads == 1


@pytest.fixture
def split_hold(nodes: Any) -> Iterator[tuple[str, lockfast.Hold, Any]]:
    """A hold that one node does not have, and an address of the quorum where another node connects
    late: of the two nodes that a new client reaches at first, one has the hold and one has not."""
    from lab.fault_proxy import FaultProxy

    with lockfast.connect(nodes.url) as holder:
        hold = holder.lock("a").acquire()
        # A node that voted late may have another fence.
        first, late, forgetful = sorted(
            nodes.nodes, key=lambda node: fences(node, "a") != [hold.fence]
        )
        with forgetful.client() as plain:
            plain.delete(key_of("default:a"))
        with FaultProxy(("127.0.0.1", late.port)) as proxy:
            proxy.latency = 0.06
            ports = [first.port, forgetful.port, proxy.port]
            yield "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports), hold, late


def test_a_break_as_the_first_call_waits_for_the_node_that_decides(split_hold):
    url, hold, _ = split_hold
    with lockfast.connect(url) as operator:
        assert operator.break_hold("a", hold.fence)


def test_an_async_break_as_the_first_call_waits_for_the_node_that_decides(split_hold):
    url, hold, _ = split_hold

    async def break_hold() -> bool:
        async with aio.connect(url) as operator:
            return await operator.break_hold("a", hold.fence)

    assert asyncio.run(break_hold())


def test_the_error_of_a_split_vote_says_that_the_nodes_do_not_agree(split_hold):
    url, hold, late = split_hold
    late.kill()
    disagree = "the 2 of 3 nodes that answered do not agree: "
    with lockfast.connect(url) as operator, pytest.raises(QuorumError, match=disagree):
        operator.break_hold("a", hold.fence)

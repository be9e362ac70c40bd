"""Who may use the bad network: tasks, many threads, a process that forks, and clients of Redis."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from fault_endpoints import A_WHILE, PATIENCE, is_reset, read, speaks

from lab.fault_proxy import FaultProxy


def test_it_serves_the_tasks_of_a_loop_and_controls_do_not_stop_it(network, server):
    async def scene():
        reader, writer = await asyncio.open_connection(network.host, network.port)
        peer = await asyncio.to_thread(server.accept)
        network.freeze()
        peer.sendall(b"hello")
        heard = asyncio.create_task(reader.readexactly(5))
        done, _ = await asyncio.wait({heard}, timeout=A_WHILE)
        assert not done
        network.thaw()
        assert await heard == b"hello"
        assert network.reset() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_many_threads_may_give_orders_while_bytes_flow(network, pair):
    client, peer = pair
    failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def meddle(seed):
        try:
            for _ in range(40):
                network.freeze()
                network.latency = random.Random(seed).choice([0.0, 0.001])
                network.thaw()
                assert network.connections == 1
        except Exception as error:
            failed.put(error)

    meddlers = [threading.Thread(target=meddle, args=(seed,)) for seed in range(3)]
    sent = random.Random(2).randbytes(2_000_000)
    writer = threading.Thread(target=client.sendall, args=(sent,), daemon=True)
    for thread in (*meddlers, writer):
        thread.start()
    assert read(peer, len(sent)) == sent
    for thread in (*meddlers, writer):
        thread.join(PATIENCE)
    assert failed.empty(), failed.get()


# From Python 3.12 on a fork beside threads is warned of: this child does nothing.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_keeps_no_connection_from_being_reset(network, pair):
    client, peer = pair
    child = os.fork()
    if child == 0:
        client.close()
        peer.close()
        signal.alarm(60)
        signal.pause()
        os._exit(0)
    try:
        assert speaks(client, peer)
        network.reset()
        assert is_reset(client) and is_reset(peer)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# -- A real Redis ----------------------------------------------------------------------------------


@pytest.fixture(params=["port", "unix"])
def far(request, redis_server) -> Iterator[FaultProxy]:
    """A network before the Redis of all tests, which is reached by its port or by its socket."""
    by_port = "127.0.0.1", redis_server.port
    with FaultProxy(by_port if request.param == "port" else f"{redis_server.folder}/socket") as far:
        yield far


@pytest.fixture
def name() -> str:
    return f"faults:{uuid.uuid4()}"


@pytest.fixture
def client(redis_server, far):
    """Connected and greeted through the network: the next bytes are the test's own."""
    with redis_server.client(port=far.port) as client:
        assert client.ping()
        yield client


@pytest.fixture
def hasty(redis_server, far):
    """One that does not wait long."""
    with redis_server.client(port=far.port, socket_timeout=A_WHILE) as client:
        assert client.ping()
        yield client


@pytest.fixture
def errors(redis_server):
    import redis

    return redis.exceptions


def test_redis_is_far_away(far, client):
    far.latency = 0.05
    began = time.monotonic()
    assert client.ping() and time.monotonic() - began >= 0.1


def test_redis_executes_what_was_frozen_when_it_thaws(far, hasty, redis_server, name, errors):
    far.freeze()
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) is None
    far.thaw()
    until = time.monotonic() + PATIENCE
    while redis_server.call("GET", name) != b"1":
        assert time.monotonic() < until
    assert hasty.incr(name) == 2


@pytest.mark.parametrize("way, executed", [("up", None), ("down", b"1"), ("both", None)])
def test_redis_behind_a_black_hole(far, hasty, redis_server, name, errors, way, executed):
    far.black_hole(way)
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) == executed
    far.heal()
    assert hasty.incr(name) == (2 if executed else 1)


def test_redis_is_reset_in_the_middle_of_a_request(far, client, redis_server, name, errors):
    def blocked() -> bool:
        return redis_server.call("INFO", "clients")["blocked_clients"] > 0

    def wait_and_reset() -> None:
        while not blocked() and time.monotonic() < until:
            time.sleep(0.005)
        far.reset()

    until = time.monotonic() + PATIENCE
    resetter = threading.Thread(target=wait_and_reset)
    resetter.start()
    with pytest.raises(errors.ConnectionError):
        client.blpop(name, 0)
    resetter.join(PATIENCE)
    assert client.incr(name) == 1


def test_redis_refuses_and_accepts_again(far, client, name, errors):
    far.refuse()
    assert client.incr(name) == 1
    far.reset()
    with pytest.raises(errors.ConnectionError):
        client.incr(name)
    far.accept()
    assert client.incr(name) == 2 and far.accepted == 2


def test_redis_executes_and_the_reply_is_lost(far, client, redis_server, name, errors):
    far.lose_replies(match=b"INCR")
    assert client.get(name) is None
    with pytest.raises(errors.ConnectionError):
        client.incr(name)
    assert redis_server.call("GET", name) == b"1" and far.lost_replies == 1
    assert client.incr(name) == 2


def test_redis_executes_and_stays_silent(far, hasty, redis_server, name, errors):
    far.lose_replies(then="silence")
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) == b"1" and far.lost_replies == 1
    assert hasty.incr(name) == 2

"""Users of the fault proxy: asyncio tasks, threads, a process that forks, and Redis clients."""

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
from fault_endpoints import A_WHILE, PATIENCE, exchanges, is_reset, read

from lab.fault_proxy import FaultProxy


def test_asyncio_tasks_use_the_proxy_and_controls_do_not_block_the_loop(network, server):
    async def scene():
        reader, writer = await asyncio.open_connection(network.host, network.port)
        peer = await asyncio.to_thread(server.accept)
        network.freeze()
        peer.sendall(b"hello")
        reply = asyncio.create_task(reader.readexactly(5))
        done, _ = await asyncio.wait({reply}, timeout=A_WHILE)
        assert not done
        network.thaw()
        assert await reply == b"hello"
        assert network.reset() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        with pytest.raises(ConnectionResetError):
            await writer.wait_closed()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE))


def test_threads_may_use_the_controls_while_bytes_flow(network, pair):
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


# Python 3.12 and later warn of a fork beside threads; this child does nothing.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_connections_open(network, pair):
    client, peer = pair
    child = os.fork()
    if child == 0:
        client.close()
        peer.close()
        signal.alarm(60)
        signal.pause()
        os._exit(0)
    try:
        assert exchanges(client, peer)
        network.reset()
        assert is_reset(client) and is_reset(peer)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# -- A real Redis ----------------------------------------------------------------------------------


@pytest.fixture(params=["port", "unix"])
def proxy(request, redis_server) -> Iterator[FaultProxy]:
    """A proxy in front of the shared Redis, which it reaches by port or by unix socket."""
    by_port = "127.0.0.1", redis_server.port
    with FaultProxy(
        by_port if request.param == "port" else f"{redis_server.folder}/socket"
    ) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    return f"faults:{uuid.uuid4()}"


@pytest.fixture
def client(redis_server, proxy):
    """A client that is connected through the proxy: the next bytes are the test's own."""
    with redis_server.client(port=proxy.port) as client:
        assert client.ping()
        yield client


@pytest.fixture
def hasty(redis_server, proxy):
    """A client with a short timeout."""
    with redis_server.client(port=proxy.port, socket_timeout=A_WHILE) as client:
        assert client.ping()
        yield client


@pytest.fixture
def errors(redis_server):
    import redis

    return redis.exceptions


def test_latency_applies_to_redis(proxy, client):
    proxy.latency = 0.05
    began = time.monotonic()
    assert client.ping() and time.monotonic() - began >= 0.1


def test_redis_executes_a_frozen_command_after_the_thaw(proxy, hasty, redis_server, name, errors):
    proxy.freeze()
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) is None
    proxy.thaw()
    until = time.monotonic() + PATIENCE
    while redis_server.call("GET", name) != b"1":
        assert time.monotonic() < until
    assert hasty.incr(name) == 2


@pytest.mark.parametrize("way, executed", [("up", None), ("down", b"1"), ("both", None)])
def test_a_client_behind_a_black_hole_times_out(
    proxy, hasty, redis_server, name, errors, way, executed
):
    proxy.black_hole(way)
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) == executed
    proxy.heal()
    assert hasty.incr(name) == (2 if executed else 1)


def test_a_client_is_reset_in_the_middle_of_a_request(proxy, client, redis_server, name, errors):
    def blocked() -> bool:
        return redis_server.call("INFO", "clients")["blocked_clients"] > 0

    def wait_and_reset() -> None:
        while not blocked() and time.monotonic() < until:
            time.sleep(0.005)
        proxy.reset()

    until = time.monotonic() + PATIENCE
    resetter = threading.Thread(target=wait_and_reset)
    resetter.start()
    with pytest.raises(errors.ConnectionError):
        client.blpop(name, 0)
    resetter.join(PATIENCE)
    assert client.incr(name) == 1


def test_a_client_is_refused_and_accepted_again(proxy, client, name, errors):
    proxy.refuse()
    assert client.incr(name) == 1
    proxy.reset()
    with pytest.raises(errors.ConnectionError):
        client.incr(name)
    proxy.accept()
    assert client.incr(name) == 2 and proxy.accepted == 2


def test_redis_executes_a_command_whose_reply_is_lost(proxy, client, redis_server, name, errors):
    proxy.lose_replies(match=b"INCR")
    assert client.get(name) is None
    with pytest.raises(errors.ConnectionError):
        client.incr(name)
    assert redis_server.call("GET", name) == b"1" and proxy.lost_replies == 1
    assert client.incr(name) == 2


def test_redis_executes_a_command_and_the_connection_stays_silent(
    proxy, hasty, redis_server, name, errors
):
    proxy.lose_replies(then="silence")
    with pytest.raises(errors.TimeoutError):
        hasty.incr(name)
    assert redis_server.call("GET", name) == b"1" and proxy.lost_replies == 1
    assert hasty.incr(name) == 2

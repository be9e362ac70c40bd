"""Requests that callers write themselves on the one connection of a session: partial writes,
interrupted writes, and unexpected answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.protocol.serialization import PingInstance
from zookeeper_nodes import nodes

import lockfast
from both_apis import PATIENCE, took, until
from lab.fault_proxy import FaultProxy


@pytest.fixture
def client(zookeeper_server: Any) -> Iterator[lockfast.Client]:
    with lockfast.connect(zookeeper_server.url) as client:
        client.inspect("connects")
        yield client


def connection(client: lockfast.Client) -> Any:
    return client._endpoint._session._connection  # type: ignore[attr-defined]


def test_a_request_that_the_kernel_accepts_in_parts_arrives_in_order(
    client: lockfast.Client, zookeeper_server: Any, name: str
) -> None:
    line = connection(client)
    line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rests: list[int] = []
    send_rest = line._send_rest

    def seen(timeout: float) -> None:
        rests.append(len(line._unsent))
        send_rest(timeout)

    line._send_rest = seen
    # Long names, or the server reads as fast as the client writes.
    names = [f"{name}-{number:03d}-{'x' * 150}" for number in range(400)]
    errors: list[BaseException] = []

    def others() -> None:
        try:
            for number in range(20):
                with client.lock(f"{name}-other-{number}", timeout=PATIENCE):
                    pass
        except BaseException as error:
            errors.append(error)

    contenders = [threading.Thread(target=others) for _ in range(3)]
    for thread in contenders:
        thread.start()
    with client.multi_lock(*names, timeout=PATIENCE):
        assert len(nodes(zookeeper_server, f"{name}-0")) == 100
    for thread in contenders:
        thread.join(PATIENCE)
    assert rests, "the kernel accepted everything: the test tests nothing"
    assert not errors and not nodes(zookeeper_server, name)


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_an_interrupted_write_keeps_the_session_and_leaves_no_node(
    client: lockfast.Client, zookeeper_server: Any, name: str, moment: str
) -> None:
    """On Ctrl-C it is unknown whether the server will read the request."""
    line, session = connection(client), client._endpoint._session  # type: ignore[attr-defined]
    other = client.lock(f"{name}-other").acquire()
    was = session.id
    put: Callable[[bytearray], None] = line._write_or_queue

    def interrupted(data: bytearray) -> None:
        if b"__once" not in data:
            put(data)
            return
        line._write_or_queue = put
        part = {"before": 0, "within": len(data) // 3, "after": len(data)}[moment]
        line._socket.send(data[:part])
        raise KeyboardInterrupt

    line._write_or_queue = interrupted
    wire = line._socket
    with pytest.raises(KeyboardInterrupt):
        client.lock(f"{name}__once").acquire()
    with pytest.raises(OSError):
        wire.send(b"the server would take this for a part of the request")
    until(lambda: not nodes(zookeeper_server, f"{name}__once"))
    with client.lock(f"{name}__once", timeout=PATIENCE):
        assert session.id == was and other.is_held
    other.release()


def test_an_unexpected_answer_ends_the_connection_and_not_the_session(
    client: lockfast.Client, zookeeper_server: Any, name: str
) -> None:
    hold = client.lock(f"{name}-mine").acquire()
    session = client._endpoint._session  # type: ignore[attr-defined]
    was = session.id
    # As if a request had been lost on the way: the next answer belongs to another one.
    session._connection.client._pending.append((PingInstance, None, 77))
    with client.lock(f"{name}-next", timeout=PATIENCE):
        assert len(nodes(zookeeper_server, f"{name}-next")) == 1
    assert session.id == was and hold.is_held
    hold.release()
    time.sleep(0.05)
    assert not nodes(zookeeper_server, name)


def test_a_server_that_does_not_answer_the_close_request_leaves_no_socket_open(
    zookeeper_server: Any, name: str
) -> None:
    with FaultProxy(("127.0.0.1", zookeeper_server.port)) as network:
        client = lockfast.connect(f"zookeeper://127.0.0.1:{network.port}?session_timeout=10")
        with client.lock(name):
            line = connection(client)
        sockets = [line._socket, line._read_sock, line._write_sock]
        network.freeze()
        with took() as time_of:
            client.close()
        assert time_of.unstalled < 3.0 and line._read_sock is not None, (
            "close waited or was answered"
        )
        network.thaw()
        until(lambda: all(one.fileno() == -1 for one in sockets))

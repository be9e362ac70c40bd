"""A server, a fault proxy in front of it, and clients that connect through the proxy."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from both_redises import Both
from fault_endpoints import PATIENCE, Server

from lab.fault_proxy import FaultProxy


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def network(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.listener.getsockname()) as network:
        yield network


@pytest.fixture
def connect(network: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    ends: list[socket.socket] = []

    def connect() -> socket.socket:
        end = socket.create_connection((network.host, network.port), timeout=PATIENCE)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends.append(end)
        return end

    yield connect
    for end in ends:
        end.close()


@pytest.fixture
def pair(server, connect):
    """The client's end and the server's end of one connection through the proxy."""
    return connect(), server.accept()


@pytest.fixture(scope="module")
def redis_port(redis_server: Any) -> Iterator[int]:
    """A Redis for one module, which may empty it; skipped where ``redis_server`` is."""
    from lab.servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server.port


@pytest.fixture
def both(redis_port: int) -> Iterator[Both]:
    pair = Both(redis_port)
    yield pair
    pair.real.close()

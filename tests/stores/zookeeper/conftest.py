"""Clients of both APIs on real ZooKeepers, with a bad network between them where a test wants
one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from zookeeper_nodes import SESSION, Networks, with_session

from both_apis import APIS, Agent, fixtures
from lab.fault_proxy_control import FaultProxy


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    caplog.set_level(logging.CRITICAL, "kazoo")


def _make(api: str, url: str, session: float = SESSION, **terms: Any) -> Agent:
    """With a short session."""
    return APIS[api](with_session(url, session), **{"lease": session} | terms)


agents, agent, api, name = fixtures(_make)


@pytest.fixture
def network(zookeeper_server: Any) -> Iterator[FaultProxy]:
    """A bad network before the server of all tests."""
    with FaultProxy(("127.0.0.1", zookeeper_server.port)) as network:
        yield network


@pytest.fixture
def far(network: FaultProxy) -> str:
    """The server of all tests, behind that network."""
    return f"zookeeper://127.0.0.1:{network.port}"


@pytest.fixture(scope="module")
def shared_three(zookeeper_server: Any) -> Iterator[Any]:
    """Three that vote, for one module; wherever there can be one for all."""
    from lab.servers.zookeeper_server import ZooKeepers

    with ZooKeepers(3) as group:
        yield group


@pytest.fixture
def three(shared_three: Any) -> Iterator[Any]:
    """Three that vote. A test may kill, stop and pause them: they run again after it."""
    yield shared_three
    for node in shared_three.nodes:
        if node.is_running:
            node.resume()
        else:
            node.start()
    shared_three.settle()


@pytest.fixture
def networks(three: Any) -> Iterator[Networks]:
    """A bad network before each of the three."""
    networks = Networks(three.nodes)
    yield networks
    networks.close()

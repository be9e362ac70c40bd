"""Clients of both APIs on real ZooKeeper servers, behind a fault proxy where a test needs one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from zookeeper_nodes import SESSION, Networks, with_session

from both_apis import APIS, Agent, fixtures
from lab.fault_proxy import FaultProxy


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    caplog.set_level(logging.CRITICAL, "kazoo")


def _make(api: str, url: str, session: float = SESSION, **terms: Any) -> Agent:
    """A client with a short session."""
    return APIS[api](with_session(url, session), **{"lease": session} | terms)


agents, agent, api, name = fixtures(_make)


@pytest.fixture
def network(zookeeper_server: Any) -> Iterator[FaultProxy]:
    """A fault proxy in front of the shared server."""
    with FaultProxy(("127.0.0.1", zookeeper_server.port)) as network:
        yield network


@pytest.fixture
def proxied_url(network: FaultProxy) -> str:
    """The URL of the shared server through the fault proxy."""
    return f"zookeeper://127.0.0.1:{network.port}"


@pytest.fixture(scope="module")
def shared_three(zookeeper_server: Any) -> Iterator[Any]:
    """An ensemble of three servers for one module; skipped where `zookeeper_server` is."""
    from lab.servers.zookeeper_server import ZooKeepers

    with ZooKeepers(3) as group:
        yield group


@pytest.fixture
def three(shared_three: Any) -> Iterator[Any]:
    """An ensemble of three servers. A test may kill, stop and pause them: they run again after
    it."""
    yield shared_three
    for node in shared_three.nodes:
        if node.is_running:
            node.resume()
        else:
            node.start()
    shared_three.settle()


@pytest.fixture
def networks(three: Any) -> Iterator[Networks]:
    """A fault proxy in front of each of the three."""
    networks = Networks(three.nodes)
    yield networks
    networks.close()

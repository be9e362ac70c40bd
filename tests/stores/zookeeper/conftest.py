"""Clients of both APIs on real ZooKeeper servers, behind a fault proxy where a test needs one."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from zookeeper_nodes import SESSION, Networks, with_session

import lockfast
from both_apis import APIS, Agent, fixtures
from lab.fault_proxy import FaultProxy

_number = itertools.count()


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


@pytest.fixture
def here(zookeeper_server: Any) -> Iterator[SimpleNamespace]:
    """A private chroot, a lockfast client in it, and a kazoo client for assertions."""
    path = f"/protocol-{next(_number)}"
    client = lockfast.connect(f"{zookeeper_server.url}{path}")
    kazoo = zookeeper_server.client()
    root = f"{path}/lockfast"

    def nodes(name: str) -> list[str]:
        return sorted(kazoo.get_children(f"{root}/default:{name}"))

    yield SimpleNamespace(
        url=f"{zookeeper_server.url}{path}",
        client=client,
        session=client._endpoint._session,  # type: ignore[attr-defined]
        registry=client._endpoint._registry,  # type: ignore[attr-defined]
        kazoo=kazoo,
        root=root,
        nodes=nodes,
    )
    client.close()
    kazoo.stop()
    kazoo.close()

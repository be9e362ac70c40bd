"""Clients of both faces on real ZooKeepers, with a bad network between them where a test wants
one."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from zookeeper_ends import SESSION, Networks, with_session

from faces import FACES, Agent
from holdfast.testing.faults import FaultProxy


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast")
    caplog.set_level(logging.CRITICAL, "kazoo")


@pytest.fixture
def agents() -> Iterator[Callable[..., Agent]]:
    """Make a client of a colour, with a short session; closed with the test."""
    made: list[Agent] = []

    def agents(colour: str, url: str, session: float = SESSION, **terms: Any) -> Agent:
        agent = FACES[colour](with_session(url, session), **{"lease": session} | terms)
        made.append(agent)
        return agent

    yield agents
    for agent in made:
        agent.close()


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(colour: str, agents: Callable[..., Agent]) -> Callable[..., Agent]:
    """Make a client of the test's colour."""
    return lambda url, **terms: agents(colour, url, **terms)


@pytest.fixture
def name() -> str:
    """A name that no other test uses: most of them share one server."""
    return f"name-{uuid.uuid4().hex[:12]}"


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
    from servers.zookeeper_server import ZooKeepers

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

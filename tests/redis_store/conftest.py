"""Clients of both faces on real servers, with a bad network between them where a test wants one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from both_redises import Both
from redis_ends import FACES, Agent

from holdfast.testing.faults import FaultProxy


@pytest.fixture
def agents() -> Iterator[Callable[..., Agent]]:
    """Make a client of a colour; closed with the test."""
    made: list[Agent] = []

    def agents(colour: str, where: Any, **terms: Any) -> Agent:
        agent = FACES[colour](where, **terms)
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
    return lambda where, **terms: agents(colour, where, **terms)


@pytest.fixture
def name() -> str:
    """A name that no other test uses: most of them share one server."""
    return f"name-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def network(redis_server: Any) -> Iterator[FaultProxy]:
    """A bad network before the server of all tests."""
    with FaultProxy(("127.0.0.1", redis_server.port)) as network:
        yield network


@pytest.fixture
def far(network: FaultProxy) -> str:
    """The server of all tests, behind that network."""
    return f"redis://127.0.0.1:{network.port}"


@pytest.fixture(scope="module")
def redis_port(redis_server: Any) -> Iterator[int]:
    """A Redis for one module alone, which may empty it; wherever there can be one for all."""
    from servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server.port


@pytest.fixture
def both(redis_port: int) -> Iterator[Both]:
    pair = Both(redis_port)
    yield pair
    pair.real.close()

"""Clients of both APIs on a real Redis Cluster."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from both_apis import APIS, Agent


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")


@pytest.fixture
def agents() -> Iterator[Callable[..., Agent]]:
    """Make a client of an API; closed after the test."""
    made: list[Agent] = []

    def agents(api: str, where: Any, **terms: Any) -> Agent:
        agent = APIS[api](where, **terms)
        made.append(agent)
        return agent

    yield agents
    for agent in made:
        agent.close()


@pytest.fixture(params=["blocking", "asyncio"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(api: str, agents: Callable[..., Agent]) -> Callable[..., Agent]:
    """Make a client of the test's API."""
    return lambda where, **terms: agents(api, where, **terms)


@pytest.fixture
def name() -> str:
    """A lock name that no other test uses."""
    return f"name-{uuid.uuid4().hex[:12]}"

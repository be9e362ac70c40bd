"""Clients of both APIs on real servers, with a bad network between them where a test wants one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from both_apis import fixtures
from lab.fault_proxy_control import FaultProxy

agents, agent, api, name = fixtures()


@pytest.fixture
def network(redis_server: Any) -> Iterator[FaultProxy]:
    """A bad network before the server of all tests."""
    with FaultProxy(("127.0.0.1", redis_server.port)) as network:
        yield network


@pytest.fixture
def far(network: FaultProxy) -> str:
    """The server of all tests, behind that network."""
    return f"redis://127.0.0.1:{network.port}"

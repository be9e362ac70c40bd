"""Clients of both APIs on real servers, through a fault proxy where a test wants one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from both_apis import fixtures
from lab.fault_proxy import FaultProxy

agents, agent, api, name = fixtures()


@pytest.fixture
def network(redis_server: Any) -> Iterator[FaultProxy]:
    """A fault proxy in front of the shared server."""
    with FaultProxy(("127.0.0.1", redis_server.port)) as network:
        yield network


@pytest.fixture
def proxied(network: FaultProxy) -> str:
    """The URL of the shared server behind the fault proxy."""
    return f"redis://127.0.0.1:{network.port}"

"""pytest fixtures: ``pytest_plugins = ["holdfast.testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import aio, sync
from holdfast.testing import kit


@pytest.fixture
def holdfast_clock() -> kit.VirtualClock:
    """The time of `holdfast_client` and `holdfast_aio_client`: ``holdfast_clock.advance(10)``."""
    return kit.VirtualClock()


@pytest.fixture
def holdfast_client(holdfast_clock: kit.VirtualClock) -> Iterator[sync.Client]:
    """A blocking client of a store in memory, on `holdfast_clock`; also the default client, so
    that ``holdfast.lock(…)`` in the code under test uses it."""
    client = kit.client(holdfast_clock)
    before, sync.default_client.client = sync.default_client.client, client
    yield client
    sync.default_client.client = before
    client.close()


@pytest.fixture
def holdfast_aio_client(holdfast_clock: kit.VirtualClock) -> Iterator[aio.Client]:
    """The same for asyncio."""
    client = kit.aio_client(holdfast_clock)
    before, aio.default_client.client = aio.default_client.client, client
    yield client
    aio.default_client.client = before

"""pytest fixtures: ``pytest_plugins = ["lockfast.testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockfast import aio, sync
from lockfast.testing import kit


@pytest.fixture
def lockfast_clock() -> kit.VirtualClock:
    """The time of `lockfast_client` and `lockfast_aio_client`: ``lockfast_clock.advance(10)``."""
    return kit.VirtualClock()


@pytest.fixture
def lockfast_client(lockfast_clock: kit.VirtualClock) -> Iterator[sync.Client]:
    """A blocking client of a store in memory, on `lockfast_clock`; also the default client, so
    that ``lockfast.lock(…)`` in the code under test uses it."""
    client = kit.client(lockfast_clock)
    before, sync.default_client.client = sync.default_client.client, client
    yield client
    sync.default_client.client = before
    client.close()


@pytest.fixture
def lockfast_aio_client(lockfast_clock: kit.VirtualClock) -> Iterator[aio.Client]:
    """The same for asyncio."""
    client = kit.aio_client(lockfast_clock)
    before, aio.default_client.client = aio.default_client.client, client
    yield client
    aio.default_client.client = before

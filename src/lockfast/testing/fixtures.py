"""pytest fixtures ``lockfast_clock``, ``lockfast_client`` and ``lockfast_aio_client``.

This module is a registered pytest plugin: the fixtures exist wherever lockfast is installed. pytest
imports it in every run, used or not: hence the clients are imported inside the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockfast import aio, sync
    from lockfast.testing.kit import VirtualClock


@pytest.fixture
def lockfast_clock() -> VirtualClock:
    """Virtual clock of the clients, advanced by the test: ``lockfast_clock.advance(10)``."""
    from lockfast.testing.kit import VirtualClock

    return VirtualClock()


@pytest.fixture
def lockfast_client(lockfast_clock: VirtualClock) -> Iterator[sync.Client]:
    """Sync client of a new store in memory, on `lockfast_clock`; closed after the test.

    Also the default client of the test, which ``lockfast.lock(…)`` in the tested code uses.
    """
    from lockfast import sync
    from lockfast.testing import kit

    client = kit.client(lockfast_clock)
    before, sync.default_client.client = sync.default_client.client, client
    yield client
    sync.default_client.client = before
    client.close()


@pytest.fixture
def lockfast_aio_client(lockfast_clock: VirtualClock) -> Iterator[aio.Client]:
    """Async client of a new store in memory, on `lockfast_clock`.

    Also the default client of the test, which ``lockfast.aio.lock(…)`` in the tested code uses.
    """
    from lockfast import aio
    from lockfast.testing import kit

    client = kit.aio_client(lockfast_clock)
    before, aio.default_client.client = aio.default_client.client, client
    yield client
    aio.default_client.client = before

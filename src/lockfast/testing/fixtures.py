"""pytest fixtures ``lockfast_clock``, ``lockfast_client`` and ``lockfast_aio_client``.

lockfast registers this module as a pytest plugin, so the fixtures are available wherever lockfast
is installed, without a ``pytest_plugins`` line. pytest imports the module in every run, also of
projects that use no fixture of it: hence the clients are imported inside the fixtures.
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
    """Virtual clock of `lockfast_client` and `lockfast_aio_client`: ``lockfast_clock.advance(10)``.

    Available by itself once lockfast is installed.
    """
    from lockfast.testing.kit import VirtualClock

    return VirtualClock()


@pytest.fixture
def lockfast_client(lockfast_clock: VirtualClock) -> Iterator[sync.Client]:
    """Sync client of a new store in memory, on `lockfast_clock`; closed after the test.

    Also the default client during the test, so that ``lockfast.lock(…)`` in the code under test
    uses it. Available by itself once lockfast is installed.
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

    Also the default client during the test, so that ``lockfast.aio.lock(…)`` in the code under test
    uses it. Available by itself once lockfast is installed.
    """
    from lockfast import aio
    from lockfast.testing import kit

    client = kit.aio_client(lockfast_clock)
    before, aio.default_client.client = aio.default_client.client, client
    yield client
    aio.default_client.client = before

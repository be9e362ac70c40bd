"""A server that is far away, for a short lease: connecting takes longer than a claim may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_redis import PATIENCE, until

import lockfast.aio
from lockfast.errors import BackendError

LEASE = 1.2  # all tries of a claim together may take 0.2 s
FAR = 0.15  # there; and as much back


def test_who_asks_again_finds_the_connection_that_was_begun_for_it(
    network: Any, far: str, name: str
) -> None:
    network.latency = FAR

    async def scene() -> None:
        async with lockfast.aio.connect(far, lease=LEASE) as client:
            with pytest.raises(BackendError, match="while connecting"):
                await client.lock(name).acquire()
            await asyncio.to_thread(until, lambda: client._backend._transport._link is not None)
            assert network.accepted <= 2, "one more is the keeper's, which leaves for us"
            network.latency = 0.0
            async with client.lock(name, timeout=PATIENCE):
                pass

    asyncio.run(scene())

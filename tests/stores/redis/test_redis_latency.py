"""A latency that is too high for a short lease: connecting takes longer than a claim may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_redis import PATIENCE, until

import lockfast.aio
from lockfast.errors import BackendError

LEASE = 1.2  # all attempts of a claim together may take 0.2 s
LATENCY = 0.15  # seconds in each direction


def test_the_next_claim_uses_the_connection_that_the_first_one_started(
    network: Any, proxied: str, name: str
) -> None:
    network.latency = LATENCY

    async def scene() -> None:
        async with lockfast.aio.connect(proxied, lease=LEASE) as client:
            with pytest.raises(BackendError, match="while connecting"):
                await client.lock(name).acquire()
            await asyncio.to_thread(
                until, lambda: client._backend._transport._connection is not None
            )
            assert network.accepted <= 2, (
                "one more belongs to the keeper, which withdraws the claim"
            )
            network.latency = 0.0
            async with client.lock(name, timeout=PATIENCE):
                pass

    asyncio.run(scene())

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
            with pytest.raises(BackendError, match=r"while connecting|did not answer"):
                await client.lock(name).acquire(timeout=0.5)
            await asyncio.to_thread(until, lambda: client._store._channel._connection is not None)
            assert network.accepted <= 2, (
                "one more belongs to the keeper, which withdraws the claim"
            )
            network.latency = 0.0
            async with client.lock(name, timeout=PATIENCE):
                pass

    asyncio.run(scene())


def test_a_short_lease_on_a_slow_link_does_not_disturb_the_others_of_the_connection(
    network: Any, proxied: str, name: str
) -> None:
    """Its claims are over before their replies arrive; those of the other tasks are not."""

    async def scene() -> tuple[int, int]:
        async with lockfast.aio.connect(proxied) as client:
            async with client.lock(name):
                pass
            connection = client._store._channel._connection
            network.latency = 0.03
            ends = asyncio.get_running_loop().time() + 2.0
            failed = 0

            async def cycles(number: int) -> int:
                done = 0
                while asyncio.get_running_loop().time() < ends:
                    async with client.lock(f"{name}:{number}", lease=30):
                        done += 1
                return done

            async def hurry() -> int:
                nonlocal failed
                while asyncio.get_running_loop().time() < ends:
                    try:
                        await client.lock(f"{name}:short", lease=0.4).try_acquire(timeout=0.01)
                    except BackendError:
                        failed += 1
                return 0

            done = await asyncio.gather(*map(cycles, range(10)), hurry())
            assert client._store._channel._connection is connection and connection.lost is None
            return sum(done), failed

    done, failed = asyncio.run(scene())
    assert failed > 1
    assert done > 60, "a cycle takes 0.12 s"

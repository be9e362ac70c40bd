"""A Redis Cluster under chaos: masters that die or fall silent, slots that move, connections and
holders that are killed. No stale fence is accepted, and everybody who waits is served.

How long a failover takes is the cluster's: it gives up a silent node after its node time-out, and
then elects. Each recovery is printed as a multiple of that time-out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ordeal import spread

import holdfast
from conftest import need

NODE_TIMEOUT = 1.0
HAND_OVERS = 1000
PROGRAMME = {
    "kill_a_master": 2,
    "silence_a_master": 1,
    "move_a_slot": 3,
    "move_a_slot_slowly": 2,
    "kill_holders": 2,
    "stop_a_holder": 1,
    "kill_clients": 2,
    "kill_ears": 2,
    "flush_scripts": 1,
}
# In node time-outs: one until the node is suspected, up to one more until most agree, and an
# election, which begins half a second to a second later. Then in leases: what the replica knows is
# held may be a holder's that died meanwhile.
FAILOVER, SLACK = 4.0, 1.0
FAILOVERS = ("kill of a master", "silence of a master")
LIMIT, STRAY = 1.25, 1.0


@pytest.fixture
def cluster() -> Iterator[Any]:
    need("redis-server", driver="redis")
    from servers.redis_cluster import RedisCluster

    with RedisCluster(node_timeout=NODE_TIMEOUT) as cluster:
        yield cluster


def said(recoveries: list[float]) -> str:
    return "p50 {:.3f}, p99 {:.3f}, max {:.3f}".format(*spread(recoveries))


def test_in_a_storm_no_fence_repeats_nobody_lost_is_believed_and_every_name_goes_on(
    cluster: Any,
) -> None:
    from storm_cluster import LEASES, ClusterStorm
    from storm_verdict import judge

    storm = ClusterStorm(cluster, seed=1)
    with storm.raging():
        storm.rage(PROGRAMME)
        codes, left, errors = storm.finish()
    verdict = judge(storm.records, LEASES, storm.amnesias)
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        if kind in FAILOVERS:
            times = [seconds / NODE_TIMEOUT for _, seconds in recoveries]
            print(f"{kind}: {len(times)} recoveries, in node time-outs {said(times)}")
        else:
            times = [seconds / LEASES[name] for name, seconds in recoveries]
            print(f"{kind}: {len(times)} recoveries, in leases {said(times)}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0)
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    assert verdict.counts["refused"] >= storm.faults["stop"]
    for kind, recoveries in storm.recoveries.items():
        for name, seconds in recoveries:
            limit = (LIMIT + STRAY) * LEASES[name] + SLACK
            limit += FAILOVER * NODE_TIMEOUT if kind in FAILOVERS else 0.0
            assert seconds <= limit, (kind, name, seconds)
    with holdfast.connect(cluster.url) as client:
        assert client.names() == []

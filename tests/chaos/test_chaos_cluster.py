"""A Redis Cluster under chaos: masters that die or fall silent, slots that move, connections and
holders that are killed. No stale fence is accepted, and everybody who waits is served.

How long a failover takes is the cluster's: it gives up a silent node after its node time-out, and
then elects. Each recovery is printed as a multiple of that time-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from ordeal import spread

import lockfast
from both_apis import APIS, PATIENCE, until
from lockfast.stores.redis_cluster.slots import slot_of

NODE_TIMEOUT = 1.0
HAND_OVERS = 1000
PROGRAMME = {
    "kill_a_master": 1,
    "silence_a_master": 1,
    "move_a_slot": 3,
    "move_a_slot_slowly": 1,
    "kill_holders": 1,
    "stop_a_holder": 1,
    "kill_clients": 1,
    "kill_ears": 1,
    "flush_scripts": 1,
}
# In node time-outs: one until the node is suspected, up to one more until most agree, and an
# election, which begins half a second to a second later; and the time for which a silent node was
# being waited for when it was over. Busy machines need longer. Then in leases: what the replica
# knows is held may be a holder's that died meanwhile.
FAILOVER, SLACK = 6.0, 1.0
FAILOVERS = ("kill of a master", "silence of a master")
LIMIT, STRAY = 1.25, 1.0


@pytest.fixture(scope="module")
def cluster(new_redis_cluster: Callable[..., Any]) -> Any:
    return new_redis_cluster(node_timeout=NODE_TIMEOUT)


def said(recoveries: list[float]) -> str:
    return "p50 {:.3f}, p99 {:.3f}, max {:.3f}".format(*spread(recoveries))


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_hold_and_those_who_wait_outlive_their_master(cluster: Any, how: str) -> None:
    """What the replica knew is held goes on under its fence; the rest is asked for anew."""
    name, lease = f"outlives-{how}", 12.0
    apis = [APIS["blocking"], APIS["asyncio"]]
    holder, *others = [api(cluster.url, lease=lease) for api in (APIS["blocking"], *apis)]
    hold = holder.do(lambda client: client.lock(name).acquire())
    waits = [
        other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE)) for other in others
    ]
    until(lambda: len(holder.do(lambda client: client.inspect(name)).waiters) == 2)
    master = cluster.owner(slot_of(f"default:{name}"))
    with redis.Redis.from_url(master.unix_url, single_connection_client=True) as writer:
        writer.set(f"{{default:{name}}}", "behind what is held", ex=60)
        assert writer.wait(1, 5000) == 1, "the replica knows it"
    began = time.monotonic()
    master.pause() if how == "silent" else master.kill()
    try:
        renewals = holder.client.statistics().renewals
        until(lambda: answers(lambda: holder.do(lambda client: hold.renew())))
        recovery = time.monotonic() - began
        print(f"\n{how}: renewed after {recovery / NODE_TIMEOUT:.2f} node time-outs")
        assert recovery <= FAILOVER * NODE_TIMEOUT + SLACK
        assert hold.is_held and holder.client.statistics().renewals >= renewals
        holder.do(lambda client: hold.release())
        fences = [hold.fence]
        for _ in waits:
            future = until(lambda: next((one for one in waits if one.done()), None))
            fences.append(future.result().fence)
            others[waits.index(future)].do(lambda client: future.result().release())  # noqa: B023
            others.pop(waits.index(future)).close()
            waits.remove(future)
        assert fences == sorted(set(fences))
    finally:
        for agent in (holder, *others):
            agent.close()
        if how == "silent":
            master.kill()
        master.start()
        cluster.settle()


def answers(call: Callable[[], Any]) -> bool:
    try:
        call()
    except lockfast.BackendError:
        return False
    return True


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
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    assert verdict.counts["refused"] >= storm.faults["stop"]
    for kind, recoveries in storm.recoveries.items():
        for name, seconds in recoveries:
            limit = (LIMIT + STRAY) * LEASES[name] + SLACK
            limit += FAILOVER * NODE_TIMEOUT if kind in FAILOVERS else 0.0
            assert seconds <= limit, (kind, name, seconds, storm.late)
    with lockfast.connect(cluster.url) as client:
        assert client.names() == []

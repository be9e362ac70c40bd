"""A Redis Cluster under chaos: masters die or fall silent, slots move, connections and holders are
killed. No stale fence is accepted, and every waiter is served.

The cluster determines the length of a failover: it gives up a silent node after its node timeout
and then elects a replica. Each recovery is printed as a multiple of that timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from holder_recovery import summary

import lockfast
from both_apis import APIS, PATIENCE, until
from lockfast.stores.redis_cluster.slots import slot_of

NODE_TIMEOUT = 1.0
HAND_OVERS = 1000
SCHEDULE = {
    "kill_a_master": 1,
    "silence_a_master": 1,
    "move_a_slot": 3,
    "move_a_slot_slowly": 1,
    "kill_holders": 1,
    "stop_a_holder": 1,
    "kill_clients": 1,
    "kill_listeners": 1,
    "flush_scripts": 1,
}
# FAILOVER is in node timeouts: one until the node is suspected, up to one more until a majority
# agrees, an election that begins half a second to a second later, and the rest of a request that
# was waiting for the silent node. Busy machines need longer. LIMIT and STRAY are in leases: a hold
# that the replica knows may belong to a holder that died meanwhile.
FAILOVER, SLACK = 6.0, 1.0
FAILOVERS = ("kill of a master", "silence of a master")
LIMIT, STRAY = 1.25, 1.0


@pytest.fixture(scope="module")
def cluster(new_redis_cluster: Callable[..., Any]) -> Any:
    return new_redis_cluster(node_timeout=NODE_TIMEOUT)


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_hold_and_its_waiters_outlive_their_master(cluster: Any, how: str) -> None:
    """A hold that was replicated goes on under its fence; the other claims are made again."""
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
        writer.set(f"{{default:{name}}}", "written after the hold", ex=60)
        assert writer.wait(1, 5000) == 1, "the replica has not acknowledged the write"
    began = time.monotonic()
    master.pause() if how == "silent" else master.kill()
    try:
        renewals = holder.client.statistics().renewals
        until(lambda: succeeds(lambda: holder.do(lambda client: hold.renew())))
        recovery = time.monotonic() - began
        print(f"\n{how}: renewed after {recovery / NODE_TIMEOUT:.2f} node timeouts")
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


def succeeds(call: Callable[[], Any]) -> bool:
    try:
        call()
    except lockfast.BackendError:
        return False
    return True


def test_in_a_storm_no_fence_repeats_no_lost_hold_is_valid_and_every_name_goes_on(
    cluster: Any,
) -> None:
    from storm_checker import check_history
    from storm_cluster import LEASES, ClusterStorm

    storm = ClusterStorm(cluster, seed=1)
    with storm.running():
        storm.inject(SCHEDULE)
        codes, left, errors = storm.finish()
    verdict = check_history(storm.records, LEASES, storm.amnesias)
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        if kind in FAILOVERS:
            times = [seconds / NODE_TIMEOUT for _, seconds in recoveries]
            print(f"{kind}: {len(times)} recoveries, in node timeouts {summary(times)}")
        else:
            times = [seconds / LEASES[name] for name, seconds in recoveries]
            print(f"{kind}: {len(times)} recoveries, in leases {summary(times)}")

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

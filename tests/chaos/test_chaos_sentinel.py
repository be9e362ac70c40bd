"""Sentinel under chaos: the master is killed, paused and cut off again and again, while processes
with several threads and tasks hold and wait. One replica must acknowledge each grant, and only the
master fails: then no valid hold is lost, and no fence repeats.

Without replicas that acknowledge (SAFETY.md, case 4) a failover forgets holds, and the fence grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lockfast
from both_apis import until
from lab.fault_proxy import FaultProxy

NewSentinels = Callable[..., Any]
DOWN_AFTER = 1.0
SCHEDULE = {
    "kill_the_master": 2,
    "pause_the_master": 1,
    "cut_off_the_master": 1,
    "kill_the_sentinels": 1,
    "silence_a_replica": 1,
    "stop_a_holder": 1,
}
FAILOVERS = 4
HAND_OVERS = 200


@pytest.mark.timeout(300)
def test_a_storm_of_failovers_loses_no_valid_hold_and_repeats_no_fence(
    new_sentinels: NewSentinels,
) -> None:
    from storm_checker import check_history
    from storm_sentinel import LEASES, SentinelStorm

    servers = new_sentinels(down_after=DOWN_AFTER, proxied=True)
    storm = SentinelStorm(servers, seed=1)
    with storm.running():
        storm.inject(SCHEDULE)
        codes, left, errors = storm.finish()
    verdict = check_history(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    failovers = 0
    for kind, recoveries in storm.recoveries.items():
        times = ", ".join(f"{name} {seconds / DOWN_AFTER:.2f}" for name, seconds in recoveries)
        print(f"{kind}: recovered after, in detection timeouts: {times}")
        failovers += len(recoveries) // len(LEASES) * kind.endswith("master")
        if kind in storm.elections:
            times = ", ".join(f"{seconds / DOWN_AFTER:.2f}" for seconds in storm.elections[kind])
            print(f"    of which the election took: {times}")
    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert failovers == FAILOVERS
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    assert verdict.counts["refused"] >= storm.faults["stop"]  # stopped workers wrote in the end


def test_a_failover_while_replication_is_cut_loses_only_unacknowledged_holds(
    new_sentinels: NewSentinels,
) -> None:
    """Replicas reach the master through a network that is cut; clients and sentinels do not.

    Only the master knows the holds that it grants meanwhile, and then it dies.
    """
    servers = new_sentinels(down_after=0.5, failover_timeout=5)
    master = servers.servers[0]
    with FaultProxy(("127.0.0.1", master.port)) as replication:
        for replica in servers.servers[1:]:
            replica.call("REPLICAOF", "127.0.0.1", replication.port)
        until(lambda: servers.replicas_of(0) == 2)
        strict = lockfast.connect(servers.url, replicas=1)
        loose, other = lockfast.connect(servers.url), lockfast.connect(servers.url)
        kept = strict.lock("kept").acquire()
        replication.black_hole()
        with pytest.raises(lockfast.NotReplicated):
            strict.lock("refused", lease=6).acquire()
        assert strict.inspect("refused").holders == ()
        forgotten = loose.lock("forgotten").acquire()
        master.kill()
        servers.wait_for_new_master(0)
    again = other.lock("forgotten", timeout=20).acquire()
    assert again.fence > forgotten.fence
    assert strict.inspect("kept").holders[0].fence == kept.fence
    assert kept.is_held
    # The first holder notices its loss, and its release does not touch the new hold.
    with pytest.raises(lockfast.HoldLost):
        forgotten.release()
    assert loose.inspect("forgotten").holders[0].fence == again.fence
    for client in (strict, loose, other):
        client.close()

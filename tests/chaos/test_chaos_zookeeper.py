"""ZooKeeper under chaos: holders are killed and stopped, leaders die, replies are lost. No lost
hold is valid, and every waiter is served.

Two tests, as on Redis. In `holder_recovery` every name has contenders and a witness of its own, and
only its holder is killed or stopped: that measures recovery. In the storm, processes with several
threads or tasks run freely through every fault that can be injected.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holder_recovery import assert_fenced, measure_recoveries, summary

import lockfast

# Promise P4, in session timeouts. SLACK is in seconds: what a busy machine takes, and two ticks of
# the server, which rounds a session's end up to a tick and looks for ended sessions once a tick.
LIMIT = 1.25
SLACK = 0.15 + 2 * 0.2

NAMES, ROUNDS, LEASE = {"kill": 4, "stop": 3}, 3, 2.0

HAND_OVERS = 200
SCHEDULE = {
    "kill_holders": 1,
    "stop_a_holder": 1,
    "stop_any_worker": 1,
    "cut_off_a_holder": 1,
    "kill_the_leader": 1,
    "kill_the_leader_and_a_holder": 1,
    "restart_a_follower": 1,
    "pause_the_leader": 1,
    "reset_connections": 2,
    "lose_replies": 3,
}

NewZooKeepers = Callable[..., Any]


def test_holders_that_were_killed_or_stopped_are_fenced_off_and_recovered_from_in_time(
    tmp_path: Path, new_zookeepers: NewZooKeepers
) -> None:
    url = f"{new_zookeepers(1).url}?session_timeout={LEASE}"
    kinds = [kind for kind, names in NAMES.items() for _ in range(names)]
    apis = ("threads", "tasks", "threads")
    reports = measure_recoveries(url, tmp_path, kinds, rounds=ROUNDS, lease=LEASE, apis=apis)
    recoveries: dict[str, list[float]] = {kind: [] for kind in NAMES}
    for kind, report in zip(kinds, reports, strict=True):
        assert_fenced(report, kind, ROUNDS)
        assert report["starved"] == report["overlaps"] == 0
        recoveries[kind] += [(ended - began) / LEASE for began, ended in report["recoveries"]]
    for kind, times in recoveries.items():
        print(f"\n{len(times)} holders, {kind}: recovery in sessions {summary(times)}")
        assert max(times) <= LIMIT + SLACK / LEASE


def test_in_a_storm_no_fence_repeats_no_lost_hold_is_valid_and_every_name_goes_on(
    new_zookeepers: NewZooKeepers,
) -> None:
    from storm_checker import check_history
    from storm_zookeeper import LEASES, ZooKeeperStorm

    servers = new_zookeepers(3)
    storm = ZooKeeperStorm(servers, seed=1)
    with storm.running():
        storm.inject(SCHEDULE)
        codes, left, errors = storm.finish()
    verdict = check_history(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        print(f"{kind}: {len(times)} recoveries, in sessions {summary(times)}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Every worker that was stopped wrote in the end and was refused; no other write was refused.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["expired"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for kind in ("kill", "stop", "cut off", "kill beside the leader"):
        for name, seconds in storm.recoveries[kind]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (kind, name, seconds)
    with lockfast.connect(servers.url) as client:
        assert client.names() == []

"""ZooKeeper under chaos: holders killed and stopped, leaders that die, replies that are lost.
Nobody who lost it is believed, and everybody who waits is served.

Two tests, as on Redis. In the ordeals every name has contenders and a witness of its own, and only
its holder is killed or stopped: that measures recovery. In the storm processes with many threads
or tasks run freely through every fault that we can make.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordeal import assert_fenced, ordeals, spread

import lockfast

# Promise P4, in sessions, and beyond them the server's tick, in which it ends sessions, twice: it
# rounds up, and looks once a tick. SLACK is the machine's, whatever the session.
LIMIT = 1.25
SLACK = 0.15 + 2 * 0.2

NAMES, ROUNDS, LEASE = {"kill": 4, "stop": 3}, 3, 2.0

HAND_OVERS = 200
PROGRAMME = {
    "kill_holders": 1,
    "stop_a_holder": 1,
    "stop_anybody": 1,
    "cut_off_a_holder": 1,
    "kill_the_leader": 1,
    "kill_the_leader_and_a_holder": 1,
    "restart_a_follower": 1,
    "pause_the_leader": 1,
    "reset_connections": 2,
    "lose_replies": 3,
}

NewZooKeepers = Callable[..., Any]


def said(recoveries: list[float]) -> str:
    return "p50 {:.3f}, p99 {:.3f}, max {:.3f}".format(*spread(recoveries))


def test_holders_that_were_killed_or_stopped_are_fenced_off_and_recovered_from_in_time(
    tmp_path: Path, new_zookeepers: NewZooKeepers
) -> None:
    url = f"{new_zookeepers(1).url}?session_timeout={LEASE}"
    kinds = [kind for kind, names in NAMES.items() for _ in range(names)]
    apis = ("threads", "tasks", "threads")
    reports = ordeals(url, tmp_path, kinds, rounds=ROUNDS, lease=LEASE, apis=apis)
    recoveries: dict[str, list[float]] = {kind: [] for kind in NAMES}
    for kind, report in zip(kinds, reports, strict=True):
        assert_fenced(report, kind, ROUNDS)
        assert report["starved"] == report["overlaps"] == 0
        recoveries[kind] += [(ended - began) / LEASE for began, ended in report["recoveries"]]
    for kind, times in recoveries.items():
        print(f"\n{len(times)} holders, {kind}: recovery in sessions {said(times)}")
        assert max(times) <= LIMIT + SLACK / LEASE


def test_in_a_storm_no_fence_repeats_nobody_lost_is_believed_and_every_name_goes_on(
    new_zookeepers: NewZooKeepers,
) -> None:
    from storm_verdict import judge
    from storm_zookeeper import LEASES, ZooKeeperStorm

    servers = new_zookeepers(3)
    storm = ZooKeeperStorm(servers, seed=1)
    with storm.raging():
        storm.rage(PROGRAMME)
        codes, left, errors = storm.finish()
    verdict = judge(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        print(f"{kind}: {len(times)} recoveries, in sessions {said(times)}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Who was stopped wrote in the end, and was refused; nobody else was.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["fell"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for kind in ("kill", "stop", "cut off", "kill beside the leader"):
        for name, seconds in storm.recoveries[kind]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (kind, name, seconds)
    with lockfast.connect(servers.url) as client:
        assert client.names() == []

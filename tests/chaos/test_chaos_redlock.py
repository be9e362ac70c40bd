"""Redlock under chaos: five nodes are killed, come back empty and freeze, two at a time, and
holders are killed, stopped and cut off. A fault of a minority excuses nothing: a name never has two
holders, no fence repeats or falls, and every name goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from holder_recovery import percentiles

import lockfast

LIMIT = 1.25  # promise P4, in leases
# Seconds: two waiters that ask at the same moment must ask again, and the machine may be busy.
SLACK = 1.5
HAND_OVERS = 300
SCHEDULE = {
    "kill_holders": 1,
    "stop_a_holder": 2,
    "cut_off_a_holder": 1,
    "restart_one_empty": 2,
    "restart_two_empty": 1,
    "keep_one_down": 1,
    "freeze_two": 1,
    "kill_listeners": 1,
    "flush_scripts": 1,
    "reset_connections": 1,
    "lose_replies": 2,
}


@pytest.mark.timeout(180)
def test_in_a_storm_no_fence_repeats_no_lost_hold_is_valid_and_every_name_goes_on(
    new_redlock: Callable[..., Any],
) -> None:
    from storm_checker import check_history
    from storm_redlock import LEASES, RedlockStorm

    servers = new_redlock(5)
    storm = RedlockStorm(servers, seed=1)
    with storm.running():
        storm.inject(SCHEDULE)
        codes, left, errors = storm.finish()
    verdict = check_history(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        print(f"{kind}: {len(times)} recoveries, in leases p50 {percentiles(times)[0]:.3f}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Every worker that was stopped wrote in the end and was refused.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["expired"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for kind in ("kill", "stop", "cut off", "two frozen", "empty restart", "a node down"):
        for name, seconds in storm.recoveries[kind]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (kind, name, seconds)
    with lockfast.connect(servers.url) as client:
        assert client.names() == []

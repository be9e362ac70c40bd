"""Redlock under chaos: five nodes that are killed, come back empty and freeze, two at a time, and
holders that are killed, stopped and cut off. A minority of nodes excuses nothing: no two hold it at
once, no fence repeats or falls, and every name goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ordeal import spread

import lockfast

LIMIT = 1.25  # promise P4, in leases
# A waiter that asks just when another does is told to ask again; and the machine may be busy.
SLACK = 1.5
HAND_OVERS = 300
PROGRAMME = {
    "kill_holders": 1,
    "stop_a_holder": 2,
    "cut_off_a_holder": 1,
    "restart_one_empty": 2,
    "restart_two_empty": 1,
    "one_stays_away": 1,
    "freeze_two": 1,
    "kill_ears": 1,
    "flush_scripts": 1,
    "reset_connections": 1,
    "lose_replies": 2,
}


@pytest.mark.timeout(180)
def test_in_a_storm_no_fence_repeats_nobody_lost_is_believed_and_every_name_goes_on(
    new_redlock: Callable[..., Any],
) -> None:
    from storm_redlock import LEASES, RedlockStorm
    from storm_verdict import judge

    servers = new_redlock(5)
    storm = RedlockStorm(servers, seed=1)
    with storm.raging():
        storm.rage(PROGRAMME)
        codes, left, errors = storm.finish()
    verdict = judge(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for kind, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        print(f"{kind}: {len(times)} recoveries, in leases p50 {spread(times)[0]:.3f}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Each of those who were stopped wrote in the end, and was refused.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["fell"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for kind in ("kill", "stop", "cut off", "two frozen", "empty restart", "a node away"):
        for name, seconds in storm.recoveries[kind]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (kind, name, seconds)
    with lockfast.connect(servers.url) as client:
        assert client.names() == []

"""200 killed and 200 stopped holders on one SQLite file: no lost hold is valid.

Twenty names at a time, each with three contenders and a witness of its own (`holder_recovery`).
Recovery is measured in leases from the kill or the stop to the next write that the witness accepts.
(A lease counts from the last renewal, so less than one is left at the stop.) A process that is
stopped inside a transaction blocks the file for all, which SQLite cannot prevent: it is resumed at
once and not measured.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from holder_recovery import assert_fenced, measure_recoveries, percentiles

import lockfast

NAMES = 20
ROUNDS = 10
LEASE = 2.0
LIMIT = 1.25  # leases: promise P4


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_200_holders_that_were_killed_or_stopped_are_fenced_off_and_recovered_from_in_time(
    tmp_path: Path, kind: str
) -> None:
    reports = measure_recoveries(
        f"sqlite://{tmp_path}/locks.db", tmp_path, [kind] * NAMES, rounds=ROUNDS, lease=LEASE
    )
    for report in reports:
        assert_fenced(report, kind, ROUNDS)

    blocks = [block for report in reports for block in report["blocks"]]
    starved = sum(report["starved"] for report in reports)
    overlaps = sum(report["overlaps"] for report in reports)
    recoveries = [
        (ended - began) / LEASE
        for report in reports
        for began, ended in report["recoveries"]
        if not any(start < ended and began < end for start, end in blocks)
    ]
    p50, p99, greatest = percentiles(recoveries)
    print(
        f"\n{NAMES * ROUNDS} holders, {kind}: recovery in leases p50 {p50:.3f}, p99 {p99:.3f}, "
        f"max {greatest:.3f} (of {len(recoveries)}: {len(blocks)} more were stopped inside a "
        f"transaction); {sum(report['blocked'] for report in reports)} blocked calls, "
        f"{starved} starved"
    )
    if not blocks:  # else a running holder may have lost its lock, and was notified
        assert starved == overlaps == 0
    assert len(recoveries) >= NAMES * ROUNDS / 2
    assert greatest <= LIMIT
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        assert client.names() == []

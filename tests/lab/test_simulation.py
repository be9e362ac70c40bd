"""The simulator: the core survives faults, the witness finds planted bugs, a seed replays exactly.

``make test`` also runs thousands of seeds; here a few run under coverage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from lab.simulate import main
from lab.simulation import scenario
from lab.simulation.bugs import BUGS
from lab.simulation.kinds import KINDS, kinds_of
from lab.simulation.lua_bugs import LUA_BUGS
from lab.simulation.redis import RedisServer
from lab.simulation.replica_bugs import REPLICA_BUGS
from lab.simulation.replicas import Forgetful, Replicated
from lab.simulation.scenario import run_seed


def test_the_core_keeps_its_promises_under_faults():
    for seed in range(1, 121):
        assert run_seed(seed).violations == [], f"seed {seed}"


def test_faults_really_happen():
    reports = [run_seed(seed) for seed in range(1, 41)]
    assert sum(report.acquired for report in reports) > 1000
    assert sum(report.handovers for report in reports) > 500
    assert sum(report.lost for report in reports) > 20
    assert sum(report.renewed for report in reports) > 100
    assert sum(report.timed_out for report in reports) > 20


def test_every_kind_of_name_is_used_with_all_its_operations():
    kinds = Counter(kind for seed in range(1, 121) for kind in kinds_of(seed))
    assert kinds.keys() == KINDS.keys()
    assert kinds["lock"] > 40  # plain locks stay well covered
    happened = sum((run_seed(seed).counts for seed in range(1, 121)), Counter())
    for what in ("downgraded", "resized", "multi-locked", "elected", "counted", "let through"):
        assert happened[what] > 20, what
    assert happened["gathered"] > 200


def test_a_seed_replays_exactly():
    assert run_seed(7) == run_seed(7)
    assert run_seed(7) != run_seed(8)


def test_the_lua_of_redis_keeps_the_promises():
    for seed in range(1, 81):
        assert run_seed(seed, RedisServer).violations == [], f"seed {seed}"
    assert run_seed(7, RedisServer) == run_seed(7, RedisServer)
    assert main(["--store", "redis", "--seeds", "2"]) == 0


def test_no_valid_hold_is_lost_by_a_failover_when_replicas_are_counted():
    happened: Counter[str] = Counter()
    for seed in [seed for seed in range(1, 41) if Replicated.has(kinds_of(seed))]:
        report = run_seed(seed, Replicated)
        assert report.violations == [], f"seed {seed}"
        happened += report.counts
    assert happened["failed over"] > 60 and happened["not replicated"] > 60
    assert main(["--store", "replicas", "--seeds", "2"]) == 0


def test_fences_grow_across_a_failover_that_loses_data():
    lost = 0
    for seed in [seed for seed in range(1, 41) if Forgetful.has(kinds_of(seed))]:
        report = run_seed(seed, Forgetful)
        assert report.violations == [], f"seed {seed}"
        lost += report.lost
    assert lost > 20
    assert main(["--store", "forgetful", "--seeds", "2"]) == 0


@pytest.mark.parametrize("bug", [*BUGS, *LUA_BUGS, *REPLICA_BUGS])
def test_a_planted_bug_is_found(bug):
    """Run in a process of its own, without coverage: some bugs need a thousand seeds."""
    command = [sys.executable, "-m", "lab.simulate", "--bug", bug, "--seeds", "5000"]
    environment = {key: value for key, value in os.environ.items() if "COVERAGE" not in key}
    hunt = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert hunt.returncode == 0 and "found by seed" in hunt.stdout, hunt.stdout + hunt.stderr


@pytest.mark.parametrize("bug", [*BUGS, *LUA_BUGS, *REPLICA_BUGS])
def test_a_planted_bug_is_gone_when_the_hunt_is_over(bug, capsys):
    main(["--bug", bug, "--seeds", "1"])  # one seed need not find it
    store = "memory" if bug in BUGS else "redis" if bug in LUA_BUGS else "replicas"
    assert main(["--store", store, "--seeds", "1"]) == 0, capsys.readouterr().out


def test_a_planted_bug_is_found_under_coverage_too(capsys):
    assert main(["--bug", "more_holders_than_slots", "--seeds", "50"]) == 0
    assert main(["--bug", "lua_more_holders_than_slots", "--seeds", "50"]) == 0
    assert capsys.readouterr().out.count("found by seed") == 2


def test_a_witness_that_reports_nothing_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(scenario.Witness, "accuse", lambda self, promise, what: None)
    assert main(["--bug", "more_holders_than_slots", "--seeds", "3"]) == 1
    assert "NOT found" in capsys.readouterr().out


def test_failing_seeds_are_shown_so_that_they_can_be_replayed(capsys):
    with BUGS["more_holders_than_slots"].plant():
        assert main(["--seeds", "2", "--first", "5"]) == 1
    shown = capsys.readouterr().out
    assert "seed 5:" in shown and "P1 at" in shown and "2 failed" in shown


def test_a_worker_that_ends_in_an_unexpected_error_is_a_violation(monkeypatch):
    async def broken(self, *args):
        raise KeyError("unexpected")

    monkeypatch.setattr("lockfast.core.locks.Core.attempt", broken)
    assert any("KeyError" in what for what in run_seed(1).violations)

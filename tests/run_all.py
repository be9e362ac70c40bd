"""What ``make test`` runs after style and types: all tests with coverage, the simulation, a
summary.

The conformance cases mostly wait, and so do the tests with servers that come and go: several run at
the same time, each worker with servers of its own. The other tests have the machine for themselves,
but for what only computes: that takes what they leave of the processors, and gives way.

Coverage is measured with branches, also in child processes: 100 % of what decides (core/, model.py,
the memory store), 95 % of everything. The simulation's many seeds run on their own, unmeasured: the
tests run a few of them under measurement.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from lab.servers.programs import program  # noqa: E402

SEEDS = {"memory": "2500", "redis": "800", "replicas": "200", "redlock": "60"}
WHOLE = "src/lockfast/core/*,src/lockfast/model.py,src/lockfast/stores/memory.py"

CONFORMANCE = "tests/stores/test_conformance.py"
# What waits for servers most of the time, and asks for nothing that a busy machine cannot give.
WAITING = [
    "tests/chaos/test_chaos_sentinel.py", "tests/chaos/test_chaos_redlock.py",
    "tests/chaos/test_chaos_sql.py",
    "tests/meta/test_docs.py", "tests/meta/test_bench.py",
    "tests/lab/test_sql_servers.py", "tests/lab/test_zookeeper_server.py",
    "tests/redis_store", "tests/redis_cluster", "tests/redlock_store", "tests/zookeeper_store",
    "tests/sql", "tests/guards", "tests/operators", "tests/observe", "tests/top", "tests/cli",
    "tests/faults",
]  # fmt: skip
COMPUTING = [
    "tests/lab/test_simulation.py", "tests/core/test_law_in_every_store.py", "tests/lab/test_history.py",
    "tests/lab/test_miniredis.py", "tests/lab/test_miniredis_lua.py",
    "tests/lab/test_miniredis_clock.py", "tests/api/test_keys.py",
    "tests/lab/test_redlock_model.py",
]  # fmt: skip

POLITE = ["nice", "-n", "19"]
COVERAGE = [sys.executable, "-m", "coverage"]
PYTEST = [*COVERAGE, "run", "-m", "pytest", *sys.argv[1:]]


def beside(workers: int) -> list[str]:
    """So many at the same time; who shares servers shares a worker (tests/conftest.py)."""
    return ["-n", str(workers), "--dist", "loadscope"]


def without(*paths: str) -> list[str]:
    return [f"--ignore={path}" for path in paths]


# One stage after the other; what is in one stage runs at the same time.
STAGES: list[dict[str, list[str]]] = [
    {"conformance": [*PYTEST, *beside(8), CONFORMANCE]},
    {"tests that wait": [*PYTEST, *beside(3), *WAITING, *without(*COMPUTING)]},
    {
        "tests": [*PYTEST, *without(CONFORMANCE, *WAITING, *COMPUTING)],
        "tests that compute": [*POLITE, *PYTEST, "--timeout=900", *beside(2), *COMPUTING],
    }
    | {
        f"simulation: {store}": [
            *(*POLITE, sys.executable, "-m", "lab.simulate"),
            *("--store", store, "--seeds", seeds),
        ]
        for store, seeds in SEEDS.items()
    },
    {"coverage data": [*COVERAGE, "combine", "--quiet"]},
    {
        "coverage of what decides: 100 %": [
            *COVERAGE, "report", f"--include={WHOLE}", "--fail-under=100",
        ],
        "coverage of everything: 95 %": [*COVERAGE, "report", "--fail-under=95"],
    },
]  # fmt: skip


@dataclass
class Step:
    """One command that runs. The first of a stage is seen while it runs, the others after it."""

    name: str
    command: list[str]
    output: IO[bytes] | None

    def start(self) -> None:
        environment = dict(os.environ)
        # Each of very many processes would compile lockfast anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if "pytest" in self.command:
            environment["COVERAGE_PROCESS_START"] = str(ROOT / "pyproject.toml")
        if not self.output:
            print(f"\n=== {self.name}", flush=True)
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=environment, stdout=self.output, stderr=self.output
        )

    def end(self) -> None:
        self.code = self.process.wait()
        self.seconds = time.monotonic() - self.began
        if self.output:
            self.output.seek(0)
            text = self.output.read().decode(errors="replace")
            print(f"\n=== {self.name}\n{text}", end="", flush=True)
            self.output.close()


def run(stage: dict[str, list[str]]) -> list[Step]:
    steps = [
        Step(name, command, tempfile.TemporaryFile() if number else None)  # noqa: SIM115
        for number, (name, command) in enumerate(stage.items())
    ]
    for step in steps:
        step.start()
    for step in steps:
        step.end()
    return steps


def missing_servers() -> list[str]:
    lines = (ROOT / "lab/lab/servers/needed").read_text().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return [name for name, _package in pairs if program(name) is None]


def main() -> int:
    # Who was started in the background may have been told to ignore them; the programs that are
    # tested must not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    steps: list[Step] = []
    for stage in STAGES:
        steps += run(stage)
        if "coverage data" in stage:
            for torn in ROOT.glob(".coverage.*"):  # of processes that the tests killed
                torn.unlink()
    print("\n=== summary")
    for step in steps:
        print(f"{'ok    ' if step.code == 0 else 'FAILED'}  {step.name} ({step.seconds:.0f} s)")
    failed = sum(step.code != 0 for step in steps)
    missing = missing_servers()
    if missing:
        print(
            f"\n!!! NOT TESTED: no {', '.join(missing)} on this machine. Run lab/lab/servers/ensure"
        )
        print("!!! as root, or install them; the stores that need them were left out.\n")
        failed += os.environ.get("CI") == "true"
    print(f"steps: {len(steps) - min(failed, len(steps))} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

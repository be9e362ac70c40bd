"""Run everything that ``make test`` runs after style and types, and print a summary.

Conformance cases and tests with servers spend much of their time waiting, so several run in
parallel, each worker with servers of its own. Conformance uses all cores; then the tests with
servers and the others run side by side, and pure computation at low priority in the time that they
leave.

Coverage is measured with branches, child processes included: 100 % of the deciding modules (core/,
model.py, the memory store), 95 % of everything. The simulator's many seeds run outside coverage;
the tests run a few seeds under it.
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
# Tests that mostly wait for servers and need no quiet machine.
WITH_SERVERS = [
    "tests/chaos/test_chaos_sentinel.py", "tests/chaos/test_chaos_redlock.py",
    "tests/chaos/test_chaos_sql.py",
    "tests/stores/redis", "tests/stores/redis_cluster", "tests/stores/redlock",
    "tests/stores/zookeeper", "tests/stores/sql",
    "tests/api/guards", "tests/api/events", "tests/cli",
    "tests/lab/test_fault_proxy.py", "tests/lab/test_fault_proxy_lost_replies.py",
    "tests/lab/test_fault_proxy_users.py",
    "tests/lab/test_sql_servers.py", "tests/lab/test_zookeeper_server.py",
    "tests/meta/test_docs.py", "tests/meta/test_bench.py", "tests/meta/test_wheel.py",
]  # fmt: skip
COMPUTING = [
    "tests/core/test_law_in_every_store.py", "tests/api/test_keys.py",
    "tests/lab/test_simulation.py", "tests/lab/test_history.py", "tests/lab/test_redlock_model.py",
    "tests/lab/test_miniredis.py", "tests/lab/test_miniredis_lua.py",
    "tests/lab/test_miniredis_clock.py",
]  # fmt: skip

VOCABULARY = "tests/meta/test_vocabulary.py"
POLL = 0.2
LOW_PRIORITY = ["nice", "-n", "19"]
COVERAGE = [sys.executable, "-m", "coverage"]
PYTEST = [*COVERAGE, "run", "-m", "pytest", *sys.argv[1:]]


def in_parallel(workers: int) -> list[str]:
    """Options for so many workers; tests that share servers share a worker (tests/conftest.py)."""
    return ["-n", str(workers), "--dist", "loadscope"]


def without(*paths: str) -> list[str]:
    return [f"--ignore={path}" for path in paths]


# These run beside all stages but the first.
BACKGROUND: dict[str, list[str]] = {
    "tests that compute": [*LOW_PRIORITY, *PYTEST, "--timeout=1200", *in_parallel(2), *COMPUTING],
    "vocabulary": [*LOW_PRIORITY, sys.executable, "-m", "pytest", "--timeout=1200", VOCABULARY],
} | {
    f"simulation: {store}": [
        *(*LOW_PRIORITY, sys.executable, "-m", "lab.simulate"),
        *("--store", store, "--seeds", seeds),
    ]
    for store, seeds in SEEDS.items()
}  # fmt: skip
# Stages run one after the other; the commands of a stage run at the same time.
TESTS: list[dict[str, list[str]]] = [
    {"conformance": [*PYTEST, *in_parallel(8), CONFORMANCE]},
    {
        "tests with servers": [*PYTEST, *in_parallel(3), *WITH_SERVERS],
        "tests": [*PYTEST, *without(CONFORMANCE, VOCABULARY, *WITH_SERVERS, *COMPUTING)],
    },
]  # fmt: skip
REPORTS: list[dict[str, list[str]]] = [
    {"coverage data": [*COVERAGE, "combine", "--quiet"]},
    {
        "coverage of the deciding modules: 100 %": [
            *COVERAGE, "report", f"--include={WHOLE}", "--fail-under=100",
        ],
        "coverage of everything: 95 %": [*COVERAGE, "report", "--fail-under=95"],
    },
]  # fmt: skip


@dataclass
class Step:
    """One running command. The first of a stage prints live, the others when they end."""

    name: str
    command: list[str]
    output: IO[bytes] | None
    code: int | None = None
    seconds: float = 0.0

    def start(self) -> None:
        environment = dict(os.environ)
        # Without bytecode files each of the thousands of child processes would compile lockfast.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if "pytest" in self.command:
            environment["COVERAGE_PROCESS_START"] = str(ROOT / "pyproject.toml")
        if not self.output:
            print(f"\n=== {self.name}", flush=True)
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=environment, stdout=self.output, stderr=self.output
        )

    def ended(self) -> bool:
        """Note the exit code and the time as soon as the command has ended."""
        if self.code is None and (code := self.process.poll()) is not None:
            self.code, self.seconds = code, time.monotonic() - self.began
        return self.code is not None

    def show(self) -> None:
        if self.output:
            self.output.seek(0)
            text = self.output.read().decode(errors="replace")
            print(f"\n=== {self.name}\n{text}", end="", flush=True)
            self.output.close()


def started(stage: dict[str, list[str]], *, live: bool) -> list[Step]:
    """Start the commands of a stage; the first prints ``live``."""
    steps = [
        Step(name, command, None if live and not number else tempfile.TemporaryFile())  # noqa: SIM115
        for number, (name, command) in enumerate(stage.items())
    ]
    for step in steps:
        step.start()
    return steps


def finish(steps: list[Step]) -> None:
    """Wait for all commands, then print what they wrote."""
    while [step for step in steps if not step.ended()]:
        time.sleep(POLL)
    for step in steps:
        step.show()


def run(stages: list[dict[str, list[str]]], background: list[Step] | None = None) -> list[Step]:
    """Run stage after stage. Commands in the background are waited for with the last stage."""
    done: list[Step] = []
    for number, stage in enumerate(stages, 1):
        steps = started(stage, live=True)
        if number == len(stages):
            steps += background or []
        finish(steps)
        done += steps
    return done


def missing_servers() -> list[str]:
    lines = (ROOT / "lab/servers/needed").read_text().splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#")]
    return [name for name, _package in pairs if program(name) is None]


def main() -> int:
    # A shell that starts this in the background may have set both to "ignore", which the tested
    # programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    steps = run(TESTS[:1])
    background = started(BACKGROUND, live=False)
    steps += run(TESTS[1:], background)
    steps += run(REPORTS[:1])
    for torn in ROOT.glob(".coverage.*"):  # left by processes that the tests killed
        torn.unlink()
    steps += run(REPORTS[1:])
    print("\n=== summary")
    for step in steps:
        print(f"{'ok    ' if step.code == 0 else 'FAILED'}  {step.name} ({step.seconds:.0f} s)")
    failed = sum(step.code != 0 for step in steps)
    missing = missing_servers()
    if missing:
        print(f"\n!!! NOT TESTED: no {', '.join(missing)} on this machine. Run lab/servers/ensure")
        print("!!! as root, or install them; the stores that need them were left out.\n")
        failed += os.environ.get("CI") == "true"
    print(f"steps: {len(steps) - min(failed, len(steps))} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

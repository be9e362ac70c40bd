"""The benchmarks run and print. What they print is for people: no timing is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "bench" / "run.py"
CORE = [
    "blocking: cycle",
    "blocking: cycle with a listener",
    "blocking: cycle with client.lock(name)",
    "blocking: re-entry",
    "asyncio: cycle",
    "asyncio: cycle with client.lock(name)",
    "asyncio: re-entry",
]
# Of each section on a server, the lines that have a target.
SERVERS = {
    "redis": [
        "1 thread: with client.lock(name)",
        "1 thread: with client.lock(name)",
        "16 threads, a name each: together",
        "100 tasks, a name each: together",
    ],
    "redis_contended": [
        "200 wait: hand-overs",
        "200 wait: release→next p99",
        "200 wait: fairness",
        "200 wait: scripts per hand-over beside the claim",
        "200 wait: failed tries per hand-over",
        "two inside at once",
    ],
    "redis_idle": ["50 wait in one process: commands", "50 wait in one process: CPU"],
    "redis_keeper": [
        "threads for 10,000 leases",
        "CPU for 10,000 renewals",
        "lost meanwhile",
        "another's PING meanwhile, longest",
    ],
    "primitives": [
        "memory: read",
        "memory: write",
        "memory: a permit of 5",
        "Redis: read",
        "Redis: write",
        "Redis: a permit of 5",
        "multi-lock of 100 names",
        "64 readers, 4 writers: readers that overtook a writer",
    ],
    "zookeeper": ["1 thread: with client.lock(name)", "1 thread: with client.lock(name)"],
    "zookeeper_contended": [
        "10 wait: hand-overs",
        "10 wait: fairness",
        "50 wait: hand-overs",
        "50 wait: fairness",
        "requests per hand-over, 50 wait against 10",
        "two inside at once",
        "50 wait in a process, idle: requests",
    ],
    "redis_cluster": [
        "1 thread, one name",
        "1 thread, 300 names over all nodes",
        "1 task, one name",
    ],
    "redis_sentinel": ["1 thread: Sentinel", "100 tasks, a name each: Sentinel"],
    "sql_wakeups": [],
    "redis_names": ["20,000 names: keys without an end", "20,000 names: the latest end of a key"],
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Unmeasured: it takes long enough as it is.
    environment = {key: value for key, value in os.environ.items() if "COVERAGE" not in key}
    return subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
    )


def test_the_quick_core_benchmark_prints_its_table_and_writes_the_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    ended = run("--quick", "core", "--json", str(figures))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = ended.stdout.splitlines()
    assert any(line.split() == ["what", "value", "against", "ratio", "target"] for line in shown)
    for what in CORE:
        (line,) = [line for line in shown if line.startswith(f"{what}  ")]
        assert " µs " in line and line.endswith(("✓", "✗"))
    assert "Python" in shown[0] and "SQLite" in shown[0] and "cores" in shown[0]
    lines = json.loads(figures.read_text(encoding="utf-8"))["sections"]["core"]
    assert [line["what"] for line in lines] == CORE
    assert all(line["value"] > 0 for line in lines)


@pytest.mark.parametrize("section", SERVERS)
def test_the_quick_benchmarks_on_servers_start_a_server_and_print(
    section: str, tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    ended = run("--quick", section, "--json", str(figures))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = json.loads(figures.read_text(encoding="utf-8"))["sections"][section]
    assert [line["what"] for line in lines if line["target"]] == SERVERS[section]
    assert all(line["value"] >= 0 for line in lines)
    assert ended.stdout.count("✓") + ended.stdout.count("✗") >= len(SERVERS[section])


def test_a_section_that_does_not_exist_is_refused_with_those_that_do() -> None:
    ended = run("cores")
    assert ended.returncode == 2
    assert "no section 'cores': there are core, " in ended.stderr


@pytest.mark.parametrize("met", [True, False])
def test_check_fails_only_if_a_target_is_missed(met: bool) -> None:
    program = (
        "import sys; sys.argv = ['run.py', 'core', '--check']\n"
        f"sys.path.insert(0, {str(RUN.parent)!r})\n"
        "import run, sections.core\n"
        "from sections._line import at_most\n"
        f"sections.core.measure = lambda quick: [at_most(1, 'it', {0.5 if met else 2.0}, 's')]\n"
        "sys.exit(run.main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == (0 if met else 1), ended.stdout + ended.stderr

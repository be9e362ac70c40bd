"""The benchmarks run and print. What they print is for people: no timing is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.walk import Steps, walk
from lab.servers.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench" / "run.py"
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


def run(*arguments: str, program: Path = RUN) -> subprocess.CompletedProcess[str]:
    # Unmeasured: it takes long enough as it is.
    environment = {key: value for key, value in os.environ.items() if "COVERAGE" not in key}
    return subprocess.run(
        [sys.executable, str(program), *arguments],
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


def test_a_walk_counts_the_functions_of_a_cycle_and_of_a_hand_over() -> None:
    with RedisServer() as server:
        found = walk(server.url)
    for steps in (found.uncontended, found.handover, found.first_handover):
        assert 5 < len(steps.functions) < 200, steps.functions
        assert 3 < len(steps.files) < len(steps.functions)
        rooms = {file.rpartition("/")[0] for file in steps.files}
        assert {"sync", "core", "stores/redis"} <= rooms
        assert all((ROOT / "src" / "lockfast" / file).is_file() for file in steps.files)
    # Both the waiter's acquire and the holder's release are in it.
    assert len(found.uncontended.functions) < len(found.handover.functions)
    assert len(found.handover.functions) <= len(found.first_handover.functions)
    for verb in ("Lock.acquire", "Hold.release"):
        assert any(step.endswith(f" {verb}") for step in found.handover.functions)


def test_the_steps_of_a_walk_count_each_file_once() -> None:
    steps = Steps(("core/law.py grants", "core/law.py fits", "model.py Claim.size"))
    assert steps.files == ("core/law.py", "model.py")
    assert str(steps) == "2 files, 3 functions"


def test_the_cpu_time_of_two_source_trees_is_compared() -> None:
    trees = (str(ROOT), str(ROOT / "src"))
    ended = run("--rounds", "2", "--seconds", "0.05", *trees, program=ROOT / "bench" / "cpu.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line.rsplit(maxsplit=4) for line in ended.stdout.splitlines()[1:]]
    assert [row[0].split(",")[0] for row in rows] == ["Redis", "Redis", "SQLite", "memory"]
    for _, micros, ratio, *_ in rows:
        assert float(micros) > 0 and float(ratio) > 0


def test_a_folder_without_the_library_is_refused(tmp_path: Path) -> None:
    ended = run(str(tmp_path), str(ROOT), program=ROOT / "bench" / "cpu.py")
    assert ended.returncode == 1
    assert ended.stderr == f"{tmp_path}: contains no lockfast\n"

"""The benchmarks run and print. What they print is for people: no timing is asserted here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / "bench" / "run.py"
CORE = [
    "blocking: cycle",
    "blocking: cycle with client.lock(name)",
    "blocking: re-entry",
    "asyncio: cycle",
    "asyncio: cycle with client.lock(name)",
    "asyncio: re-entry",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
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

"""docs/operators.md agrees with the command: exit codes, tables and JSON fields."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.cli.main import VERBS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operators.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ (.*?)(?:    # exit (\d+))?$", "".join(BLOCKS), re.MULTILINE)
FENCE = "1763282507123456"
PATIENCE = 30.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Hold the name used on the page, with a waiter; yield the environment and the fence."""
    programs = tmp_path / "programs"
    programs.mkdir()
    command = programs / "lockfast"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lockfast "$@"\n')
    for script in (command, tmp_path / "report.sh"):
        if script is not command:
            script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
    environment = os.environ | {
        "LOCKFAST_URL": f"sqlite://{tmp_path}/locks.db",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    run = [sys.executable, "-m", "lockfast", "run", "nightly-report"]
    with lockfast.connect(environment["LOCKFAST_URL"]) as client:
        processes = []
        for label, count in (("import", "holders"), ("run sh", "waiters")):
            processes.append(
                subprocess.Popen([*run, "--label", label, "--", "sleep", "600"], env=environment)
            )
            until = time.monotonic() + PATIENCE
            while not getattr(client.inspect("nightly-report"), count):
                assert time.monotonic() < until
                time.sleep(0.02)
        yield environment, client.inspect("nightly-report").holders[0].fence
        for process in processes:
            process.terminate()
            process.wait(PATIENCE)


def ran(
    scene: tuple[dict[str, str], int], folder: Path, command: str
) -> subprocess.CompletedProcess[str]:
    environment, fence = scene
    return subprocess.run(
        ["bash", "-c", command.replace(FENCE, str(fence))],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def shape(document: Any) -> Any:
    """Fields and types of a JSON document."""
    if isinstance(document, dict):
        return {key: shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shape(value) for value in document]
    return type(document).__name__ if not isinstance(document, int | float) else "number"


EXITS = re.search(r"## Exit codes\n(.*?)(?:\n## |\Z)", PAGE, re.DOTALL)


def codes_of_the_page() -> dict[int, str]:
    """The verbs that may end with a code, by the code."""
    assert EXITS is not None
    rows = re.findall(r"^\| ([\d, ]+) \| .* \| (.*) \|$", EXITS[1], re.MULTILINE)
    return {int(code): verbs for codes, verbs in rows for code in codes.split(",")}


@pytest.mark.parametrize("verb", VERBS)
def test_the_exit_codes_in_the_help_of_a_verb_are_those_of_the_page(verb: str) -> None:
    command = [sys.executable, "-m", "lockfast", verb, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    section = text.partition("exit codes:\n")[2]
    codes = re.findall(r"^  ((?:\d+)(?:, \d+)*)  ", section, re.MULTILINE)
    documented = codes_of_the_page()
    found = [int(code) for each in codes for code in each.split(",")]
    assert {0, 2} <= set(found)
    for code in found:
        assert documented[code] == "all" or f"`{verb}`" in documented[code], code


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 12


def test_the_commands_on_the_page_have_the_documented_exit_codes(
    scene: tuple[dict[str, str], int], tmp_path: Path
) -> None:
    for command, code in sorted(COMMANDS, key=lambda pair: " break " in pair[0]):
        done = ran(scene, tmp_path, command)
        assert done.returncode == int(code or 0), (command, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stderr == "" or code, command


def test_the_tables_on_the_page_have_the_real_columns(
    scene: tuple[dict[str, str], int], tmp_path: Path
) -> None:
    for block in BLOCKS:
        (command, *lines) = block.splitlines()
        titles = [line.split() for line in lines if re.match(r" *[A-Z]{4,}\b", line)]
        if titles:
            output = ran(scene, tmp_path, command.removeprefix("$ ")).stdout.splitlines()
            real = [line.split() for line in output if re.match(r" *[A-Z]{4,}\b", line)]
            assert real == titles


def test_the_json_fields_on_the_page_are_the_real_ones(
    scene: tuple[dict[str, str], int], tmp_path: Path
) -> None:
    (written,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    real = json.loads(ran(scene, tmp_path, "lockfast show nightly-report --json").stdout)
    assert shape(real) == shape(json.loads(written))
    listed = json.loads(ran(scene, tmp_path, "lockfast ls --json").stdout)
    assert [*listed] == ["store", "at", "left_out", "names"]
    del real["store"]
    assert shape(listed["names"]) == [shape(real)]
    watched = ran(scene, tmp_path, "timeout 2 lockfast watch nightly-report --json").stdout
    judged = json.loads(ran(scene, tmp_path, "lockfast doctor --json").stdout)
    documents = [*map(json.loads, watched.splitlines()), judged, *judged["checks"]]
    assert len(documents) > 5
    for field in {field for document in documents for field in document}:
        assert f"`{field}`" in PAGE, field

"""The wheel holds the library and nothing of the laboratory."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 33_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a freshly built wheel, by name."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = folder.glob("lockfast-*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_wheel_holds_only_the_package_and_its_metadata(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"lockfast", next(top for top in tops if top.endswith(".dist-info"))}
    assert {Path(name).suffix for name in wheel if name.startswith("lockfast/")} == {
        ".lua", ".py", ".typed",
    }  # fmt: skip


def test_the_wheel_has_the_kit_and_the_fixtures_but_no_laboratory(wheel):
    testing = {name for name in wheel if name.startswith("lockfast/testing/")}
    assert testing == {
        "lockfast/testing/__init__.py",
        "lockfast/testing/fixtures.py",
        "lockfast/testing/kit.py",
    }
    (entry_points,) = (text for name, text in wheel.items() if name.endswith("entry_points.txt"))
    assert "[pytest11]\nlockfast = lockfast.testing.fixtures" in entry_points


def test_the_wheel_stays_small(wheel):
    lines = sum(text.count("\n") for name, text in wheel.items() if name.startswith("lockfast/"))
    assert lines <= MOST_LINES


def test_nothing_in_the_wheel_imports_a_test_tool(wheel):
    for name, text in wheel.items():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                modules = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                for module in modules:
                    assert module.split(".")[0] not in ("unittest", "lab", "hypothesis"), name
                    assert module != "pytest" or name == "lockfast/testing/fixtures.py", name

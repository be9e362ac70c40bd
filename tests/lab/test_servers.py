"""Installation of the real servers, and the report where it is not allowed."""

from __future__ import annotations

import os
import subprocess
from glob import glob
from pathlib import Path

import pytest

import run_all
from lab.servers.programs import program

ENSURE = Path(__file__).resolve().parents[2] / "lab" / "servers" / "ensure"


def ensure(needed: str, tmp_path: Path, user: str) -> subprocess.CompletedProcess[str]:
    """Run `ensure` on this list as this user, with an apt-get that only records its arguments."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (("id", f"echo {user}"), ("apt-get", f'echo "$@" >>{tmp_path}/asked')):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "needed").write_text(needed)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", str(ENSURE), str(tmp_path / "needed")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_present_program_is_not_installed_again(tmp_path):
    done = ensure("# program package\nsh dash\n", tmp_path, user="0")
    assert done.returncode == 0 and done.stderr == ""
    assert not (tmp_path / "asked").exists()


def test_without_root_missing_packages_are_reported(tmp_path):
    done = ensure("sh dash\nno-such-server some-package\n", tmp_path, user="1000")
    assert done.returncode == 0 and "missing some-package" in done.stderr
    assert not (tmp_path / "asked").exists()


def test_a_jar_is_found_in_the_folder_of_java(tmp_path):
    needed = "no-such.jar some-package\n"
    present = next(iter(sorted(Path("/usr/share/java").glob("*.jar"))), None)
    if present is not None:
        needed += f"{present.name} present\n"
        assert program(present.name) == str(present)
    done = ensure(needed, tmp_path, user="1000")
    assert "missing some-package:" in done.stderr and program("no-such.jar") is None


@pytest.mark.skipif(not glob("/usr/lib/postgresql/*/bin/postgres"), reason="not Debian's")
def test_programs_that_debian_keeps_off_the_path_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = program("postgres")
    assert found is not None and found.startswith("/usr/lib/postgresql/")
    assert "postgres" not in run_all.missing_servers()
    done = ensure("postgres postgresql\n", tmp_path, user="0")
    assert done.returncode == 0 and not (tmp_path / "asked").exists()


@pytest.mark.parametrize("ci, failed", [("true", 1), ("", 0)])
def test_a_missing_server_is_reported_and_fails_only_in_ci(ci, failed, monkeypatch, capsys):
    monkeypatch.setenv("CI", ci)
    for steps in ("BACKGROUND", "TESTS", "REPORTS"):
        monkeypatch.setattr(run_all, steps, type(getattr(run_all, steps))())
    monkeypatch.setattr(run_all, "missing_servers", lambda: ["some-server"])
    monkeypatch.setattr(run_all, "ROOT", Path("/nonexistent"))
    assert run_all.main() == failed
    assert "NOT TESTED: no some-server" in capsys.readouterr().out

"""`lockfast run`: the command, its exit code, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_processes import (
    LOCKFAST,
    PATIENCE,
    Start,
    error_line,
    line,
    run,
    wait_until,
)

import lockfast


def test_the_command_gets_name_and_fence_and_its_exit_code_is_returned(url: str) -> None:
    done = run("run", "job", "--", "sh", "-c", "echo $LOCKFAST_NAME $LOCKFAST_FENCE; exit 3")
    name, fence = done.stdout.split()
    assert (name, done.returncode, done.stderr) == ("job", 3, "")
    assert int(fence) > 0


def test_a_command_that_died_by_a_signal_gives_128_plus_its_number(url: str) -> None:
    assert run("run", "job", "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_the_command_gets_its_arguments_and_descriptors_unchanged(url: str, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("through an inherited descriptor")
    with open(tmp_path / "input") as inherited:
        fd = inherited.fileno()
        arguments = ["--", "--timeout", "--", "", "a b", "$x"]
        script = f'cat /dev/fd/{fd}; printf "[%s]" "$@"'
        done = run("run", "job", "--", "sh", "-c", script, *arguments, pass_fds=[fd])
    assert done.stdout == "through an inherited descriptor[--timeout][--][][a b][$x]"


def test_a_busy_lock_gives_75_and_names_the_holder(start: Start) -> None:
    holder = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo started; cat")
    assert line(holder) == "started"
    done = run("run", "job", "--timeout", "0.1", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    assert f"pid {holder.pid}, MainThread (run sh)" in error_line(done)
    holder.communicate("", timeout=PATIENCE)
    assert run("run", "job", "--timeout", "0.1", "--", "echo", "now").stdout == "now\n"


def test_another_namespace_is_another_lock(start: Start) -> None:
    holder = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo started; cat")
    assert line(holder) == "started"
    done = run("run", "job", "--timeout", "0", "--namespace", "other", "--", "echo", "other")
    assert done.stdout == "other\n"


def test_the_command_of_a_granted_waiter_starts_with_a_full_lease(
    start: Start, client: lockfast.Client
) -> None:
    # A granted waiter has a short first lease, which must not be mistaken for failed renewals.
    with client.lock("job"):
        waiter = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "sleep 1; echo ok")
        wait_until(lambda: client.inspect("job").waiters, "no waiter")
    assert waiter.communicate(timeout=PATIENCE) == ("ok\n", "")
    assert waiter.returncode == 0


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (127, ["run", "job", "--", "no-such-command"]),
        (127, ["run", "job", "--", "./no-such-command"]),
        (126, ["run", "job", "--", "/etc/passwd"]),
        (126, ["run", "job", "--", "/etc/"]),
        (2, ["run", "", "--", "echo", "never"]),
        (2, ["run", "job", "--url", "rediss//oops", "--", "echo", "never"]),
        (2, ["run", "job", "--namespace", "a b", "--", "echo", "never"]),
        (2, ["run", "job", "--lease", "0.5", "--", "echo", "never"]),
        (2, ["run", "job", "--lease", "nan", "--", "echo", "never"]),
        (2, ["run", "job", "--timeout", "-1", "--", "echo", "never"]),
        (2, ["run", "job", "--timeout", "soon", "--", "echo", "never"]),
        (2, ["run", "job", "--"]),
        (2, ["run", "job"]),
        (2, ["run"]),
        (2, ["demo", "--seconds", "0"]),
        (2, []),
        (69, ["run", "job", "--url", "sqlite:///dev/null/locks.db", "--", "echo", "never"]),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(url: str, code: int, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    error_line(done)


def test_a_file_that_is_not_a_database_gives_69(url: str, tmp_path: Path) -> None:
    (tmp_path / "locks.db").write_text("a text file, and not a database at all " * 20)
    done = run("run", "job", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (69, "")
    error_line(done)


def test_a_file_that_cannot_be_executed_gives_126(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF but not really")
    program.chmod(0o755)
    done = run("run", "job", "--", program)
    assert done.returncode == 126
    error_line(done)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"]])
def test_version_and_help_are_printed_on_stdout(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("lockfast run NAME" if arguments[0] == "run" else "lockfast") in done.stdout

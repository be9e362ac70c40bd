"""`lockfast run`: the command, its exit code, and what cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_processes import (
    LOCKFAST,
    PATIENCE,
    Start,
    line,
    one_complaint,
    run,
    wait_until,
)

import lockfast


def test_the_command_gets_name_and_fence_and_its_exit_code_is_ours(url: str) -> None:
    done = run("run", "job", "--", "sh", "-c", "echo $LOCKFAST_NAME $LOCKFAST_FENCE; exit 3")
    name, fence = done.stdout.split()
    assert (name, done.returncode, done.stderr) == ("job", 3, "")
    assert int(fence) > 0


def test_a_command_that_died_by_a_signal_gives_128_and_its_number(url: str) -> None:
    assert run("run", "job", "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_the_command_has_the_arguments_and_descriptors_as_they_were_given(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "given").write_text("through an inherited descriptor")
    with open(tmp_path / "given") as given:
        words = ["--", "--timeout", "--", "", "a b", "$x"]
        script = f'cat /dev/fd/{given.fileno()}; printf "[%s]" "$@"'
        done = run("run", "job", "--", "sh", "-c", script, *words, pass_fds=[given.fileno()])
    assert done.stdout == "through an inherited descriptor[--timeout][--][][a b][$x]"


def test_a_busy_lock_gives_75_and_names_the_holder(start: Start) -> None:
    holder = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo started; cat")
    assert line(holder) == "started"
    done = run("run", "job", "--timeout", "0.1", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    assert f"pid {holder.pid}, MainThread (run sh)" in one_complaint(done)
    holder.communicate("", timeout=PATIENCE)
    assert run("run", "job", "--timeout", "0.1", "--", "echo", "now").stdout == "now\n"


def test_another_namespace_is_another_lock(start: Start) -> None:
    holder = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo started; cat")
    assert line(holder) == "started"
    done = run("run", "job", "--timeout", "0", "--namespace", "other", "--", "echo", "other")
    assert done.stdout == "other\n"


def test_a_lock_that_was_handed_over_begins_with_a_whole_lease(
    start: Start, client: lockfast.Client
) -> None:
    # The store gives it a short first one, which must not be taken for one that is not renewed.
    with client.lock("job"):
        waiter = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "sleep 1; echo ok")
        wait_until(lambda: client.inspect("job").waiters, "nobody waits")
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
        (2, ["run", "job", "echo", "never"]),
        (2, ["run"]),
        (2, ["demo", "--seconds", "0"]),
        (2, []),
        (69, ["run", "job", "--url", "sqlite:///dev/null/locks.db", "--", "echo", "never"]),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    url: str, code: int, arguments: list[str]
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    one_complaint(done)


def test_a_store_that_is_none_gives_69(url: str, tmp_path: Path) -> None:
    (tmp_path / "locks.db").write_text("a letter to a friend, which is no database at all " * 20)
    done = run("run", "job", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (69, "")
    one_complaint(done)


def test_a_file_that_is_no_program_after_all_gives_126(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF but not really")
    program.chmod(0o755)
    done = run("run", "job", "--", program)
    assert done.returncode == 126
    one_complaint(done)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"]])
def test_version_and_help_are_told_on_stdout(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("lockfast run NAME" if words[0] == "run" else "lockfast") in done.stdout

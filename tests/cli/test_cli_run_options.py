"""`lockfast run`: semaphores, readers and writers, --skip, --max-hold, and the status line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, error_line, line, run, wait_until
from cli_terminal import Terminal

import lockfast

HELD = ("--", "sh", "-c", "echo started; cat")


def hold(start: Start, *arguments: str) -> None:
    assert line(start(*LOCKFAST, "run", *arguments, *HELD)) == "started"


def test_a_semaphore_limits_the_commands_that_run_at_a_time(start: Start) -> None:
    for _ in range(2):
        hold(start, "pool", "--semaphore", "2")
    third = ("run", "pool", "--timeout", "0", "--", "echo", "never")
    busy = run(*third[:2], "--semaphore", "2", *third[2:])
    assert (busy.returncode, busy.stdout) == (75, "")
    differs = run(*third)
    assert differs.returncode == 2 and "semaphore of 2" in error_line(differs)


def test_readers_run_together_and_exclude_a_writer(start: Start) -> None:
    hold(start, "config", "--read")
    assert run("run", "config", "--read", "--", "echo", "too").stdout == "too\n"
    writer = run("run", "config", "--write", "--timeout", "0", "--", "echo", "never")
    assert (writer.returncode, writer.stdout) == (75, "")


def test_skip_exits_0_without_output_if_the_lock_is_held(start: Start) -> None:
    skipped = ("run", "job", "--skip", "--", "echo", "ran")
    assert run(*skipped).stdout == "ran\n"
    hold(start, "job")
    done = run(*skipped)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with Terminal(*skipped) as terminal:
        assert terminal.end() == 0 and "skipped: 'job' was not acquired" in terminal.text


def test_a_label_is_shown_to_operators(start: Start, client: lockfast.Client) -> None:
    hold(start, "job", "--label", "nightly")
    assert client.inspect("job").holders[0].who.label == "nightly"
    busy = run("run", "job", "--timeout", "0", "--", "true")
    assert "(nightly)" in error_line(busy)


def test_a_hostile_label_does_not_reach_the_terminal(start: Start) -> None:
    hold(start, "job", "--label", "\x1b[2J\x9b")
    assert "\\x1b[2J\\u009b" in error_line(run("run", "job", "--timeout", "0", "--", "true"))


def test_max_hold_stops_the_command(url: str) -> None:
    done = run("run", "job", "--max-hold", "1.2", "--", "sh", "-c", "echo began; sleep 60")
    assert (done.returncode, done.stdout) == (76, "began\n")
    assert "--max-hold" in error_line(done)


@pytest.mark.parametrize(
    "options",
    [
        ["--semaphore", "0"],
        ["--semaphore", "many"],
        ["--semaphore", "2", "--read"],
        ["--read", "--write"],
        ["--max-hold", "0.5"],
        ["--max-hold", "nan"],
        ["--label"],
    ],
)
def test_an_invalid_option_is_reported_in_one_line(url: str, options: list[str]) -> None:
    done = run("run", "job", *options, "--", "echo", "never")
    assert (done.returncode, done.stdout) == (2, "")
    error_line(done)


def test_the_status_line_shows_the_holder_and_the_queue_position(
    start: Start, client: lockfast.Client
) -> None:
    held = client.lock("job", label="import").acquire()
    first = start(*LOCKFAST, "run", "job", "--", "true")
    wait_until(lambda: client.inspect("job").waiters, "no waiter")
    with Terminal("run", "job", "--", "echo", "mine") as terminal:
        text = terminal.wait_for("(import)")
        assert re.search(r"waiting for job, position 2 of 2: held for \d+\.\d s by ", text)
        assert "\n" not in terminal.text, "the line is not redrawn in place"
        held.release()
        terminal.wait_for("\r\x1b[Kmine")  # erased before the command prints anything
        assert terminal.end() == 0
        assert terminal.text.endswith("mine\r\n")
    assert first.communicate(timeout=PATIENCE) == ("", "")  # no terminal: no output


def test_the_status_line_reports_that_the_store_does_not_answer(
    url: str, new_redis: Callable[..., Any]
) -> None:
    server = new_redis()
    with lockfast.connect(server.url) as client:
        hold = client.lock("job").acquire()
        with Terminal("run", "job", "--url", server.url, "--", "echo", "mine") as terminal:
            terminal.wait_for("waiting for job, position 1 of 1")
            server.kill()
            terminal.wait_for("waiting: the store does not answer")
            server.start()  # empty
            terminal.wait_for("mine")
            assert terminal.end() == 0
        with contextlib.suppress(lockfast.LockfastError):
            hold.release()


def test_ctrl_c_while_waiting_erases_the_status_line_and_leaves_the_queue(
    client: lockfast.Client,
) -> None:
    with client.lock("job"), Terminal("run", "job", "--", "true") as terminal:
        terminal.wait_for("waiting for job")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert terminal.text.endswith("\r\x1b[K")
        assert "Traceback" not in terminal.text
        assert not client.inspect("job").waiters


def test_no_status_line_is_shown_if_the_lock_is_free(url: str) -> None:
    with Terminal("run", "job", "--", "echo", "mine") as terminal:
        assert terminal.end() == 0
        assert terminal.text == "mine\r\n"

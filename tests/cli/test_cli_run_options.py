"""`lockfast run`: more than one at a time, readers and writers, skipping, an end after all, and
what a person sees while it waits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, line, one_complaint, run, wait_until
from cli_terminal import Terminal

import lockfast

HELD = ("--", "sh", "-c", "echo started; cat")


def hold(start: Start, *words: str) -> None:
    assert line(start(*LOCKFAST, "run", *words, *HELD)) == "started"


def test_a_semaphore_lets_so_many_run_and_no_more(start: Start) -> None:
    for _ in range(2):
        hold(start, "pool", "--semaphore", "2")
    third = ("run", "pool", "--timeout", "0", "--", "echo", "never")
    busy = run(*third[:2], "--semaphore", "2", *third[2:])
    assert (busy.returncode, busy.stdout) == (75, "")
    differs = run(*third)
    assert differs.returncode == 2 and "semaphore of 2" in one_complaint(differs)


def test_readers_run_together_and_a_writer_alone(start: Start) -> None:
    hold(start, "config", "--read")
    assert run("run", "config", "--read", "--", "echo", "too").stdout == "too\n"
    alone = run("run", "config", "--write", "--timeout", "0", "--", "echo", "never")
    assert (alone.returncode, alone.stdout) == (75, "")


def test_skip_ends_with_0_and_without_a_word_if_it_is_busy(start: Start) -> None:
    skipped = ("run", "job", "--skip", "--", "echo", "ran")
    assert run(*skipped).stdout == "ran\n"
    hold(start, "job")
    done = run(*skipped)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with Terminal(*skipped) as terminal:
        assert terminal.end() == 0 and "skipped: 'job' was not acquired" in terminal.text


def test_a_label_is_what_operators_see(start: Start, client: lockfast.Client) -> None:
    hold(start, "job", "--label", "nightly")
    assert client.inspect("job").holders[0].who.label == "nightly"
    busy = run("run", "job", "--timeout", "0", "--", "true")
    assert "(nightly)" in one_complaint(busy)


def test_a_hostile_label_does_not_reach_the_terminal(start: Start) -> None:
    hold(start, "job", "--label", "\x1b[2J\x9b")
    assert "\\x1b[2J\\u009b" in one_complaint(run("run", "job", "--timeout", "0", "--", "true"))


def test_max_hold_stops_the_command_before_it_is_over(url: str) -> None:
    done = run("run", "job", "--max-hold", "1.2", "--", "sh", "-c", "echo began; sleep 60")
    assert (done.returncode, done.stdout) == (76, "began\n")
    assert "--max-hold" in one_complaint(done)


@pytest.mark.parametrize(
    "words",
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
def test_options_that_cannot_be_meant_are_one_line(url: str, words: list[str]) -> None:
    done = run("run", "job", *words, "--", "echo", "never")
    assert (done.returncode, done.stdout) == (2, "")
    one_complaint(done)


def test_who_waits_on_a_terminal_sees_the_holder_and_its_own_place(
    start: Start, client: lockfast.Client
) -> None:
    held = client.lock("job", label="import").acquire()
    first = start(*LOCKFAST, "run", "job", "--", "true")
    wait_until(lambda: client.inspect("job").waiters, "nobody waits")
    with Terminal("run", "job", "--", "echo", "mine") as terminal:
        told = terminal.wait_for("(import)")
        assert re.search(r"waiting for job, place 2 of 2: held for \d+\.\d s by ", told)
        assert "\n" not in terminal.text, "it is one line, kept in its place"
        held.release()
        terminal.wait_for("\r\x1b[Kmine")  # wiped away before the command says anything
        assert terminal.end() == 0
        assert terminal.text.endswith("mine\r\n")
    assert first.communicate(timeout=PATIENCE) == ("", "")  # no terminal: not a word


def test_who_waits_on_a_terminal_is_told_that_the_store_is_away(
    url: str, new_redis: Callable[..., Any]
) -> None:
    server = new_redis()
    with lockfast.connect(server.url) as client:
        hold = client.lock("job").acquire()
        with Terminal("run", "job", "--url", server.url, "--", "echo", "mine") as terminal:
            terminal.wait_for("waiting for job, place 1 of 1")
            server.kill()
            terminal.wait_for("waiting: the store does not answer")
            server.start()  # and has forgotten all
            terminal.wait_for("mine")
            assert terminal.end() == 0
        with contextlib.suppress(lockfast.LockfastError):
            hold.release()


def test_ctrl_c_while_it_waits_wipes_the_line_and_leaves_the_queue(
    client: lockfast.Client,
) -> None:
    with client.lock("job"), Terminal("run", "job", "--", "true") as terminal:
        terminal.wait_for("waiting for job")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert terminal.text.endswith("\r\x1b[K")
        assert "Traceback" not in terminal.text
        assert not client.inspect("job").waiters


def test_who_gets_it_at_once_sees_no_line(url: str) -> None:
    with Terminal("run", "job", "--", "echo", "mine") as terminal:
        assert terminal.end() == 0
        assert terminal.text == "mine\r\n"

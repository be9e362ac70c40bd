"""`lockfast run`: which process gets a signal, how often, and what is left behind."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from cli_processes import (
    LOCKFAST,
    ON_A_TERMINAL,
    PATIENCE,
    Start,
    is_alive,
    is_silent,
    line,
    wait_until,
    waiters,
)

import lockfast


def test_signals_are_forwarded_once(start: Start) -> None:
    names = ("USR1", "HUP", "INT", "QUIT", "USR2")
    traps = "; ".join(f"trap 'echo {name}' {name}" for name in names)
    script = f"{traps}; trap 'echo TERM; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    runner = start(*LOCKFAST, "run", "job", "--", "sh", "-c", script)
    assert line(runner) == "ready"
    for name in names:
        runner.send_signal(signal.Signals[f"SIG{name}"])
        assert line(runner) == name
    assert is_silent(runner, 0.1)
    runner.send_signal(signal.SIGTERM)
    assert runner.communicate(timeout=PATIENCE)[0] == "TERM\n"
    assert runner.returncode == 7


def test_a_signal_that_ends_the_command_ends_lockfast_with_its_code(
    start: Start, client: lockfast.Client
) -> None:
    runner = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo ready; exec sleep 60")
    assert line(runner) == "ready"
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(PATIENCE) == 143
    assert client.lock("job").try_acquire() is not None


def test_after_sigterm_the_lock_is_kept_until_the_last_process_of_the_command_has_ended(
    start: Start, client: lockfast.Client
) -> None:
    # The foreground shell dies at once. The background one ends when it reads a line.
    trap = "trap 'echo winding up; read go <&3; echo ended; exit' TERM"
    script = f"exec 3<&0; ({trap}; echo ready; while :; do sleep 0.05; done) & wait"
    runner = start(*LOCKFAST, "run", "job", "--", "sh", "-c", script)
    assert line(runner) == "ready"
    runner.send_signal(signal.SIGTERM)
    assert line(runner) == "winding up"
    assert client.lock("job").try_acquire(timeout=0.3) is None
    assert runner.communicate("go\n", timeout=PATIENCE)[0] == "ended\n"
    assert runner.returncode == 143
    assert client.lock("job").try_acquire() is not None


def test_a_background_process_of_the_command_does_not_keep_the_lock(
    start: Start, client: lockfast.Client
) -> None:
    runner = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "sleep 60 >&- 2>&- & echo $!")
    left_behind = int(line(runner))
    try:
        assert runner.wait(PATIENCE) == 0
        assert is_alive(left_behind)
        assert client.lock("job").try_acquire() is not None
    finally:
        os.kill(left_behind, signal.SIGKILL)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_waiting_leaves_nothing_behind(
    start: Start, client: lockfast.Client, url: str, signum: int, code: int
) -> None:
    with client.lock("job"):
        runner = start(*LOCKFAST, "run", "job", "--", "echo", "never")
        wait_until(lambda: client.inspect("job").waiters, "no waiter")
        runner.send_signal(signum)
        assert runner.communicate(timeout=PATIENCE) == ("", "")
        assert runner.returncode == code
        assert not waiters(url)


def test_a_signal_that_was_ignored_stays_ignored(start: Start) -> None:
    script = "trap '' HUP; exec \"$@\""
    inner = "echo ready; read line; echo $line"
    runner = start("sh", "-c", script, "sh", *LOCKFAST, "run", "job", "--", "sh", "-c", inner)
    assert line(runner) == "ready"
    runner.send_signal(signal.SIGHUP)
    assert runner.communicate("alive\n", timeout=PATIENCE) == ("alive\n", "")


def test_ctrl_c_in_a_terminal_reaches_the_command_once(start: Start) -> None:
    script = "n=0; trap 'n=$((n+1)); echo INT$n' INT; echo ready; while :; do sleep 0.02; done"
    terminal = start(*ON_A_TERMINAL, *LOCKFAST, "run", "job", "--", "sh", "-c", script)
    assert line(terminal) == "ready"
    assert terminal.stdin is not None
    for count in (1, 2):
        terminal.stdin.write("\x03")
        terminal.stdin.flush()
        assert line(terminal).removeprefix("^C") == f"INT{count}"
        assert is_silent(terminal, 0.3)


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux can kill the child of a dead parent"
)
def test_a_killed_runner_takes_the_command_with_it(start: Start, client: lockfast.Client) -> None:
    runner = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo $$; exec sleep 60")
    command = int(line(runner))
    assert is_alive(command)
    runner.kill()
    wait_until(lambda: not is_alive(command), "the command goes on without the lock")
    assert client.lock("job").try_acquire(timeout=PATIENCE) is not None

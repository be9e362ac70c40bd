"""`lockfast run`: the command is stopped before its lease expires."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_processes import (
    LOCKFAST,
    ON_A_TERMINAL,
    PATIENCE,
    Start,
    line,
    run,
    wait_until,
)

import lockfast

WORK = "echo ready; sleep 60"

# Two processes that ignore SIGTERM; the child records when it was last alive, on a clock that all
# processes share.
STUBBORN = """
import os, signal, sys, time
from lockfast import clock
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os.wait()
print("ready", flush=True)
while True:
    with open(sys.argv[1] + ".new", "w") as beat:
        beat.write(str(clock.now()))
    os.replace(beat.name, sys.argv[1])  # atomic, so it is whole when we are killed
    time.sleep(0.01)
"""


@contextlib.contextmanager
def store_blocked(url: str) -> Iterator[float]:
    """Keep a transaction open, so that renewals fail; yield when the lease ends."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite://"), timeout=10)) as store:
        store.isolation_level = None
        store.execute("BEGIN IMMEDIATE")
        ((ends,),) = store.execute("SELECT ends FROM holds")
        yield ends
        store.execute("ROLLBACK")


@pytest.mark.parametrize("where", [[], ON_A_TERMINAL], ids=["no terminal", "terminal"])
def test_a_hold_that_cannot_be_renewed_stops_the_command_before_the_lease_expires(
    start: Start, url: str, tmp_path: Path, where: list[str]
) -> None:
    lease, beat = 4.0, tmp_path / "beat"
    stubborn = [sys.executable, "-c", STUBBORN, beat]
    runner = start(*where, *LOCKFAST, "run", "job", "--lease", lease, "--", *stubborn)
    assert line(runner) == "ready"
    wait_until(beat.exists, "no beat")
    with store_blocked(url) as ends:
        output = "".join(runner.communicate(timeout=PATIENCE))
    assert runner.returncode == 76
    assert "the hold on 'job'" in output
    assert "could not be renewed in time: the command was stopped" in output
    assert "Traceback" not in output
    last_beat = float(beat.read_text())
    assert last_beat < ends - 0.1
    assert last_beat > ends - lease / 2, "stopped although there was time to renew"


def test_a_hold_that_is_broken_stops_the_command(start: Start, client: lockfast.Client) -> None:
    runner = start(
        *LOCKFAST, "run", "job", "--lease", "3", "--", "sh", "-c", "echo ready; sleep 60"
    )
    assert line(runner) == "ready"
    (holder,) = client.inspect("job").holders
    assert client.break_hold("job", holder.fence)
    _, error = runner.communicate(timeout=PATIENCE)
    assert runner.returncode == 76
    assert "was lost" in error


def test_a_process_stopped_past_its_lease_stops_the_command_when_it_continues(
    start: Start, client: lockfast.Client
) -> None:
    runner = start(
        *LOCKFAST, "run", "job", "--lease", "1", "--", "sh", "-c", "echo ready; sleep 60"
    )
    assert line(runner) == "ready"
    runner.send_signal(signal.SIGSTOP)
    with client.lock("job", timeout=PATIENCE):
        runner.send_signal(signal.SIGCONT)
        assert runner.wait(PATIENCE) == 76


def test_a_failed_release_is_reported_and_the_exit_code_is_the_commands(url: str) -> None:
    breaks = (
        "import lockfast, os\n"
        "with lockfast.connect() as client:\n"
        "    client.break_hold('job', int(os.environ['LOCKFAST_FENCE']))\n"
        "os._exit(5)"
    )
    done = run("run", "job", "--", sys.executable, "-c", breaks)
    assert done.returncode == 5
    assert "lockfast: the hold on 'job'" in done.stderr
    assert "Traceback" not in done.stderr

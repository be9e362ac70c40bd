"""`lockfast watch` as a process: its lines, how it ends, and a store outage."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, error_line, line, run
from cli_terminal import Terminal

import lockfast


def test_a_line_is_printed_for_each_event(start: Start, client: lockfast.Client) -> None:
    watch = start(*LOCKFAST, "watch", "job")
    assert line(watch).endswith("free      no holders, no waiters")
    with client.lock("job", label="\x1b[2J") as hold:
        text = line(watch)
        assert "acquired  " in text and f"(\\x1b[2J), fence {hold.fence}" in text
    assert "(released, broken, or its process died)" in line(watch)


def test_json_is_a_document_on_each_line(start: Start, client: lockfast.Client) -> None:
    with client.lock("job", label="import") as hold:
        watch = start(*LOCKFAST, "watch", "job", "--json")
        first = json.loads(line(watch))
        assert (first["event"], first["holder"]["fence"]) == ("holds", hold.fence)
        assert first["name"] == "job" and first["holder"]["label"] == "import"
    ended = json.loads(line(watch))
    assert (ended["event"], ended["how"], ended["previous"]["fence"]) == (
        *("ended", "ended"),
        hold.fence,
    )


def test_an_expired_lease_is_reported_as_lapsed(start: Start, client: lockfast.Client) -> None:
    watch = start(*LOCKFAST, "watch", "job", "--json")
    assert json.loads(line(watch))["event"] == "free"
    hold = client.lock("job", lease=1.5).acquire()
    assert json.loads(line(watch))["event"] == "acquired"
    assert json.loads(line(watch))["event"] == "lapsed"
    with pytest.raises(lockfast.HoldLost):
        hold.release()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_watch_without_output(start: Start, signum: int, code: int) -> None:
    watch = start(*LOCKFAST, "watch", "job")
    line(watch)
    watch.send_signal(signum)
    assert watch.communicate(timeout=PATIENCE) == ("", "")
    assert watch.returncode == code


def test_a_closed_pipe_ends_watch_although_nothing_happens(url: str) -> None:
    command = f"{' '.join(LOCKFAST)} watch job | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.endswith("no holders, no waiters\n")


def test_ctrl_c_ends_watch(url: str) -> None:
    with Terminal("watch", "job") as terminal:
        terminal.wait_for("no holders, no waiters")
        terminal.type("\x03")
        assert terminal.end() == 130 and "Traceback" not in terminal.text


def test_a_store_outage_and_its_end_are_reported_in_one_line_each(
    start: Start, new_redis: Callable[..., Any]
) -> None:
    server = new_redis()
    with lockfast.connect(server.url) as client:
        watch = start(*LOCKFAST, "watch", "job", "--json", "--url", server.url)
        assert json.loads(line(watch))["event"] == "free"
        server.kill()
        assert watch.stderr is not None
        assert "still trying" in watch.stderr.readline()
        server.start()
        assert watch.stderr.readline() == "lockfast: the store answers again\n"
        with client.lock("job", timeout=PATIENCE) as hold:
            event = json.loads(line(watch))
            assert (event["event"], event["holder"]["fence"]) == ("acquired", hold.fence)
        assert watch.poll() is None
        watch.terminate()
        assert watch.communicate(timeout=PATIENCE)[1] == ""


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ["watch"]),
        (2, ["watch", ""]),
        (69, ["watch", "job", "--url", "redis://:sesame@127.0.0.1:1/0"]),
    ],
)
def test_an_error_is_one_line(url: str, code: int, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert "sesame" not in error_line(done)

"""`lockfast watch` as a process: its lines, its ends, and a store that goes away."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cli_processes import LOCKFAST, PATIENCE, Start, line, one_complaint, run
from cli_terminal import Terminal

import lockfast


def test_lines_come_as_it_happens(start: Start, client: lockfast.Client) -> None:
    watch = start(*LOCKFAST, "watch", "job")
    assert line(watch).endswith("free      nobody holds it or waits")
    with client.lock("job", label="\x1b[2J") as hold:
        told = line(watch)
        assert "acquired  " in told and f"(\\x1b[2J), fence {hold.fence}" in told
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


def test_a_lease_that_runs_out_is_told_as_a_loss(start: Start, client: lockfast.Client) -> None:
    watch = start(*LOCKFAST, "watch", "job", "--json")
    assert json.loads(line(watch))["event"] == "free"
    hold = client.lock("job", lease=1.5).acquire()
    assert json.loads(line(watch))["event"] == "acquired"
    assert json.loads(line(watch))["event"] == "lapsed"
    with pytest.raises(lockfast.HoldLost):
        hold.release()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_a_word(start: Start, signum: int, code: int) -> None:
    watch = start(*LOCKFAST, "watch", "job")
    line(watch)
    watch.send_signal(signum)
    assert watch.communicate(timeout=PATIENCE) == ("", "")
    assert watch.returncode == code


def test_a_reader_that_goes_away_ends_it_though_nothing_happens(url: str) -> None:
    command = f"{' '.join(LOCKFAST)} watch job | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.endswith("nobody holds it or waits\n")


def test_a_person_ends_it_with_ctrl_c(url: str) -> None:
    with Terminal("watch", "job") as terminal:
        terminal.wait_for("nobody holds it or waits")
        terminal.type("\x03")
        assert terminal.end() == 130 and "Traceback" not in terminal.text


def test_a_store_that_goes_away_and_comes_back_is_one_line_each(
    start: Start, new_redis: Callable[..., Any]
) -> None:
    server = new_redis()
    with lockfast.connect(server.url) as client:
        watch = start(*LOCKFAST, "watch", "job", "--json", "--url", server.url)
        assert json.loads(line(watch))["event"] == "free"
        server.kill()
        assert watch.stderr is not None
        assert "still looking" in watch.stderr.readline()
        server.start()
        assert watch.stderr.readline() == "lockfast: the store answers again\n"
        with client.lock("job", timeout=PATIENCE) as hold:
            told = json.loads(line(watch))
            assert (told["event"], told["holder"]["fence"]) == ("acquired", hold.fence)
        assert watch.poll() is None
        watch.terminate()
        assert watch.communicate(timeout=PATIENCE)[1] == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["watch"]),
        (2, ["watch", ""]),
        (69, ["watch", "job", "--url", "redis://:sesame@127.0.0.1:1/0"]),
    ],
)
def test_what_cannot_be_watched_is_one_line(url: str, code: int, words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert "sesame" not in one_complaint(done)

"""`lockfast demo`: it proves what it claims, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path

import pytest
from cli_processes import (
    LOCKFAST,
    PATIENCE,
    Start,
    is_alive,
    line,
    run,
)

import lockfast
from lockfast.cli.demo import Show
from lockfast.cli.screen import Screen


def test_the_demo_proves_what_it_claims_and_cleans_up(url: str, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    done = run("demo", "--seconds", "1", env={**os.environ, "TMPDIR": str(stage)})
    assert (done.returncode, done.stderr) == (0, "")
    assert "updates lost" in done.stdout
    assert ": 0 lost\n" in done.stdout
    assert done.stdout.count("which held it →") == 3
    assert "the stale writer was refused" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert not list(stage.iterdir())


def test_a_demo_that_is_interrupted_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    show = start(*LOCKFAST, "demo", "--seconds", "60", env={**os.environ, "TMPDIR": str(stage)})
    line(show)
    children = Path(f"/proc/{show.pid}/task/{show.pid}/children").read_text().split()
    assert len(children) == 8
    time.sleep(1.0)  # somewhere in the middle
    show.send_signal(signal.SIGINT)
    _, told = show.communicate(timeout=PATIENCE)
    assert (show.returncode, told) == (130, "")
    assert not any(is_alive(int(pid)) for pid in children)
    assert not list(stage.iterdir())


def test_a_demo_that_lost_an_update_fails(client: lockfast.Client, tmp_path: Path) -> None:
    for lost, code in ((0, 0), (1, 1)):
        out = io.StringIO()
        show = Show(Screen(out), tmp_path, [], client, 1.0)
        show._verdict("lock", [5] * 8, 40 - lost, lost, 1.0)
        assert show._end() == code
        assert f"{lost} lost" in out.getvalue()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_left_as_it_was_and_colours_can_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    screen = Screen(out)
    screen.live(["one", "two"])
    screen.live(["three"], last=True)
    screen.close()
    assert "\x1b[2F" in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h\x1b[?7h\x1b[0m")
    assert screen.paint("red", "text") == "\x1b[31mtext\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(Terminal()).paint("red", "text") == "text"

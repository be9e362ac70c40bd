"""`lockfast demo`: it verifies its claims, and leaves nothing behind."""

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
from lockfast.cli import Screen
from lockfast.cli.demo import Demo


def test_the_demo_verifies_its_claims_and_cleans_up(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    done = run("demo", "--seconds", "1", env={**os.environ, "TMPDIR": str(folder)})
    assert (done.returncode, done.stderr) == (0, "")
    assert "updates lost" in done.stdout
    assert ": 0 lost\n" in done.stdout
    assert done.stdout.count("(the holder) →") == 3
    assert "the stale writer was refused" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert not list(folder.iterdir())


def test_an_interrupted_demo_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    demo = start(*LOCKFAST, "demo", "--seconds", "60", env={**os.environ, "TMPDIR": str(folder)})
    line(demo)
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    assert len(children) == 8
    time.sleep(1.0)  # somewhere in the middle
    demo.send_signal(signal.SIGINT)
    _, error = demo.communicate(timeout=PATIENCE)
    assert (demo.returncode, error) == (130, "")
    assert not any(is_alive(int(pid)) for pid in children)
    assert not list(folder.iterdir())


def test_a_demo_that_lost_an_update_fails(client: lockfast.Client, tmp_path: Path) -> None:
    for lost, code in ((0, 0), (1, 1)):
        out = io.StringIO()
        demo = Demo(Screen(out), tmp_path, [], client, 1.0)
        demo._verdict("lock", [5] * 8, 40 - lost, lost, 1.0)
        assert demo._end() == code
        assert f"{lost} lost" in out.getvalue()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_terminal_is_restored_and_no_color_is_respected(
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

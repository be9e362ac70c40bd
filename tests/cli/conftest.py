"""Fixtures: the embedded store in a temporary folder, and processes that end with the test."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_processes import Start

import lockfast


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite://{tmp_path / 'locks.db'}"
    monkeypatch.setenv("LOCKFAST_URL", url)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return url


@pytest.fixture
def client(url: str) -> Iterator[lockfast.Client]:
    with lockfast.connect(url) as client:
        yield client


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Start a process in a session of its own, that is, without a terminal."""
    started: list[subprocess.Popen[str]] = []
    # The test run may ignore SIGHUP (nohup does), and ignored signals are inherited.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(*command: object, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )
        started.append(process)
        return process

    yield start
    signal.signal(signal.SIGHUP, before)
    for process in started:
        with process:
            process.kill()

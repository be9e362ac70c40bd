"""Fixtures: the embedded store in a temporary folder, and `lockfast top` on a pseudo-terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import LOCKFAST, Driven

import lockfast


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path / 'locks.db'}"


@pytest.fixture
def client(url: str) -> Iterator[lockfast.Client]:
    with lockfast.connect(url) as client:
        yield client


@pytest.fixture
def driven() -> Iterator[Callable[..., Driven]]:
    started: list[Driven] = []

    def drive(command: list[str], **more: Any) -> Driven:
        started.append(Driven(command, **more))
        return started[-1]

    yield drive
    for one in started:
        one.close()


@pytest.fixture
def top(url: str, driven: Callable[..., Driven]) -> Callable[..., Driven]:
    """Start `lockfast top` on a pseudo-terminal."""

    def drive(*arguments: str, where: str = url, **more: Any) -> Driven:
        return driven([*LOCKFAST, "top", "--url", where, "--interval", "0.2", *arguments], **more)

    return drive

"""Fixtures: the command, run in this process, on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_commands import Command, Need, Result

import lockfast
from every_store import LACKS, STORES
from lockfast.cli.main import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``lockfast`` with these arguments; return its exit code and output."""

    def command(*arguments: object) -> Result:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return command


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store of every kind, set as $LOCKFAST_URL."""
    url = str(STORES[request.param][1](tmp_path, request.getfixturevalue))
    monkeypatch.setenv("LOCKFAST_URL", url)
    return url


@pytest.fixture
def client(url: str) -> Iterator[lockfast.Client]:
    with lockfast.connect(url) as client:
        yield client


@pytest.fixture
def need(request: pytest.FixtureRequest, url: str) -> Need:
    """Skip the test on a store that lacks this primitive."""

    def need(primitive: str) -> None:
        store = request.node.callspec.params["url"]
        if primitive in LACKS.get(store, ()):
            pytest.skip(f"{store} has no {primitive}")

    return need

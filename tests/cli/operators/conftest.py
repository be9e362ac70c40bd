"""The command in this process, on every store that there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_commands import Need, Operator, Said
from test_conformance import LACKS, STORES

import lockfast
from lockfast.cli.main import main


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Operator:
    """``lockfast`` with these words: its exit code, and what it wrote."""

    def say(*words: object) -> Said:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return say


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store of every kind, where the command looks for one."""
    url = str(STORES[request.param][1](tmp_path, request.getfixturevalue))
    monkeypatch.setenv("LOCKFAST_URL", url)
    return url


@pytest.fixture
def client(url: str) -> Iterator[lockfast.Client]:
    with lockfast.connect(url) as client:
        yield client


@pytest.fixture
def need(request: pytest.FixtureRequest, url: str) -> Need:
    """Leave the test out on a store that does not give this, as its capabilities say."""

    def need(primitive: str) -> None:
        store = request.node.callspec.params["url"]
        if primitive in LACKS.get(store, ()):
            pytest.skip(f"{store} has no {primitive}")

    return need

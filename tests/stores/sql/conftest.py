"""Fixtures: each SQL server without lockfast's tables, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sql_servers import KINDS, Database

import lockfast


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = Database(request.param, request.getfixturevalue(f"{request.param}_server"))
    made.drop_tables()
    yield made
    made.drop_tables()


@pytest.fixture
def connect(database: Database) -> Iterator[Callable[..., Any]]:
    """Clients of the database, closed after the test."""
    made: list[Any] = []

    def connect(**terms: Any) -> Any:
        made.append(lockfast.connect(database.url, **terms))
        return made[-1]

    yield connect
    for client in made:
        client.close()

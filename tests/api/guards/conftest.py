"""Fixtures for each database, with tables that belong to one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Database, MariaDB, PostgreSQL, SQLite


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made: Database
    if request.param == "sqlite":
        made = SQLite(tmp_path)
    elif request.param == "mariadb":
        made = MariaDB(request.getfixturevalue("mariadb_server"))
    else:
        made = PostgreSQL(request.getfixturevalue("postgres_server"))
    made.make_data()
    yield made
    made.close()


@pytest.fixture
def mariadb(mariadb_server: object) -> Iterator[MariaDB]:
    made = MariaDB(mariadb_server)
    made.make_data()
    yield made
    made.close()


@pytest.fixture
def postgresql(postgres_server: object) -> Iterator[PostgreSQL]:
    made = PostgreSQL(postgres_server)
    made.make_data()
    yield made
    made.close()

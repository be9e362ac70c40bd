"""Rows that carry their own fence: the SQL fragments of `FenceColumn`, on real databases."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from databases import READ_COMMITTED, REPEATABLE_READ, Database, race

import lockfast
from lockfast.guards import FenceColumn


@pytest.fixture(autouse=True)
def column(request: pytest.FixtureRequest) -> None:
    """Add the column to a table that already has rows, as users do."""
    for fixture in {"database", "mariadb"} & set(request.fixturenames):
        database = request.getfixturevalue(fixture)
        connection = database.connect()
        ddl = fenced(database).ddl
        database.run(connection, f"ALTER TABLE {database.data} ADD COLUMN {ddl}")
        connection.commit()


def fenced(database: Database) -> FenceColumn:
    return FenceColumn(database.kind, style=database.style)


def write(
    database: Database, connection: Any, fence: int, *, row: int = 1, value: str | None = None
) -> None:
    """Write a row as a user of `FenceColumn` would."""
    column, placeholder = fenced(database), database.placeholder
    cursor = database.run(
        connection,
        f"UPDATE {database.data} SET value = {placeholder('value')}, {column.assign} "
        f"WHERE id = {placeholder('row')} AND {column.where}",
        value=value or f"of {fence}",
        row=row,
        fence=fence,
    )
    if cursor.rowcount == 0:
        found = database.run(
            connection, column.look(database.data, f"id = {placeholder('row')}"), row=row
        )
        column.check(f"row {row}", fence, found.fetchone())


def test_equal_and_higher_fences_write_and_a_lower_one_is_refused(database):
    connection = database.connect()
    for fence in (7, 7, 9, 2**63 - 1, 2**63 - 1):
        write(database, connection, fence)
        connection.commit()
        assert database.value() == f"of {fence}"
    with pytest.raises(lockfast.StaleFence) as caught:
        write(database, connection, 2**63 - 2)
    connection.commit()
    error = caught.value
    assert (error.name, error.fence, error.seen) == ("row 1", 2**63 - 2, 2**63 - 1)
    assert database.value() == f"of {2**63 - 1}"


def test_the_same_fence_may_write_another_value(database):
    connection = database.connect()
    write(database, connection, 7, value="one")
    write(database, connection, 7, value="two")
    connection.commit()
    assert database.value() == "two"


@pytest.mark.parametrize("found_rows", [True, False])
def test_writing_the_same_values_again_does_not_count_as_stale(mariadb, found_rows):
    from pymysql.constants import CLIENT

    connection = mariadb.connect(client_flag=CLIENT.FOUND_ROWS if found_rows else 0)
    write(mariadb, connection, 7)
    connection.commit()
    write(mariadb, connection, 7)
    with pytest.raises(lockfast.StaleFence):
        write(mariadb, connection, 6)


def test_a_write_to_a_missing_row_is_refused_with_its_name(database):
    with pytest.raises(lockfast.StaleFence) as caught:
        write(database, database.connect(), 7, row=2)
    assert caught.value.seen is None and caught.value.name == "row 2"


def test_a_transaction_with_an_old_snapshot_is_refused_too(mariadb):
    """REPEATABLE READ shows the old fence in a plain SELECT, which is why `look` locks."""
    one, other = mariadb.connect(), mariadb.connect()
    mariadb.begin(other, REPEATABLE_READ)
    write(mariadb, one, 9)
    one.commit()
    seen = mariadb.run(other, f"SELECT fence FROM {mariadb.data} WHERE id = 1").fetchone()
    assert seen == (0,), "the plain SELECT is not stale: this test proves nothing"
    with pytest.raises(lockfast.StaleFence) as caught:
        write(mariadb, other, 7)
    assert caught.value.seen == 9


@pytest.mark.parametrize("isolation", [READ_COMMITTED, REPEATABLE_READ, "SERIALIZABLE"])
@pytest.mark.parametrize("first, second", [(7, 9), (9, 7), (9, 9)])
def test_of_two_concurrent_writers_the_higher_fence_remains(database, first, second, isolation):
    refusal = race(
        database,
        isolation,
        first,
        second,
        lambda connection, fence: write(database, connection, fence),
    )
    assert database.value() == f"of {max(first, second)}"
    if second < first:
        assert isinstance(refusal, lockfast.StaleFence) and refusal.seen == first
    else:
        assert refusal is None


@pytest.mark.parametrize(
    "style, assign, where",
    [
        ("named", "mark = :fence", "mark <= :fence"),
        ("pyformat", "mark = %(fence)s", "mark <= %(fence)s"),
        ("qmark", "mark = ?", "mark <= ?"),
    ],
)
def test_the_fragments_use_the_placeholders_of_each_style(style, assign, where):
    column = FenceColumn("sqlite", style=style, column="mark")
    assert (column.assign, column.where) == (assign, where)
    assert column.ddl == "mark BIGINT NOT NULL DEFAULT 0"
    assert column.look("s.t", "id = ?") == "SELECT mark FROM s.t WHERE id = ?"


def test_positional_placeholders_take_the_fence_twice(tmp_path):
    column = FenceColumn("sqlite", style="qmark")
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute(f"CREATE TABLE account (id INTEGER PRIMARY KEY, balance INT, {column.ddl})")
    connection.execute("INSERT INTO account (id) VALUES (42)")
    update = f"UPDATE account SET balance = ?, {column.assign} WHERE id = ? AND {column.where}"
    assert connection.execute(update, (100, 9, 42, 9)).rowcount == 1
    assert connection.execute(update, (90, 7, 42, 7)).rowcount == 0
    connection.row_factory = sqlite3.Row
    row = connection.execute(column.look("account", "id = ?"), (42,)).fetchone()
    with pytest.raises(lockfast.StaleFence):
        column.check("account 42", 7, row)
    connection.close()


@pytest.mark.parametrize("name", ["", "a b", "a;b", "a'b", "a.b", "1a", "x" * 64, None])
def test_a_column_or_table_must_be_a_plain_identifier(name):
    with pytest.raises(lockfast.ConfigurationError, match="column="):
        FenceColumn("sqlite", style="named", column=name)
    with pytest.raises(lockfast.ConfigurationError, match="table="):
        FenceColumn("sqlite", style="named").look("account; --", "id = 1")

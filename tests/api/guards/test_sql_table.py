"""The table of marks on real databases, in the user's transactions, with concurrent writers."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from databases import READ_COMMITTED, REPEATABLE_READ, Database, race

import lockfast
from lockfast.guards import FenceTable, SqlGuard

NAMES = [
    "plain",
    "it's",
    '"quoted"',
    "back\\slash'",
    "100 %, %s, %(name)s, :name, ?",
    "'; DROP TABLE marks; --",
    "保'; --",  # read as GBK, its bytes end a quoted string
    "Straße ☂ 🔒",
    "line\nline\ttab\r",
    "x" * 1000,
    "☂" * 333,
]


@pytest.fixture(autouse=True)
def table(request: pytest.FixtureRequest) -> None:
    used = {"database", "mariadb", "postgresql"} & set(request.fixturenames)
    for fixture in used:
        database = request.getfixturevalue(fixture)
        connection = database.connect()
        guard = SqlGuard(connection, table=database.marks)
        guard.create()
        guard.create()
        connection.commit()


def guarded(database: Database, connection: Any, hold: object, name: str = "report") -> None:
    SqlGuard(connection, table=database.marks).check(name, hold)


def write(database: Database, connection: Any, fence: int) -> None:
    guarded(database, connection, fence)
    database.write(connection, f"of {fence}")


def test_equal_and_higher_fences_write_and_a_lower_one_is_refused(database):
    connection = database.connect()
    for fence in (7, 7, 9, 2**63 - 1, 2**63 - 1):
        write(database, connection, fence)
        connection.commit()
        assert database.value() == f"of {fence}"
    with pytest.raises(lockfast.StaleFence) as caught:
        write(database, connection, 2**63 - 2)
    connection.rollback()
    assert (caught.value.name, caught.value.fence) == ("report", 2**63 - 2)
    assert caught.value.seen == 2**63 - 1
    assert database.value() == f"of {2**63 - 1}"


def test_a_refused_write_does_not_lower_the_mark(database):
    connection = database.connect()
    guarded(database, connection, 9)
    for _ in range(2):
        with pytest.raises(lockfast.StaleFence):
            guarded(database, connection, 7)
        connection.commit()  # even if the user commits after the refusal
    with pytest.raises(lockfast.StaleFence):
        guarded(database, connection, 8)


def test_a_rolled_back_transaction_leaves_no_mark(database):
    connection = database.connect()
    write(database, connection, 9)
    connection.rollback()
    write(database, connection, 7)
    connection.commit()
    assert database.value() == "of 7"


@pytest.mark.parametrize("known", [True, False], ids=["known name", "new name"])
@pytest.mark.parametrize("isolation", [READ_COMMITTED, REPEATABLE_READ, "SERIALIZABLE"])
@pytest.mark.parametrize("first, second", [(7, 9), (9, 7), (9, 9)])
def test_of_two_concurrent_writers_the_higher_fence_remains(
    database, first, second, isolation, known
):
    if known:
        connection = database.connect()
        write(database, connection, 1)
        connection.commit()
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


@pytest.mark.parametrize("fence", [7, 8], ids=["the same fence", "a higher fence"])
def test_a_checked_transaction_excludes_others_until_it_commits(database, fence):
    one, other = database.connect(), database.connect()
    guarded(database, one, 7)
    one.commit()
    guarded(database, one, 7)  # changes nothing, but must lock all the same
    database.shorten_lock_wait(other)
    with pytest.raises(database.retry_errors):
        guarded(database, other, fence)
    other.rollback()
    one.commit()
    guarded(database, other, fence)


def test_different_names_do_not_wait_for_each_other(postgresql):
    one, other = postgresql.connect(), postgresql.connect()
    guarded(postgresql, one, 9, "one")
    guarded(postgresql, other, 7, "other")


def test_a_serialization_failure_passes_through(postgresql):
    import psycopg

    one, other = postgresql.connect(), postgresql.connect()
    postgresql.begin(other, REPEATABLE_READ)
    write(postgresql, one, 9)
    one.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        guarded(postgresql, other, 7)


AUTOCOMMIT = {
    "sqlite": {"isolation_level": None},
    "mariadb": {"autocommit": True},
    "postgresql": {"autocommit": True},
}


def test_a_connection_in_autocommit_is_refused(database):
    connection = database.connect(**AUTOCOMMIT[database.kind])
    with pytest.raises(lockfast.ConfigurationError, match="begin a transaction"):
        guarded(database, connection, 7)
    database.run(connection, "BEGIN")
    guarded(database, connection, 7)
    database.run(connection, "ROLLBACK")


def test_names_with_special_characters_work(database):
    connection = database.connect()
    for number, name in enumerate(NAMES, 10):
        guarded(database, connection, number, name)
    connection.commit()
    for number, name in enumerate(NAMES, 10):
        with pytest.raises(lockfast.StaleFence) as caught:
            guarded(database, connection, number - 1, name)
        assert (caught.value.name, caught.value.seen) == (name, number)
    rows = database.run(connection, f"SELECT count(*) FROM {database.marks}").fetchone()
    assert rows == (len(NAMES),)


@pytest.mark.parametrize("pair", [("a", "A"), ("e\u0301", "\xe9"), ("a", "a "), ("ss", "ß")])
def test_names_that_look_alike_are_different(database, pair):
    connection = database.connect()
    guarded(database, connection, 9, pair[0])
    guarded(database, connection, 7, pair[1])


@pytest.mark.parametrize("charset", ["latin1", "gbk", "utf8mb4"])
def test_a_name_does_not_depend_on_the_connection_charset(mariadb, charset):
    connection = mariadb.connect()
    for name in NAMES:
        guarded(mariadb, connection, 9, name)
    connection.commit()
    connection = mariadb.connect(charset=charset)
    for name in NAMES:
        with pytest.raises(lockfast.StaleFence):
            guarded(mariadb, connection, 7, name)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1001, 7, None, b"a"])
def test_an_invalid_name_is_refused(name, tmp_path):
    connection = sqlite3.connect(tmp_path / "a.db")
    with pytest.raises(lockfast.ConfigurationError):
        SqlGuard(connection).check(name, 7)
    connection.close()


def test_a_guard_on_a_cursor_leaves_the_rows_of_that_cursor_alone(database):
    cursor = database.run(database.connect(), f"SELECT value FROM {database.data}")
    guard = SqlGuard(cursor, table=database.marks)
    guard.check("report", 9)
    assert cursor.fetchone() == ("first",)
    with pytest.raises(lockfast.StaleFence):
        guard.check("report", 7)


def test_rows_may_be_dicts_or_scalars(mariadb, postgresql):
    import psycopg
    import pymysql

    for database, options in (
        (mariadb, {"cursorclass": pymysql.cursors.DictCursor}),
        (postgresql, {"row_factory": psycopg.rows.dict_row}),
        (postgresql, {"row_factory": psycopg.rows.scalar_row}),
    ):
        connection = database.connect(**options)
        guarded(database, connection, 9)
        with pytest.raises(lockfast.StaleFence):
            guarded(database, connection, 7)
        connection.rollback()


def test_asyncio_code_executes_the_statements_of_fence_table(postgresql):
    import psycopg

    table = FenceTable("postgresql", style="pyformat", table=postgresql.marks)

    async def check(connection: Any, hold: object) -> None:
        cursor = connection.cursor()
        for step in table.steps("report", hold):
            await cursor.execute(*step)
        table.check("report", hold, await cursor.fetchone())

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgresql._server.url) as connection:
            async with connection.transaction():
                await check(connection, 9)
            with pytest.raises(lockfast.StaleFence):
                async with connection.transaction():
                    await check(connection, 7)
            with pytest.raises(lockfast.ConfigurationError, match="FenceTable"):
                SqlGuard(connection)

    asyncio.run(main())


@pytest.mark.parametrize("style", ["named", "qmark"])
def test_fence_table_supports_each_placeholder_style(style, tmp_path):
    table = FenceTable("sqlite", style=style)
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute(table.ddl)
    for fence, refused in ((9, False), (9, False), (7, True)):
        for step in table.steps("it's", fence):
            cursor = connection.execute(*step)
        row = cursor.fetchone()
        if refused:
            with pytest.raises(lockfast.StaleFence):
                table.check("it's", fence, row)
        else:
            table.check("it's", fence, row)
    connection.close()


def test_mysql_gets_the_statements_of_mariadb():
    ours, theirs = (FenceTable(name, style="pyformat") for name in ("mariadb", "mysql"))
    assert ours.ddl == theirs.ddl and ours.steps("a", 1) == theirs.steps("a", 1)


def test_a_table_may_have_a_schema(postgresql):
    connection = postgresql.connect()
    guard = SqlGuard(connection, table=f"public.{postgresql.marks}")
    guard.check("report", 9)
    with pytest.raises(lockfast.StaleFence):
        guarded(postgresql, connection, 7)


@pytest.mark.parametrize(
    "table",
    [
        "",
        "a b",
        "a;b",
        "a'b",
        'a"b',
        "a`b",
        "a-b",
        "1a",
        "a.b.c",
        "a.",
        ".a",
        "x" * 64,
        "ä",
        7,
        "a\n",
    ],
)
def test_a_table_must_be_a_plain_identifier(table):
    with pytest.raises(lockfast.ConfigurationError, match="table="):
        FenceTable("sqlite", style="named", table=table)


def test_an_unknown_dialect_style_or_driver_is_refused():
    with pytest.raises(lockfast.ConfigurationError, match="dialect='oracle'"):
        FenceTable("oracle", style="named")
    with pytest.raises(lockfast.ConfigurationError, match="style='dollar'"):
        FenceTable("sqlite", style="dollar")
    with pytest.raises(lockfast.ConfigurationError, match="not builtins"):
        SqlGuard(object())


def test_a_mark_that_is_no_int_is_refused():
    table = FenceTable("sqlite", style="named")
    with pytest.raises(lockfast.ConfigurationError, match="str in the database"):
        table.check("report", 7, ("9",))

"""Connections made by a user's function or SQLAlchemy engine, in both APIs."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sql_servers import Database

import lockfast
from lockfast.errors import BackendError, ConfigurationError

PATIENCE = 20.0


def address(database: Database) -> dict[str, Any]:
    server = database.server
    return {"host": "127.0.0.1", "port": server.port, "user": "root", "database": server.database}


def function(database: Database, **options: Any) -> Callable[[], Any]:
    """Return a function that makes blocking connections."""
    return functools.partial(database.server.connect, **options)


def coroutine_function(database: Database, **options: Any) -> Callable[[], Any]:
    if database.kind == "postgres":
        import psycopg

        return lambda: psycopg.AsyncConnection.connect(database.url, **options)
    import asyncmy

    return lambda: asyncmy.connect(**address(database), **options)


def engine_url(database: Database, asynchronous: bool) -> str:
    drivers = {"postgres": ("psycopg", "psycopg"), "mariadb": ("pymysql", "asyncmy")}
    scheme, rest = database.url.split("://")
    return f"{scheme}+{drivers[database.kind][asynchronous]}://{rest}"


def engine(database: Database, **options: Any) -> Any:
    from sqlalchemy import create_engine

    return create_engine(engine_url(database, False), **options)


def task_engine(database: Database, **options: Any) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine

    return create_async_engine(engine_url(database, True), **options)


MAKERS = {
    "function": function,
    "coroutine function": coroutine_function,
    "engine": engine,
    "asyncio engine": task_engine,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_blocking_client_locks_waits_and_leaves_no_connection(database, maker):
    client = lockfast.connect(MAKERS[maker](database))
    other = lockfast.connect(database.url)  # the same database, by URL
    hold = client.lock("ä", label="wärme").acquire()
    assert other.lock("ä").try_acquire() is None
    assert other.inspect("ä").holders[0].who.label == "wärme"
    got = []
    waiter = threading.Thread(target=lambda: got.append(client.lock("b").acquire(timeout=PATIENCE)))
    with other.lock("b") as first:
        waiter.start()
        limit = time.monotonic() + PATIENCE
        while not other.inspect("b").waiters:
            assert time.monotonic() < limit
            time.sleep(0.01)
    waiter.join(PATIENCE)
    assert got[0].fence > first.fence
    assert client.names() == ["b", "ä"]
    client.multi_lock("c", "d", "e").acquire().release()
    hold.release()
    client.close()
    assert other.names() == []
    other.close()
    assert "password" not in repr(client)


@pytest.mark.parametrize("maker", MAKERS)
def test_an_asyncio_client_locks_and_is_renewed_by_its_keeper(database, maker):
    async def main() -> None:
        client = lockfast.aio.connect(MAKERS[maker](database), lease=3)
        async with lockfast.aio.connect(database.url) as other:
            async with client.lock("a") as hold:
                await asyncio.sleep(3.5)
                assert hold.is_held and await other.lock("a").try_acquire() is None
                task = asyncio.ensure_future(other.lock("a").acquire(timeout=PATIENCE))
                await asyncio.sleep(0.1)
            assert (await task).fence > hold.fence
        await client.close()

    asyncio.run(main())


def test_a_decorated_function_of_the_other_api_gets_connections_too(database):
    client = lockfast.connect(function(database))

    @client.locked("a")
    async def work() -> bool:
        return client.lock("a").try_acquire() is None

    assert asyncio.run(work())
    client.close()


def test_a_users_connection_is_set_up_as_lockfast_needs_it(database):
    """The connection comes in a transaction, with another character set and another row type."""

    def make() -> Any:
        if database.kind == "postgres":
            import psycopg.rows

            connection = database.server.connect(row_factory=psycopg.rows.dict_row)
            connection.execute("SET client_encoding = 'LATIN1'")
            connection.execute("CREATE TEMPORARY TABLE unfinished (number INT)")
            return connection
        import pymysql.converters
        import pymysql.cursors

        connection = database.server.connect(
            charset="latin1",
            cursorclass=pymysql.cursors.SSDictCursor,
            conv=pymysql.converters.encoders,
            use_unicode=False,
        )
        connection.begin()
        return connection

    client = lockfast.connect(make)
    with client.lock("ärger €") as hold, database.server.connect() as connection:
        assert client.names() == ["ärger €"]
        with connection.cursor() as cursor:  # the claim was committed: other sessions see it
            cursor.execute("SELECT fence FROM lockfast_names")
            assert list(cursor.fetchall()) == [(hold.fence,)]
        assert client.lock("ärger €", owner="other").try_acquire() is None
    client.close()


def test_the_pool_of_an_engine_is_not_touched(database):
    made = engine(database, pool_size=1, max_overflow=0, pool_timeout=1)
    client = lockfast.connect(made)
    with made.connect(), client.lock("a"):  # its only connection is in use
        assert client.lock("a", owner="other").try_acquire() is None
        assert made.pool.checkedout() == 1
    client.close()
    made.dispose()


def test_the_arguments_and_the_creator_of_an_engine_count(database):
    calls = []

    def make() -> Any:
        calls.append(1)
        return database.server.connect()

    scheme = engine_url(database, False).split("://")[0]
    from sqlalchemy import create_engine

    client = lockfast.connect(create_engine(f"{scheme}://nobody@nowhere.invalid/x", creator=make))
    with client.lock("a"):
        assert calls
    client.close()
    parameter = "application_name" if database.kind == "postgres" else "program_name"
    client = lockfast.connect(engine(database, connect_args={parameter: "mine"}))
    with client.lock("a"):
        if database.kind == "postgres":
            found = database.call(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'"
            )
            assert found[0][0] >= 1
    client.close()


def test_a_transaction_lock_on_connections_and_sessions_of_sqlalchemy(database):
    from sqlalchemy import text
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    made = engine(database)
    client = lockfast.connect(made)
    registry = scoped_session(sessionmaker(made))
    with made.connect() as connection, Session(made) as session:
        for first, second in ((connection, session), (session, connection), (registry, session)):
            client.transaction_lock("a", connection=first)
            with pytest.raises(lockfast.AcquireTimeout):
                client.transaction_lock("a", connection=second, timeout=0)
            second.rollback()
            first.commit()  # SQLAlchemy knows that a transaction is open
            client.transaction_lock("a", connection=second, timeout=0)
            assert second.execute(text("SELECT 1")).scalar() == 1
            second.rollback()
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigurationError, match="commits after each statement"):
            client.transaction_lock("a", connection=autocommit)
    with pytest.raises(ConfigurationError, match="an engine has many connections"):
        client.transaction_lock("a", connection=made)
    raw = made.raw_connection()
    client.transaction_lock("a", connection=raw)
    raw.close()
    registry.remove()
    client.close()
    made.dispose()


def test_a_transaction_lock_on_asyncio_connections_and_sessions_of_sqlalchemy(database):
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession

    async def main() -> None:
        made = task_engine(database)
        client = lockfast.aio.connect(made)
        async with made.connect() as connection, AsyncSession(made) as session:
            for first, second in ((connection, session), (session, connection)):
                await client.transaction_lock("a", connection=first)
                with pytest.raises(lockfast.AcquireTimeout):
                    await client.transaction_lock("a", connection=second, timeout=0)
                await second.rollback()
                await first.commit()
                async with client.transaction_lock("a", connection=second, timeout=0):
                    assert (await second.execute(text("SELECT 1"))).scalar() == 1
                await second.rollback()
        await client.close()
        await made.dispose()

    asyncio.run(main())


def test_makers_of_unsupported_connections_are_refused(database):
    import sqlite3

    from sqlalchemy import create_engine

    with pytest.raises(ConfigurationError, match="engine of sqlite"):
        lockfast.connect(create_engine("sqlite://"))
    with pytest.raises(ConfigurationError, match="not a connection of psycopg"):
        lockfast.connect(lambda: sqlite3.connect(":memory:"))
    with pytest.raises(ConfigurationError, match="not a connection of psycopg"):
        lockfast.connect(lambda: None)
    made = engine(database)
    with pytest.raises(ConfigurationError, match="pass the engine itself"):
        lockfast.connect(made.raw_connection)
    made.dispose()
    with database.server.connect() as only, pytest.raises(ConfigurationError, match="function"):
        lockfast.connect(only)
    same: list[Any] = []

    def make() -> Any:
        if len(same) < 2:
            same.append(database.server.connect())
        return same[-1]

    client = lockfast.connect(make)
    with client.lock("a"), pytest.raises(ConfigurationError, match="twice"):
        client._store._channel._connect(1.0)  # a second connection
    client.close()


def test_an_error_of_the_users_function_is_reported(database):
    good = [True]

    def make() -> Any:
        if good.pop() if good else False:
            return database.server.connect()
        raise RuntimeError("no token today")

    client = lockfast.connect(make)
    with pytest.raises(BackendError, match="no token today"):
        client.lock("a").acquire(timeout=0)
    with pytest.raises(BackendError):
        lockfast.connect(function(database, user="nobody", password="wrong"))
    with pytest.raises(BackendError):
        lockfast.connect(coroutine_function(Database(database.kind, ClosedPort(database))))


class ClosedPort:
    """A server that does not listen."""

    def __init__(self, database: Database) -> None:
        self.port = 1
        self.database = "x"
        self.url = database.url.replace(str(database.server.port), "1")

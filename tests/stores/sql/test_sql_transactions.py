"""Transaction locks: held by the user's own transaction, on the user's own connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sql_servers import Database

import lockfast
from lockfast.errors import (
    AcquireTimeout,
    ConfigurationError,
    StaleSnapshot,
    Unsupported,
    WouldDeadlock,
)
from lockfast.stores.sql import transactions

PATIENCE = 20.0
COUNTER = "transaction_counter"


@pytest.fixture
def user(database: Database) -> Iterator[Callable[..., Any]]:
    """The user's connections, without autocommit, and a table of the user's with one number in
    it."""
    made: list[Any] = []

    def user(**options: Any) -> Any:
        made.append(database.server.connect(**options))
        return made[-1]

    engine = "ENGINE = InnoDB" if database.kind == "mariadb" else ""
    database.call(f"DROP TABLE IF EXISTS {COUNTER}")
    database.call(f"CREATE TABLE {COUNTER} (number INT) {engine}")
    database.call(f"INSERT INTO {COUNTER} VALUES (0)")
    yield user
    for connection in made:
        with contextlib.suppress(Exception):
            connection.close()
    database.call(f"DROP TABLE IF EXISTS {COUNTER}")


def execute(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def repeatable(database: Database, connection: Any) -> None:
    execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def waiting(database: Database) -> bool:
    if database.kind == "postgres":
        rows = database.call(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND (query LIKE '%%lockfast_transactions%%' OR query LIKE '%%advisory%%')"
        )
    else:
        rows = database.call(
            "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        )
    return bool(rows[0][0])


def until(predicate: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not predicate():
        assert time.monotonic() < limit
        time.sleep(0.01)


class Taking(threading.Thread):
    """Takes a transaction lock in another thread."""

    def __init__(self, take: Callable[[], Any]) -> None:
        super().__init__()
        self._take = take
        self.got: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.got = self._take()
        except Exception as error:
            self.error = error

    def hold(self) -> Any:
        self.join(PATIENCE)
        assert self.error is None, self.error
        return self.got


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_lock_ends_with_the_transaction_and_the_waiter_gets_it(connect, database, user, end):
    client, first, second = connect(), user(), user()
    hold = client.transaction_lock("a", connection=first)
    with pytest.raises(AcquireTimeout, match="another transaction holds it"):
        client.transaction_lock("a", connection=second, timeout=0)
    taking = Taking(lambda: client.transaction_lock("a", connection=second, timeout=PATIENCE))
    until(lambda: waiting(database))
    getattr(first, end)()
    assert taking.hold().fence > hold.fence


def test_neither_the_end_of_the_block_nor_of_the_client_ends_the_lock(connect, user):
    client, first, second = connect(), user(), user()
    with client.transaction_lock("a", connection=first) as hold:
        assert hold.name == "a"
    with pytest.raises(AcquireTimeout):
        client.transaction_lock("a", connection=second, timeout=0.1)
    client.close()  # does not end it either
    other = connect()
    with pytest.raises(AcquireTimeout):
        other.transaction_lock("a", connection=second, timeout=0)
    first.commit()
    other.transaction_lock("a", connection=second, timeout=0)


def test_no_update_is_lost_among_concurrent_transactions(connect, database, user):
    """Each reads a number and writes it plus one, in its driver's default isolation level."""
    client = connect()
    fences = []

    def work(connection: Any) -> None:
        for _ in range(12):
            with client.transaction_lock("counter", connection=connection) as hold:
                ((number,),) = execute(connection, f"SELECT number FROM {COUNTER}")
                fences.append(hold.fence)
                execute(connection, f"UPDATE {COUNTER} SET number = {number + 1}")
            connection.commit()

    threads = [Taking(partial(work, user())) for _ in range(5)]
    for thread in threads:
        thread.hold()
    assert database.call(f"SELECT number FROM {COUNTER}") == [(60,)]
    assert fences == sorted(set(fences)) and len(fences) == 60


def test_first_locks_of_new_names_do_not_deadlock(connect, database, user):
    """In REPEATABLE READ MySQL would lock the gaps of missing rows."""
    client = connect()
    names = [f"new-{number}" for number in range(24)]

    def work(connection: Any, offset: int) -> None:
        for name in names[offset * 4 :] + names[: offset * 4]:
            if database.kind == "mariadb":
                repeatable(database, connection)
            client.transaction_lock(name, connection=connection, timeout=PATIENCE)
            connection.commit()

    threads = [Taking(partial(work, user(), offset)) for offset in range(6)]
    for thread in threads:
        thread.hold()


@pytest.mark.parametrize("timeout", [0, 0.3, 1.2])
def test_after_a_time_out_the_users_transaction_goes_on(connect, database, user, timeout):
    client, first, second = connect(), user(), user()
    setting = "lock_timeout" if database.kind == "postgres" else "@@innodb_lock_wait_timeout"
    show = f"SHOW {setting}" if database.kind == "postgres" else f"SELECT {setting}"
    client.transaction_lock("a", connection=first)
    execute(second, f"UPDATE {COUNTER} SET number = 7")
    before = execute(second, show)
    began = time.monotonic()
    with pytest.raises(AcquireTimeout) as caught:
        client.transaction_lock("a", connection=second, timeout=timeout)
    assert timeout <= time.monotonic() - began < timeout + 3
    assert caught.value.name == "a" and caught.value.timeout == timeout
    assert execute(second, show) == before
    client.transaction_lock("b", connection=second, timeout=timeout)
    second.commit()
    assert database.call(f"SELECT number FROM {COUNTER}") == [(7,)]


def test_a_time_out_longer_than_the_server_can_count_is_accepted(connect, database, user):
    client, first, second = connect(), user(), user()
    client.transaction_lock("a", connection=first)
    taking = Taking(lambda: client.transaction_lock("a", connection=second, timeout=3e6))
    until(lambda: waiting(database))
    first.commit()
    assert taking.hold().name == "a"


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_connection_in_pipeline_mode_is_refused(connect, user):
    """There, psycopg reports neither rows nor errors before the pipeline ends."""
    client, mine = connect(), user()
    with mine.pipeline(), pytest.raises(ConfigurationError, match="pipeline mode"):
        client.transaction_lock("a", connection=mine)
    client.transaction_lock("a", connection=mine)


def test_the_sessions_own_time_out_is_restored_after_a_wait(connect, database, user):
    client, first, second = connect(), user(), user()
    if database.kind == "postgres":
        execute(second, "SET lock_timeout = '1234ms'")
        second.commit()
        show = "SHOW lock_timeout"
    else:
        execute(second, "SET SESSION innodb_lock_wait_timeout = 17")
        show = "SELECT @@innodb_lock_wait_timeout"
    before = execute(second, show)
    client.transaction_lock("a", connection=first)
    taking = Taking(lambda: client.transaction_lock("a", connection=second, timeout=PATIENCE))
    until(lambda: waiting(database))
    first.commit()
    taking.hold()
    assert execute(second, show) == before
    second.commit()
    assert execute(second, show) == before


def test_one_of_two_deadlocked_transactions_gets_an_error_and_the_other_goes_on(connect, user):
    client, first, second = connect(), user(), user()
    client.transaction_lock("a", connection=first)
    client.transaction_lock("b", connection=second)

    def take(name: str, connection: Any) -> Any:
        try:
            return client.transaction_lock(name, connection=connection, timeout=PATIENCE)
        except WouldDeadlock as error:
            connection.rollback()
            return error

    one = Taking(lambda: take("b", first))
    two = Taking(lambda: take("a", second))
    outcomes = [one.hold(), two.hold()]
    assert sum(isinstance(outcome, WouldDeadlock) for outcome in outcomes) == 1
    assert "wait for each other" in str(outcomes)


def test_fences_grow_with_those_of_leases_and_after_a_rollback(connect, user):
    client, mine = connect(), user()
    fences = []
    for end in (mine.commit, mine.rollback, mine.rollback, mine.commit):
        with client.lock("a") as lease:
            fences.append(lease.fence)
        fences.append(client.transaction_lock("a", connection=mine).fence)
        fences.append(client.transaction_lock("a", connection=mine).fence)  # the same lock again
        end()
    assert fences == sorted(set(fences))


def test_a_fence_does_not_go_back_when_the_clock_is_set_back(connect, database, user):
    client, mine = connect(), user()
    client.transaction_lock("a", connection=mine)
    mine.commit()
    late = 2**53
    database.call(f"UPDATE lockfast_transactions SET fence = {late}")
    assert client.transaction_lock("a", connection=mine).fence == late + 1
    mine.commit()
    with client.lock("b"):
        pass
    database.call(f"UPDATE lockfast_names SET last_fence = {late}")
    assert client.transaction_lock("b", connection=mine).fence == late + 1


def test_a_name_that_is_held_as_a_lease_is_refused(connect, user):
    client, mine = connect(), user()
    with (
        client.rwlock("a").read(),
        pytest.raises(Unsupported, match="not leases"),
    ):
        client.transaction_lock("a", connection=mine)
    client.transaction_lock("a", connection=mine)


def test_the_same_name_in_another_namespace_is_another_lock(connect, user):
    connect().transaction_lock("a", connection=user())
    connect(namespace="other").transaction_lock("a", connection=user(), timeout=0)


def test_a_transaction_that_would_not_see_the_last_holders_changes_is_refused(
    connect, database, user
):
    client, first, second = connect(), user(), user()
    client.transaction_lock("a", connection=first)
    first.commit()
    repeatable(database, second)
    assert execute(second, f"SELECT number FROM {COUNTER}") == [(0,)]
    client.transaction_lock("a", connection=first)
    execute(first, f"UPDATE {COUNTER} SET number = 1")
    first.commit()
    with pytest.raises(StaleSnapshot):
        client.transaction_lock("a", connection=second)
    second.rollback()
    repeatable(database, second)
    client.transaction_lock("a", connection=second)
    assert execute(second, f"SELECT number FROM {COUNTER}") == [(1,)]


def test_a_transaction_that_waited_sees_the_holders_changes_or_is_refused(connect, database, user):
    client, first, second = connect(), user(), user()
    client.transaction_lock("a", connection=first)
    repeatable(database, second)
    taking = Taking(lambda: client.transaction_lock("a", connection=second, timeout=PATIENCE))
    until(lambda: waiting(database))
    execute(first, f"UPDATE {COUNTER} SET number = 1")
    first.commit()
    taking.join(PATIENCE)
    if taking.error is None:
        assert execute(second, f"SELECT number FROM {COUNTER}") == [(1,)]
    else:
        assert isinstance(taking.error, StaleSnapshot)


def test_a_transaction_may_wait_for_two_locks_at_its_start(connect, database, user):
    client, mine, others = connect(), user(), {name: user() for name in "ab"}
    for name in "ab":
        client.transaction_lock(name, connection=others[name])

    def take() -> None:
        for name in "ab":
            client.transaction_lock(name, connection=mine, timeout=PATIENCE)

    taking = Taking(take)
    for name in "ab":
        until(lambda: waiting(database))
        execute(others[name], f"UPDATE {COUNTER} SET number = number + 1")
        others[name].commit()
    taking.hold()
    assert execute(mine, f"SELECT number FROM {COUNTER}") == [(2,)]


def test_an_earlier_read_is_harmless_if_nobody_held_the_lock_since(connect, database, user):
    client, first, second = connect(), user(), user()
    client.transaction_lock("a", connection=first)
    first.commit()
    repeatable(database, second)
    execute(second, f"SELECT number FROM {COUNTER}")
    client.transaction_lock("a", connection=second)


def test_autocommit_is_refused_unless_a_transaction_was_begun(connect, database, user):
    client, mine = connect(), user(autocommit=True)
    with pytest.raises(ConfigurationError, match="commits after each statement"):
        client.transaction_lock("a", connection=mine)
    execute(mine, "BEGIN")
    client.transaction_lock("a", connection=mine)
    with pytest.raises(AcquireTimeout):
        client.transaction_lock("a", connection=user(), timeout=0)


def test_connections_that_lead_elsewhere_are_refused(connect, database, user, request):
    client, mine = connect(), user()
    database.call("DROP DATABASE IF EXISTS elsewhere")
    database.call("CREATE DATABASE elsewhere")
    parameter = "dbname" if database.kind == "postgres" else "database"
    other = user(**{parameter: "elsewhere"})
    with pytest.raises(ConfigurationError, match="another database"):
        client.transaction_lock("a", connection=other)
    other.close()
    database.call("DROP DATABASE elsewhere")
    kind = "mariadb" if database.kind == "postgres" else "postgres"
    with request.getfixturevalue(f"{kind}_server").connect() as foreign:
        with pytest.raises(ConfigurationError, match="needs a connection of"):
            client.transaction_lock("a", connection=foreign)
        foreign.rollback()
    for thing in (None, mine.cursor, "postgresql://", object()):
        with pytest.raises(ConfigurationError, match="connection="):
            client.transaction_lock("a", connection=thing)
    with pytest.raises(ConfigurationError, match="no keyword 'lease'"):
        client.transaction_lock("a", connection=mine, lease=3)
    client.close()
    with pytest.raises(lockfast.NotHeld):
        client.transaction_lock("a", connection=mine)


def test_other_stores_have_no_transaction_locks():
    with pytest.raises(Unsupported, match="transaction_lock"):
        lockfast.connect("memory://").transaction_lock("a", connection=object())


def test_a_read_only_transaction_is_refused(connect, database, user):
    client, mine = connect(), user()
    execute(mine, "SET TRANSACTION READ ONLY")
    if database.kind == "mariadb":
        execute(mine, "START TRANSACTION READ ONLY")
    with pytest.raises(lockfast.BackendError, match="read-only") as caught:
        client.transaction_lock("a", connection=mine)
    assert not caught.value.transient


def test_unused_rows_are_swept_and_others_are_not(connect, database, user, monkeypatch):
    monkeypatch.setattr(transactions, "SWEEP_EVERY", 6)
    monkeypatch.setattr(transactions, "SWEEP_BATCH", 3)  # several sweeps for all rows
    client, mine, other = connect(), user(), user()
    for name in "abcdefgh":
        client.transaction_lock(name, connection=mine)
        mine.commit()
    database.call(f"UPDATE lockfast_transactions SET used = {database.ago(3700)}")
    hold = client.transaction_lock("a", connection=other)  # touches it, and locks it
    client.transaction_lock("y", connection=mine)
    mine.commit()
    for _ in range(24):
        client.transaction_lock("z", connection=mine)
        mine.commit()
    left = database.call("SELECT name FROM lockfast_transactions ORDER BY name")
    assert left == [("default:a",), ("default:y",), ("default:z",)]
    other.commit()
    assert client.transaction_lock("a", connection=mine).fence > hold.fence


# Not on MySQL, where the wait would leave a gap lock: a row that is about to be locked is never
# swept.
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_row_deleted_during_the_wait_is_created_again(connect, database, user):
    client, first, second, third = connect(), user(), user(), user()
    client.transaction_lock("a", connection=first)
    taking = Taking(lambda: client.transaction_lock("a", connection=second, timeout=PATIENCE))
    until(lambda: waiting(database))
    execute(first, "DELETE FROM lockfast_transactions")
    first.commit()
    taking.hold()
    with pytest.raises(AcquireTimeout):
        client.transaction_lock("a", connection=third, timeout=0)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_state_of_the_users_session_is_preserved(connect, database, user):
    client, mine = connect(), user()
    execute(mine, "CREATE TEMPORARY TABLE mine (id INT AUTO_INCREMENT PRIMARY KEY)")
    execute(mine, "INSERT INTO mine VALUES (41)")
    execute(mine, "INSERT INTO mine VALUES ()")
    client.transaction_lock("a", connection=mine)
    assert execute(mine, "SELECT LAST_INSERT_ID()") == [(42,)]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_advisory_lock_needs_no_table_and_waits_and_times_out_like_a_row_lock(
    connect, database, user
):
    client, first, second = connect(), user(), user()
    hold = client.transaction_lock("a", connection=first, advisory=True)
    for timeout in (0, 0.2):
        with pytest.raises(AcquireTimeout):
            client.transaction_lock("a", connection=second, timeout=timeout, advisory=True)
        assert execute(second, "SHOW lock_timeout") == [("0",)]
    taking = Taking(
        lambda: client.transaction_lock("a", connection=second, timeout=PATIENCE, advisory=True)
    )
    until(lambda: waiting(database))
    first.commit()
    assert taking.hold().fence > hold.fence
    assert database.call("SELECT to_regclass('lockfast_transactions')::text") == [(None,)]
    repeatable(database, first)
    with pytest.raises(Unsupported, match="READ COMMITTED"):
        client.transaction_lock("b", connection=first, advisory=True)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_an_advisory_lock_is_refused_where_the_database_has_none(connect, user):
    with pytest.raises(Unsupported, match="GET_LOCK"):
        connect().transaction_lock("a", connection=user(), advisory=True)


# ---- asyncio ---------------------------------------------------------------------------------


async def task_connection(database: Database, **options: Any) -> Any:
    if database.kind == "postgres":
        import psycopg

        return await psycopg.AsyncConnection.connect(database.url, **options)
    import asyncmy

    address = {"host": "127.0.0.1", "port": database.server.port, "user": "root"}
    return await asyncmy.connect(**address, database=database.server.database, **options)


async def closed(*connections: Any) -> None:
    for connection in connections:
        finished = connection.close()
        if finished is not None:
            await finished
    await asyncio.sleep(0)


def test_in_asyncio_a_lock_excludes_waits_and_times_out(database):
    async def main() -> None:
        async with lockfast.aio.connect(database.url) as client:
            first, second = await task_connection(database), await task_connection(database)
            async with client.transaction_lock("a", connection=first) as hold:
                pass
            for timeout in (0, 0.1, 1.1):
                with pytest.raises(AcquireTimeout):
                    await client.transaction_lock("a", connection=second, timeout=timeout)
            lock = client.transaction_lock("a", connection=second, timeout=PATIENCE)
            task = asyncio.ensure_future(lock._take())
            await asyncio.to_thread(until, lambda: waiting(database))
            await first.commit()
            assert (await task).fence > hold.fence
            with (
                database.server.connect() as blocking,
                pytest.raises(ConfigurationError, match="a blocking connection: use lockfast"),
            ):
                await client.transaction_lock("b", connection=blocking)
            await closed(first, second)

    asyncio.run(main())


def test_a_blocking_client_refuses_a_connection_of_asyncio(connect, database):
    async def main() -> None:
        connection = await task_connection(database)
        with pytest.raises(ConfigurationError, match="an asyncio connection: use lockfast"):
            connect().transaction_lock("a", connection=connection)
        await closed(connection)

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing(database):
    async def main() -> None:
        async with lockfast.aio.connect(database.url) as client:
            first, second = await task_connection(database), await task_connection(database)
            await client.transaction_lock("a", connection=first)

            async def wait() -> None:
                await client.transaction_lock("a", connection=second)

            task = asyncio.ensure_future(wait())
            await asyncio.to_thread(until, lambda: waiting(database))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await first.commit()
            third = await task_connection(database)
            await client.transaction_lock("a", connection=third, timeout=PATIENCE)
            if database.kind == "postgres":  # asyncmy closes a cancelled connection
                await client.transaction_lock("b", connection=second)
            await closed(first, second, third)

    asyncio.run(main())

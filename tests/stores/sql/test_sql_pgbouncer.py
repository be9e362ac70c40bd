"""PgBouncer in transaction mode, where each transaction may get another session."""

from __future__ import annotations

import asyncio
import threading
import time

import psycopg
import pytest
from sql_servers import TABLES

import lockfast


@pytest.fixture
def pooled(postgres_server, pgbouncer_server):
    for table in TABLES:
        postgres_server.call(f"DROP TABLE IF EXISTS {table}")
    return pgbouncer_server


def test_locks_exclude_each_other_are_handed_over_and_are_renewed(pooled):
    clients = [lockfast.connect(pooled.url, lease=3) for _ in range(3)]
    inside, most, done = 0, 0, []

    def work(client: lockfast.Client) -> None:
        nonlocal inside, most
        for _ in range(10):
            with client.lock("a", timeout=30) as hold:
                inside += 1
                most = max(most, inside)
                done.append(hold.fence)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and done == sorted(set(done)) and len(done) == 30
    hold = clients[0].lock("a").acquire()
    time.sleep(3.5)
    assert hold.is_held and clients[1].lock("a").try_acquire() is None
    hold.release()
    for client in clients:
        client.close()


def test_the_pooler_is_detected_and_waiters_poll_instead_of_listening(pooled, postgres_server):
    first, second = lockfast.connect(pooled.url), lockfast.connect(pooled.url)
    hold = first.lock("a").acquire()
    got: list[float] = []

    def wait() -> None:
        with second.lock("a", timeout=20):
            got.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    while not first.inspect("a").waiters:
        time.sleep(0.01)
    time.sleep(0.3)
    released = time.monotonic()
    hold.release()
    thread.join()
    assert got[0] - released < 1.0  # not at the next refresh
    left = postgres_server.call(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE 'SET %'"
    )
    assert left == [(0,)]  # no state of lockfast is left in sessions that others get
    first.close()
    second.close()


def test_locks_exclude_each_other_in_asyncio(pooled):
    async def main() -> int:
        async with lockfast.aio.connect(pooled.url) as client:
            inside = 0

            async def work() -> int:
                nonlocal inside
                async with client.lock("a", timeout=20):
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0.001)
                    inside -= 1
                return 1

            return sum(await asyncio.gather(*[work() for _ in range(20)]))

    assert asyncio.run(main()) == 20


LEFT_BEHIND = (
    "SET search_path = elsewhere",
    "SET default_transaction_isolation = 'serializable'",
    "SET default_transaction_read_only = on",
    "SET extra_float_digits = -15",
    "SET statement_timeout = 1000000",
)


def test_settings_that_other_clients_leave_in_the_sessions_change_nothing(pooled, postgres_server):
    """The pooler gives each transaction another session, and resets none of them."""
    postgres_server.call("CREATE SCHEMA elsewhere")
    try:
        with psycopg.connect(pooled.url, autocommit=True, prepare_threshold=None) as other:
            for _ in range(8):  # so that it gets every session
                for setting in LEFT_BEHIND:
                    other.execute(setting)
        clients = [lockfast.connect(pooled.url) for _ in range(4)]
        for _ in range(4):
            with clients[0].lock("a", lease=7.123456) as hold:
                assert [client.lock("a").try_acquire() for client in clients[1:]] == [None] * 3
                (holder,) = clients[1].inspect("a").holders
                assert holder.fence == hold.fence and 6 < holder.remaining <= 7.123456
        with clients[0].multi_lock("x", "y"), clients[1].semaphore("s", 2):
            assert clients[2].names() == ["s", "x", "y"]
        tables = "SELECT schemaname FROM pg_tables WHERE tablename LIKE 'lockfast%%'"
        assert {schema for (schema,) in postgres_server.call(tables)} == {"public"}
        for client in clients:
            client.close()
    finally:
        postgres_server.call("DROP SCHEMA elsewhere CASCADE")


@pytest.mark.parametrize("advisory", [False, True])
def test_transaction_locks_end_with_their_transaction_and_leave_nothing_in_a_session(
    pooled, postgres_server, advisory
):
    """A session-level advisory lock would stay in the session, which the next client gets; those of
    a transaction do not."""
    client = lockfast.connect(pooled.url)
    inside, most, fences = 0, 0, []

    def work() -> None:
        nonlocal inside, most
        with psycopg.connect(pooled.url, prepare_threshold=None) as connection:
            for _ in range(8):
                with client.transaction_lock(
                    "a", connection=connection, timeout=30, advisory=advisory
                ) as hold:
                    inside += 1
                    most = max(most, inside)
                    fences.append(hold.fence)
                    time.sleep(0.002)
                    inside -= 1
                connection.commit()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and fences == sorted(set(fences)) and len(fences) == 32
    assert postgres_server.call("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [
        (0,)
    ]
    with psycopg.connect(pooled.url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(6):  # whichever session it gets
            assert connection.execute("SHOW lock_timeout").fetchall() == [("0",)]
    client.close()


def test_a_direct_connection_and_one_through_the_pooler_exclude_each_other(pooled, postgres_server):
    client = lockfast.connect(pooled.url)
    with (
        postgres_server.connect() as direct,
        psycopg.connect(pooled.url, prepare_threshold=None) as through,
    ):
        for advisory in (False, True):
            client.transaction_lock("a", connection=direct, advisory=advisory)
            with pytest.raises(lockfast.AcquireTimeout):
                client.transaction_lock("a", connection=through, timeout=0.1, advisory=advisory)
            direct.rollback()
            through.rollback()
    client.close()

"""Servers that kill connections, stop, restart or refuse; clients that fork or are cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
from sql_servers import Database

import lockfast
from lockfast.errors import BackendError


def test_killed_connections_are_reopened_and_no_hold_is_lost(connect, database):
    client, other = connect(), connect()
    hold = client.lock("a").acquire()
    got = []
    waiter = threading.Thread(target=lambda: got.append(other.lock("a").acquire(timeout=20)))
    waiter.start()
    while not client.inspect("a").waiters:
        time.sleep(0.01)
    for session in database.sessions():
        database.kill(session)
    assert hold.is_held
    client.lock("b").acquire().release()
    for session in database.sessions():
        database.kill(session)
    hold.release()
    waiter.join(10)
    assert got and got[0].fence > hold.fence
    got[0].release()


def test_a_server_that_closes_idle_connections_causes_no_error(connect, database):
    """With a wait_timeout of a second, for example: a closed connection is not used again."""
    if database.kind == "postgres":
        database.call("ALTER SYSTEM SET idle_session_timeout = '500ms'")
        database.call("SELECT pg_reload_conf()")
    else:
        database.call("SET GLOBAL wait_timeout = 1")
    try:
        client = connect()
        for _ in range(2):
            with client.lock("a"):
                pass
            time.sleep(1.7)
        hold = client.lock("a").acquire()
        assert hold.is_held
        hold.release()
    finally:
        if database.kind == "postgres":
            database.call("ALTER SYSTEM RESET idle_session_timeout")
            database.call("SELECT pg_reload_conf()")
        else:
            database.call("SET GLOBAL wait_timeout = 28800")


@pytest.fixture(params=["postgres", "mariadb"])
def own_server(request):
    """A server that this test may stop."""
    request.getfixturevalue(f"{request.param}_server")  # skips where there is none
    if request.param == "postgres":
        from lab.servers.postgres_server import PostgresServer as Server
    else:
        from lab.servers.mariadb_server import MariaDBServer as Server
    with Server() as server:
        yield Database(request.param, server)


def test_holds_outlive_a_restart_of_the_server(own_server):
    client, other = lockfast.connect(own_server.url, lease=12), lockfast.connect(own_server.url)
    hold = client.lock("a").acquire()
    own_server.server.restart(keep_data=True)
    assert other.lock("a").try_acquire() is None
    assert hold.is_held
    got = []
    waiter = threading.Thread(target=lambda: got.append(other.lock("a").acquire(timeout=20)))
    waiter.start()
    while not client.inspect("a").waiters:
        time.sleep(0.01)
    hold.release()
    waiter.join(10)
    assert got[0].fence > hold.fence
    client.close()
    other.close()


def test_a_server_that_does_not_answer_costs_no_more_than_the_budget(own_server):
    client = lockfast.connect(own_server.url, lease=3)
    with client.lock("a"):
        pass
    own_server.server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(BackendError):
            client.lock("a").acquire(timeout=0)
        assert time.monotonic() - began < 3
    finally:
        own_server.server.resume()
    with client.lock("a", timeout=5):
        pass
    client.close()


def test_a_server_that_is_read_only_is_refused(connect, database):
    url = database.url
    if database.kind == "postgres":
        url += "?options=-cdefault_transaction_read_only%3Don"
    else:
        database.call("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(BackendError, match="read-only") as caught:
            lockfast.connect(url).lock("a").acquire(timeout=2)
        assert not caught.value.transient
    finally:
        if database.kind == "mariadb":
            database.call("SET GLOBAL read_only = 0")


def test_a_server_that_is_read_only_for_a_few_seconds_is_waited_for(connect, database):
    """During a failover, for example. The client has seen it writable before."""
    client = connect(lease=6)
    with client.lock("a"):
        pass
    if database.kind == "postgres":
        setting = "ALTER SYSTEM SET default_transaction_read_only = {}"
    else:
        setting = "SET GLOBAL read_only = {}"

    def set_read_only(value: str) -> None:
        with database.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            if database.kind == "postgres":
                cursor.execute("SET default_transaction_read_only = off")
            cursor.execute(setting.format(value))
            if database.kind == "postgres":
                cursor.execute("SELECT pg_reload_conf()")

    try:
        set_read_only("on")
        for session in database.sessions():
            database.kill(session)
        timer = threading.Timer(2.5, set_read_only, ("off",))
        timer.start()
        began = time.monotonic()
        with client.lock("a", timeout=15):
            assert time.monotonic() - began > 1.5
        timer.join()
    finally:
        set_read_only("off")


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_statement_that_exceeds_the_servers_time_limit_is_tried_again(connect, database):
    client = connect(lease=6)
    with client.lock("a"):
        pass
    assert database.sessions()
    database.call("SET GLOBAL max_statement_time = 0.05")
    try:
        for session in database.sessions():  # the next one gets the limit
            database.kill(session)
        with database.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM lockfast_names FOR UPDATE")
            timer = threading.Timer(1.0, connection.rollback)
            timer.start()
            with client.lock("a", timeout=10):  # 1969 until the row is unlocked
                pass
            timer.join()
    finally:
        database.call("SET GLOBAL max_statement_time = 0")


def test_a_task_connects_although_the_executor_of_its_loop_is_busy(database):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        over = threading.Event()
        busy = [loop.run_in_executor(None, over.wait, 20) for _ in range(64)]
        try:
            async with lockfast.aio.connect(database.url) as client:
                began = time.monotonic()
                async with client.lock("a", timeout=5):
                    assert time.monotonic() - began < 5
        finally:
            over.set()
            await asyncio.gather(*busy)

    asyncio.run(main())


def test_a_missing_database_and_an_unknown_host_are_reported_at_once(database):
    server = database.server
    for url in (
        database.url.rsplit("/", 1)[0] + "/nowhere",
        database.url.replace("127.0.0.1", "nobody.invalid"),
    ):
        with pytest.raises(BackendError) as caught:
            lockfast.connect(url, lease=2).lock("a").acquire(timeout=0)
        assert caught.value.transient == ("invalid" in url)
    assert server.is_running


def test_a_refused_connection_is_a_transient_error(database):
    url = database.url.replace(str(database.server.port), "1")
    with pytest.raises(BackendError) as caught:
        lockfast.connect(url, lease=2).lock("a").acquire(timeout=0)
    assert caught.value.transient


def test_a_forked_child_uses_connections_of_its_own(connect, database):
    client = connect()
    hold = client.lock("a").acquire()
    before = set(database.sessions())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            taken = client.lock("a").try_acquire()
            with client.lock("b", timeout=5):
                code = 0 if taken is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert before <= set(database.sessions()) | {0}
    assert hold.is_held
    hold.release()
    with client.lock("a", timeout=5):
        pass


def test_a_closed_client_leaves_no_connection(database):
    client = lockfast.connect(database.url)
    with client.lock("a"):
        pass
    waiting = lockfast.connect(database.url)
    with client.lock("a"), pytest.raises(lockfast.AcquireTimeout):
        waiting.lock("a").acquire(timeout=0.3)
    client.close()
    waiting.close()
    until = time.monotonic() + 5
    while database.sessions() and time.monotonic() < until:
        time.sleep(0.02)
    assert database.sessions() == []


def test_many_threads_share_a_few_connections(connect, database):
    client = connect()

    def work(number: int) -> None:
        for cycle in range(5):
            with client.lock(f"{number % 4}-{cycle}", timeout=20):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(database.sessions()) <= 9


@pytest.mark.parametrize("pauses", range(3))
def test_a_task_cancelled_while_its_claim_is_under_way_leaves_nothing_behind(database, pauses):
    """Another session has the row locked, so the claim waits at the server when its task is
    cancelled."""

    async def main() -> None:
        async with lockfast.aio.connect(database.url) as client:
            async with client.lock("a"):
                pass
            with database.server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM lockfast_names FOR UPDATE")
                task = asyncio.ensure_future(client.lock("a", timeout=5).acquire())
                await asyncio.sleep(0.1)
                task.cancel()
                await asyncio.sleep(0.05 * pauses)
                connection.rollback()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (await client.inspect("a")).holders

    asyncio.run(main())

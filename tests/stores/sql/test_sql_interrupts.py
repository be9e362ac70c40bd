"""Ctrl-C in the middle of a call: nothing is held, nobody waits, and no connection is used again
that an answer may still come on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sql_servers import Database

import lockfast

PATIENCE = 20.0  # less than a lease
# Of the server's answer, after the interrupt: before whoever was interrupted has given up on it,
# which it does after a quarter of a second.
OFFSETS = (0.0, 0.05)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """As at a terminal, also where tests run in a process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def stranger(database: Database, rest: float) -> Iterator[Callable[[], None]]:
    """Has all names locked, so that whoever asks for one waits at the server. What is given is
    called when it should let go, ``rest`` seconds later."""
    with database.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM lockfast_names FOR UPDATE")
        cursor.fetchall()
        letting: list[threading.Timer] = []

        def let_go() -> None:
            letting.append(threading.Timer(rest, connection.rollback))
            letting[0].start()

        yield let_go
        for timer in letting:
            timer.join(PATIENCE)


def is_asking(database: Database) -> bool:
    if database.kind == "postgres":
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    else:
        sql = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return bool(database.call(sql)[0][0])


def until(so: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < limit
        time.sleep(0.01)


def interrupting(database: Database, then: Callable[[], None]) -> threading.Thread:
    """Ctrl-C as soon as the server has been asked."""

    def run() -> None:
        until(lambda: is_asking(database))
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # a real one: it ends system calls
        then()  # not before: who has its answer goes on, and is interrupted elsewhere

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("rest", OFFSETS)
def test_in_a_blocking_acquire(connect, database, rest):
    client, other = connect(), connect()
    with client.lock("a"):
        pass
    with stranger(database, rest) as let_go:
        thread = interrupting(database, let_go)
        with pytest.raises(KeyboardInterrupt):
            client.lock("a", timeout=PATIENCE).acquire()
        thread.join(PATIENCE)
    seen = other.inspect("a")
    assert not seen.holders and not seen.waiters
    for number in range(3):  # each answer belongs to its question
        with client.lock(f"{number}") as hold:
            assert client.inspect(f"{number}").holders[0].fence == hold.fence
    assert client.statistics().held == 0


@pytest.mark.parametrize("rest", OFFSETS)
def test_in_a_blocking_release(connect, database, rest):
    """What the server was asked it does: nobody waits for the end of the lease."""
    client, other = connect(), connect()
    hold = client.lock("a").acquire()
    with stranger(database, rest) as let_go:
        thread = interrupting(database, let_go)
        with pytest.raises(KeyboardInterrupt):
            hold.release()
        thread.join(PATIENCE)
    other.lock("a", timeout=PATIENCE).acquire().release()


@pytest.mark.parametrize("rest", OFFSETS)
def test_in_asyncio(connect, database, rest):
    other = connect()
    with other.lock("a"):
        pass

    async def main() -> None:
        async with lockfast.aio.connect(database.url) as client:
            await client.lock("a", timeout=PATIENCE).acquire()

    with stranger(database, rest) as let_go:
        thread = interrupting(database, let_go)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
        thread.join(PATIENCE)
    seen = other.inspect("a")
    assert not seen.holders and not seen.waiters


def test_in_a_transaction_lock_the_users_transaction_is_whole_or_gone(connect, database):
    client = connect()
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(database.server.connect()) for _ in range(3))
        client.transaction_lock("a", connection=first)
        client.transaction_lock("b", connection=second)
        thread = interrupting(database, lambda: None)
        try:
            client.transaction_lock("a", connection=second, timeout=PATIENCE)
        except KeyboardInterrupt as error:  # whose frames have the socket; they end here
            was = type(error)
        assert was is KeyboardInterrupt
        thread.join(PATIENCE)
        first.rollback()
        client.transaction_lock("a", connection=third, timeout=PATIENCE)
        if database.kind == "postgres":  # psycopg cancels what was interrupted, and goes on
            with pytest.raises(lockfast.AcquireTimeout):
                client.transaction_lock("b", connection=third, timeout=0)
            client.transaction_lock("c", connection=second, timeout=0)
        else:  # PyMySQL closes it
            until(lambda: taken(client, "b", third))
            stack.pop_all()


def taken(client: Any, name: str, connection: Any) -> bool:
    try:
        client.transaction_lock(name, connection=connection, timeout=0)
        return True
    except lockfast.AcquireTimeout:
        return False

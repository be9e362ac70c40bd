"""Ctrl-C in the middle of a call: no hold and no waiter is left behind, and a connection on which a
reply may still arrive is not used again."""

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
# Seconds from the interrupt to the server's reply. The interrupted call waits for it for a quarter
# of a second.
DELAYS = (0.0, 0.05)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, also where tests run in a background process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def locked_names(database: Database, delay: float) -> Iterator[Callable[[], None]]:
    """Lock the rows of all names, so that every claim waits at the server. Yields a function that
    unlocks them, ``delay`` seconds after it is called."""
    with database.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM lockfast_names FOR UPDATE")
        cursor.fetchall()
        timers: list[threading.Timer] = []

        def unlock() -> None:
            timers.append(threading.Timer(delay, connection.rollback))
            timers[0].start()

        yield unlock
        for timer in timers:
            timer.join(PATIENCE)


def is_waiting(database: Database) -> bool:
    if database.kind == "postgres":
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    else:
        sql = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return bool(database.call(sql)[0][0])


def until(predicate: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not predicate():
        assert time.monotonic() < limit
        time.sleep(0.01)


def interrupt_later(database: Database, then: Callable[[], None]) -> threading.Thread:
    """Send Ctrl-C as soon as a statement waits at the server."""

    def run() -> None:
        until(lambda: is_waiting(database))
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # a real signal: it interrupts system calls
        then()  # not before: with its reply, the call would be interrupted elsewhere

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("delay", DELAYS)
def test_an_interrupted_acquire_leaves_no_hold_and_no_waiter(connect, database, delay):
    client, other = connect(), connect()
    with client.lock("a"):
        pass
    with locked_names(database, delay) as unlock:
        thread = interrupt_later(database, unlock)
        with pytest.raises(KeyboardInterrupt):
            client.lock("a", timeout=PATIENCE).acquire()
        thread.join(PATIENCE)
    seen = other.inspect("a")
    assert not seen.holders and not seen.waiters
    for number in range(3):  # each reply belongs to its request
        with client.lock(f"{number}") as hold:
            assert client.inspect(f"{number}").holders[0].fence == hold.fence
    assert client.statistics().held == 0


@pytest.mark.parametrize("delay", DELAYS)
def test_an_interrupted_release_still_frees_the_lock(connect, database, delay):
    """The server executes the release: the next caller need not wait for the lease to end."""
    client, other = connect(), connect()
    hold = client.lock("a").acquire()
    with locked_names(database, delay) as unlock:
        thread = interrupt_later(database, unlock)
        with pytest.raises(KeyboardInterrupt):
            hold.release()
        thread.join(PATIENCE)
    other.lock("a", timeout=PATIENCE).acquire().release()


@pytest.mark.parametrize("delay", DELAYS)
def test_an_interrupted_asyncio_acquire_leaves_no_hold_and_no_waiter(connect, database, delay):
    other = connect()
    with other.lock("a"):
        pass

    async def main() -> None:
        async with lockfast.aio.connect(database.url) as client:
            await client.lock("a", timeout=PATIENCE).acquire()

    with locked_names(database, delay) as unlock:
        thread = interrupt_later(database, unlock)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
        thread.join(PATIENCE)
    seen = other.inspect("a")
    assert not seen.holders and not seen.waiters


def test_an_interrupted_transaction_lock_leaves_the_users_transaction_intact_or_ended(
    connect, database
):
    client = connect()
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(database.server.connect()) for _ in range(3))
        client.transaction_lock("a", connection=first)
        client.transaction_lock("b", connection=second)
        thread = interrupt_later(database, lambda: None)
        try:
            client.transaction_lock("a", connection=second, timeout=PATIENCE)
        except KeyboardInterrupt as error:  # its frames refer to the socket; they end here
            was = type(error)
        assert was is KeyboardInterrupt
        thread.join(PATIENCE)
        first.rollback()
        client.transaction_lock("a", connection=third, timeout=PATIENCE)
        if database.kind == "postgres":  # psycopg cancels the interrupted statement and goes on
            with pytest.raises(lockfast.AcquireTimeout):
                client.transaction_lock("b", connection=third, timeout=0)
            client.transaction_lock("c", connection=second, timeout=0)
        else:  # PyMySQL closes the connection
            until(lambda: try_lock(client, "b", third))
            stack.pop_all()


def try_lock(client: Any, name: str, connection: Any) -> bool:
    try:
        client.transaction_lock(name, connection=connection, timeout=0)
        return True
    except lockfast.AcquireTimeout:
        return False

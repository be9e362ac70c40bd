"""Defaults of a server or an account that would change the meaning of statements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sql_servers import Database

import lockfast
import lockfast.aio

DEFAULTS = {
    "sql_select_limit = 1": "sql_select_limit = 18446744073709551615",
    "completion_type = 1": "completion_type = 0",
    "completion_type = 2": "completion_type = 0",
    "sql_mode = 'ORACLE'": "sql_mode = @before",
    "sql_mode = 'SIMULTANEOUS_ASSIGNMENT'": "sql_mode = @before",
    "sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'": "sql_mode = @before",
}


@contextmanager
def defaults(database: Database, setting: str) -> Iterator[None]:
    """Apply a default of new sessions."""
    if database.kind == "postgres":
        database.call(f"ALTER ROLE CURRENT_USER SET {setting}")
        try:
            yield
        finally:
            database.call("ALTER ROLE CURRENT_USER RESET ALL")
        return
    ((before,),) = database.call("SELECT @@GLOBAL.sql_mode")
    database.call(f"SET GLOBAL {setting}")
    try:
        yield
    finally:
        database.call(f"SET GLOBAL {DEFAULTS[setting]}".replace("@before", f"'{before}'"))


def checked(connect: Callable[[], Any]) -> None:
    """Exclusion of a lock, a semaphore and a read-write lock; growing fences; a multi-lock."""
    clients = [connect() for _ in range(5)]
    hold = clients[0].lock("a").acquire()
    assert [client.lock("a").try_acquire() for client in clients[1:]] == [None] * 4
    assert clients[1].inspect("a").holders[0].fence == hold.fence
    hold.release()
    fences = [hold.fence]
    for client in clients:
        with client.lock("a") as hold:
            fences.append(hold.fence)
            assert client.inspect("a").holders[0].fence == hold.fence
    assert fences == sorted(set(fences))
    permits = [client.semaphore("s", 2).try_acquire() for client in clients]
    assert sum(permit is not None for permit in permits) == 2
    readers = [client.rwlock("r").read().try_acquire() for client in clients[:4]]
    assert None not in readers
    assert clients[4].rwlock("r").write().try_acquire() is None
    with clients[0].multi_lock("m", "n"):
        assert clients[1].lock("n").try_acquire() is None
    for hold in (*permits, *readers):
        if hold is not None:
            hold.release()
    assert clients[0].names() == []


async def checked_in_loop(url: str) -> None:
    async with lockfast.aio.connect(url) as ours, lockfast.aio.connect(url) as theirs:
        for _ in range(2):
            async with ours.lock("a") as hold:
                assert await theirs.lock("a").try_acquire() is None
                assert (await theirs.inspect("a")).holders[0].fence == hold.fence
        permits = [await client.semaphore("s", 2).try_acquire() for client in (ours, theirs)]
        async with lockfast.aio.connect(url) as third:
            assert await third.semaphore("s", 2).try_acquire() is None
        for permit in permits:
            assert permit is not None
            await permit.release()
        assert await ours.names() == []


def test_defaults_of_the_server_do_not_change_what_statements_mean(
    connect: Callable[[], Any], database: Database
) -> None:
    settings = ["extra_float_digits = -15", "standard_conforming_strings = off"]
    for setting in settings if database.kind == "postgres" else DEFAULTS:
        with defaults(database, setting):
            try:
                checked(connect)
                asyncio.run(checked_in_loop(database.url))
            except Exception as error:
                error.add_note(setting)
                raise


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.parametrize("completion", [1, 2])
def test_a_connection_of_the_user_whose_commits_chain_is_taken_over(
    database: Database, completion: int
) -> None:
    with defaults(database, f"completion_type = {completion}"):
        made: list[lockfast.Client] = []

        def connect() -> Any:
            made.append(lockfast.connect(lambda: database.server.connect()))
            return made[-1]

        try:
            checked(connect)
        finally:
            for client in made:
                client.close()

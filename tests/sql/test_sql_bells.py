"""What wakes who waits: a bell at once, without one a look; and that it hits nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
import pytest
from sql_servers import Database

import holdfast
from holdfast.backends.rows import ears

# Less than the refresh of a place (1.5 s), which would find out by itself.
SOON = 0.7


@pytest.fixture
def bells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks without a bell."""
    monkeypatch.setattr(ears, "FLOOR", 60.0)


def waits(client: Any, **terms: Any) -> tuple[threading.Thread, list[float]]:
    """Somebody who waits, and when it was inside."""
    inside: list[float] = []

    def wait() -> None:
        with client.lock("bell", timeout=20, **terms):
            inside.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, inside


def handed_over(holder: Any, client: Any, **terms: Any) -> float:
    """Seconds from a release to who waited for it in another client, for some refreshes."""
    with holder.lock("bell", **terms):
        thread, inside = waits(client, **terms)
        while not holder.inspect("bell").waiters:
            time.sleep(0.01)
        time.sleep(0.2)
        left = time.monotonic()
    thread.join(20)
    return inside[0] - left


@pytest.mark.usefixtures("bells_alone")
@pytest.mark.parametrize("fair", [True, False])
def test_a_release_wakes_who_waits_in_another_process(
    connect: Callable[..., Any], fair: bool
) -> None:
    holder, client = connect(), connect()
    times = [handed_over(holder, client, fair=fair) for _ in range(5)]
    assert sorted(times)[2] < SOON  # the first may come before the ear is open


@pytest.mark.usefixtures("bells_alone")
def test_an_ear_whose_session_is_killed_hears_again(
    connect: Callable[..., Any], database: Database
) -> None:
    holder, client = connect(), connect()
    handed_over(holder, client)
    for session in database.sessions():
        database.kill(session)
    times = [handed_over(holder, client) for _ in range(4)]
    assert sorted(times)[1] < SOON


@pytest.fixture
def mariadb(mariadb_server: Any) -> Database:
    made = Database("mariadb", mariadb_server)
    made.drop_tables()
    return made


@pytest.mark.usefixtures("bells_alone")
def test_a_bell_ends_no_other_statement_of_anybody(mariadb: Database) -> None:
    """Least of all when the ear is gone, and its session's number means nobody."""
    with (
        holdfast.connect(mariadb.url) as holder,
        holdfast.connect(mariadb.url) as client,
        mariadb.server.connect(autocommit=True) as other,
        other.cursor() as cursor,
    ):
        failures: list[Exception] = []

        def sleep() -> None:
            try:
                cursor.execute("SELECT SLEEP(3)")  # one that was ended would be an error
            except pymysql.MySQLError as error:
                failures.append(error)

        sleeping = threading.Thread(target=sleep)
        sleeping.start()
        while sleeping.is_alive():
            handed_over(holder, client)
            for session in ears_of(mariadb):
                mariadb.kill(session)
        sleeping.join()
        assert failures == []


def ears_of(mariadb: Database) -> list[int]:
    found = mariadb.call(
        "SELECT id FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%%'"
    )
    return [int(number) for (number,) in found]


@pytest.mark.usefixtures("bells_alone")
def test_a_closed_client_leaves_no_ear(mariadb: Database) -> None:
    with holdfast.connect(mariadb.url) as holder:
        with holdfast.connect(mariadb.url) as client:
            handed_over(holder, client)
            assert len(ears_of(mariadb)) == 1
        until = time.monotonic() + 3  # the server itself would need five
        while ears_of(mariadb):
            assert time.monotonic() < until
            time.sleep(0.02)


def test_who_may_not_be_rung_by_another_user_looks(
    mariadb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses to end the statement of another user's session."""
    monkeypatch.setattr(ears, "FLOOR", 0.2)
    for user in ("near", "far"):
        mariadb.call(f"CREATE OR REPLACE USER {user}@127.0.0.1")
        mariadb.call(f"GRANT ALL ON holdfast.* TO {user}@127.0.0.1")
    near, far = (mariadb.url.replace("root", user) for user in ("near", "far"))
    with holdfast.connect(near) as holder, holdfast.connect(far) as client:
        first, *times = [handed_over(holder, client) for _ in range(4)]
        assert first < 1.4
        assert max(times) < SOON  # it looks often, since it found out

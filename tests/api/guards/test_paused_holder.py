"""The story that fences are for, from the lock to each kind of resource.

One holds the lock and is paused for longer than its lease. Another gets it, and writes. The first
wakes up, does not know, and writes too: it must be refused, and what the other wrote must stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from databases import MariaDB, PostgreSQL, SQLite

import lockfast
from lockfast.guards import FenceColumn, FileGuard, RedisGuard, SqlGuard


class Resource(NamedTuple):
    write: Callable[[object, str], None]
    value: Callable[[], str]


def database(request: pytest.FixtureRequest, kind: str) -> Any:
    made: Any
    if kind == "sqlite":
        made = SQLite(request.getfixturevalue("tmp_path"))
    elif kind == "mariadb":
        made = MariaDB(request.getfixturevalue("mariadb_server"))
    else:
        made = PostgreSQL(request.getfixturevalue("postgres_server"))
    made.make_data()
    request.addfinalizer(made.close)
    return made


def in_a_row(request: pytest.FixtureRequest, kind: str) -> Resource:
    there = database(request, kind)
    column, waiter = FenceColumn(there.kind, style=there.style), there.waiter
    setting_up = there.connect()
    there.run(setting_up, f"ALTER TABLE {there.data} ADD COLUMN {column.ddl}")
    setting_up.commit()

    def write(hold: Any, value: str) -> None:
        with there.transaction() as link:
            changed = there.run(
                link,
                f"UPDATE {there.data} SET value = {waiter('value')}, {column.assign} "
                f"WHERE id = 1 AND {column.where}",
                value=value,
                fence=hold.fence,
            )
            if not changed.rowcount:
                row = there.run(link, column.look(there.data, "id = 1")).fetchone()
                column.check("row 1", hold, row)

    return Resource(write, there.value)


def in_a_transaction(request: pytest.FixtureRequest, kind: str) -> Resource:
    there = database(request, kind)
    setting_up = there.connect()
    SqlGuard(setting_up, table=there.marks).create()
    setting_up.commit()

    def write(hold: object, value: str) -> None:
        with there.transaction() as link:
            SqlGuard(link, table=there.marks).check("report", hold)
            there.write(link, value)

    return Resource(write, there.value)


def in_redis(request: pytest.FixtureRequest, _kind: str) -> Resource:
    client = request.getfixturevalue("redis_server").client()
    request.addfinalizer(client.close)
    key = f"key-{uuid.uuid4().hex[:12]}"
    guard = RedisGuard(client)
    return Resource(
        lambda hold, value: guard.write(hold, "SET", key, value), lambda: client.get(key).decode()
    )


def in_a_file(request: pytest.FixtureRequest, _kind: str) -> Resource:
    path: Path = request.getfixturevalue("tmp_path") / "report"
    return Resource(FileGuard(path).write, path.read_text)


RESOURCES = {
    "row of SQLite": (in_a_row, "sqlite"),
    "row of MariaDB": (in_a_row, "mariadb"),
    "row of PostgreSQL": (in_a_row, "postgresql"),
    "transaction of SQLite": (in_a_transaction, "sqlite"),
    "transaction of MariaDB": (in_a_transaction, "mariadb"),
    "transaction of PostgreSQL": (in_a_transaction, "postgresql"),
    "key of Redis": (in_redis, ""),
    "file": (in_a_file, ""),
}


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_holder_that_was_paused_is_refused(kind, request, lockfast_client, lockfast_clock):
    made, which = RESOURCES[kind]
    resource = made(request, which)

    sleeper = lockfast_client.lock("report", lease=10, owner="sleeper").acquire()
    resource.write(sleeper, "of the sleeper")
    lockfast_clock.advance(11)  # a long garbage collection
    other = lockfast_client.lock("report", owner="other").acquire(timeout=0)
    resource.write(other, "of the other")
    with pytest.raises(lockfast.StaleFence) as caught:
        resource.write(sleeper, "of the sleeper, late")

    assert (caught.value.fence, caught.value.seen) == (sleeper.fence, other.fence)
    assert sleeper.lost and other.is_held
    assert resource.value() == "of the other"
    resource.write(other, "of the other, again")
    assert resource.value() == "of the other, again"
    other.release()


@pytest.mark.parametrize("kind", RESOURCES)
def test_on_the_real_clock_of_sqlite_too(kind, request, tmp_path):
    """The store of many processes, a real lease, and nobody renews it."""
    made, which = RESOURCES[kind]
    resource = made(request, which)
    url = f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url) as here, lockfast.connect(url) as there:
        sleeper = here.lock("report", lease=0.05).acquire()
        other = there.lock("report").acquire(timeout=30)
        resource.write(other, "of the other")
        with pytest.raises(lockfast.StaleFence):
            resource.write(sleeper, "late")
        assert resource.value() == "of the other"
        other.release()

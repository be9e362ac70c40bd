"""The failure that fences prevent, end to end, from the lock to each kind of resource.

A holder is paused for longer than its lease. Another owner acquires the lock and writes. The first
one resumes, does not know of its loss, and writes too: its write must be refused, and the data of
the second must stay.
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
    target = database(request, kind)
    column = FenceColumn(target.kind, style=target.style)
    setting_up = target.connect()
    target.run(setting_up, f"ALTER TABLE {target.data} ADD COLUMN {column.ddl}")
    setting_up.commit()

    def write(hold: Any, value: str) -> None:
        with target.transaction() as connection:
            changed = target.run(
                connection,
                f"UPDATE {target.data} SET value = {target.placeholder('value')}, {column.assign} "
                f"WHERE id = 1 AND {column.where}",
                value=value,
                fence=hold.fence,
            )
            if not changed.rowcount:
                row = target.run(connection, column.look(target.data, "id = 1")).fetchone()
                column.check("row 1", hold, row)

    return Resource(write, target.value)


def in_a_transaction(request: pytest.FixtureRequest, kind: str) -> Resource:
    target = database(request, kind)
    setting_up = target.connect()
    SqlGuard(setting_up, table=target.marks).create()
    setting_up.commit()

    def write(hold: object, value: str) -> None:
        with target.transaction() as connection:
            SqlGuard(connection, table=target.marks).check("report", hold)
            target.write(connection, value)

    return Resource(write, target.value)


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
def test_a_paused_holder_is_refused_on_a_real_clock_too(kind, request, tmp_path):
    """With a store for several processes, and a real lease that is not renewed."""
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

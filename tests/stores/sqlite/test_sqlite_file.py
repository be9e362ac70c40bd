"""The SQLite file: deleted, replaced, of an earlier boot, foreign, not accessible, blocked."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.core.keeper import budget_for
from lockfast.stores.sqlite import file
from lockfast.stores.sqlite.store import SqliteStore

PATIENCE = 60.0
Start = Callable[..., Any]


def delete_the_file(path: Path) -> None:
    path.unlink()


def delete_the_file_and_its_log(path: Path) -> None:
    for one in path.parent.glob(path.name + "*"):
        if one.is_file():
            one.unlink()


def delete_all_of_it(path: Path) -> None:
    delete_the_file_and_its_log(path)
    # Atomically: a client that opens its socket in the folder would make the deletion fail.
    gone = path.with_name(path.name + ".d").rename(path.with_name("gone"))
    shutil.rmtree(gone)


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_it_by_another(path: Path) -> None:
    other = path.with_name("other.db")
    with lockfast.connect(f"sqlite://{other}") as client:
        client.lock("made").acquire().release()
    path.with_name(path.name + "-wal").unlink(missing_ok=True)
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    other.replace(path)


WAYS = [
    delete_the_file,
    delete_the_file_and_its_log,
    delete_all_of_it,
    delete_the_folder,
    replace_it_by_another,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "locks.db"


# ---- deleted or replaced while open ----------------------------------------------------------


@pytest.mark.parametrize("delete", WAYS)
def test_a_holder_whose_file_is_gone_loses_its_hold(
    client: lockfast.Client, path: Path, delete: Callable[[Path], None]
) -> None:
    hold = client.lock("n", lease=1.0, renew=True).acquire()
    delete(path)
    assert hold.wait_lost(PATIENCE)
    with pytest.raises(lockfast.HoldLost):
        hold.check()


@pytest.mark.parametrize("delete", WAYS)
def test_claims_go_on_in_the_new_file_under_a_greater_fence(
    client: lockfast.Client, url: str, path: Path, delete: Callable[[Path], None]
) -> None:
    old = client.lock("n").acquire().fence
    delete(path)
    with lockfast.connect(url) as other:
        hold = other.lock("n").acquire(timeout=PATIENCE)
        assert hold.fence > old
        time.sleep(2 * file.CHECK_INTERVAL)
        # The client that had the old file open uses the new one by now.
        assert client.lock("n", owner="me").try_acquire() is None
        assert client.inspect("n").holders[0].fence == hold.fence
        hold.release()
        with client.lock("n", owner="me", timeout=PATIENCE) as mine:
            assert mine.fence > hold.fence
            assert other.lock("n").try_acquire() is None


@pytest.mark.parametrize("delete", WAYS)
def test_an_idle_client_of_the_deleted_file_does_not_disturb_those_of_the_new_one(
    start: Start, url: str, path: Path, delete: Callable[[Path], None]
) -> None:
    idle = start(
        """
client = lockfast.connect(url); client.lock("n").acquire().release(); report("idle"); read_line()
report(client.lock("n").try_acquire() is None)
""",
        url,
    )
    assert idle.line() == "idle"
    delete(path)
    with lockfast.connect(url) as first, lockfast.connect(url) as second:
        for number in range(300):
            name = f"name {number}"
            with first.lock(name, timeout=PATIENCE) as hold:
                assert second.lock(name).try_acquire() is None
                assert second.inspect(name).holders[0].fence == hold.fence
        with second.lock("n", timeout=PATIENCE):
            idle.send("go on")
            assert idle.line() == "True"
            assert first.lock("n").try_acquire() is None
    assert consistent(path)


@pytest.mark.parametrize("delete", [delete_the_file_and_its_log, delete_all_of_it])
def test_waiters_of_a_deleted_file_queue_in_the_new_one(
    start: Start,
    client: lockfast.Client,
    url: str,
    path: Path,
    delete: Callable[[Path], None],
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    client.lock("n").acquire()
    waiters = [
        start(
            "report('waits'); h = lockfast.connect(url).lock('n').acquire(); report(h.fence)", url
        )
        for _ in range(2)
    ]
    assert [waiter.line() for waiter in waiters] == ["waits", "waits"]
    eventually(lambda: len(client.inspect("n").waiters) == 2)
    delete(path)
    # The hold is gone with the file: at their next refresh both waiters enqueue in the new file.
    # When the first process ends, its hold is released, and the second is served.
    fences = [int(waiter.line()) for waiter in waiters]
    assert len(set(fences)) == 2


# ---- another boot, another format, another owner ---------------------------------------------


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        yield connection


def consistent(path: Path) -> bool:
    with opened(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_file_of_an_earlier_boot_is_emptied_but_its_fence_goes_on(url: str, path: Path) -> None:
    with lockfast.connect(url) as before:
        before.lock(
            "n", lease=1000
        ).acquire().detach()  # belongs to no process, so it stays in the file
    later = int((time.time() + 1000) * 1e6)
    with opened(path) as connection:
        assert connection.execute("SELECT count(*) FROM holds").fetchone() == (1,)
        connection.execute("UPDATE store SET boot = 'an earlier one', fence_ceiling = ?", (later,))
    with lockfast.connect(url) as after:
        assert after.names() == []
        assert after.lock("n").acquire(timeout=0).fence > later


def test_where_the_system_has_no_boot_id_fences_still_begin_at_the_wall_clock(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "boot_id", lambda: "")
    began = int(time.time() * 1e6)
    with lockfast.connect(url) as client:
        first = client.lock("n").acquire().fence
    assert first >= began
    delete_all_of_it(path)
    with lockfast.connect(url) as client:
        assert client.lock("n").acquire().fence > first


def test_a_file_of_this_boot_is_not_emptied(url: str, path: Path) -> None:
    with lockfast.connect(url) as before:
        before.lock("n", lease=1000).acquire().detach()
    with lockfast.connect(url) as after:
        assert after.names() == ["n"]


def test_another_format_is_refused_and_named_in_the_error(url: str, path: Path) -> None:
    with lockfast.connect(url) as client:
        client.lock("n").acquire().release()
    with opened(path) as connection:
        connection.execute("UPDATE store SET version = 99")
    with (
        lockfast.connect(url) as client,
        pytest.raises(lockfast.BackendError, match=r"format 99.*reads 1"),
    ):
        client.lock("n").acquire()
    with opened(path) as connection:
        assert connection.execute("SELECT version FROM store").fetchone() == (99,)


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_of_something_else_is_refused_and_left_as_it_was(
    url: str, path: Path, journal: str
) -> None:
    with opened(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE holds (precious TEXT)")
        connection.execute("INSERT INTO holds VALUES ('data')")
    before = path.read_bytes()
    with (
        lockfast.connect(url) as client,
        pytest.raises(lockfast.BackendError, match="something else") as refused,
    ):
        client.lock("n").acquire(timeout=30)
    assert str(path) in str(refused.value) and not refused.value.transient
    assert path.read_bytes() == before
    with opened(path) as connection:
        assert connection.execute("SELECT * FROM holds").fetchall() == [("data",)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == (journal,)


@pytest.mark.parametrize("content", [b"a diary\n" * 500, b"short", b"\0" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(
    url: str, path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    with (
        lockfast.connect(url) as client,
        pytest.raises(lockfast.BackendError, match="not a SQLite file") as refused,
    ):
        client.lock("n").acquire(timeout=30)
    assert str(path) in str(refused.value) and not refused.value.transient
    assert path.read_bytes() == content


OUT_OF_REACH = {
    "a folder that may not be written": ("", 0o555, "locks.db"),
    "a folder that may not be entered": ("", 0o000, "locks.db"),
    "a file that may not be written": ("locks.db", 0o777, "locks.db"),
    "a file where the folder should be": ("file", 0o777, "file/locks.db"),
    "a name that is too long": ("", 0o777, "x" * 300),
    "a file system that takes no files": ("", 0o777, "/proc/locks.db"),
}
AS_NOBODY = """
import asyncio, lockfast.stores.sqlite.endpoint
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
began = time.monotonic()
async def in_tasks():
    await lockfast.aio.connect(url).lock("n").acquire(timeout=30)
try:
    if rest == ["asyncio"]: asyncio.run(in_tasks())
    else: lockfast.connect(url).lock("n").acquire(timeout=30)
    report("acquired")
except (lockfast.BackendError, lockfast.ConfigurationError) as error:
    report("refused", time.monotonic() - began < 10, url[9:] in str(error), error)
except BaseException as error:
    report("raised", repr(error))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder whose parents every user may enter."""
    with tempfile.TemporaryDirectory(prefix="lockfast-") as folder:
        yield Path(folder)
        Path(folder).chmod(0o777)


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
@pytest.mark.parametrize("trouble", OUT_OF_REACH)
def test_a_file_that_cannot_be_accessed_is_an_error_that_names_it_at_once(
    start: Start, open_folder: Path, trouble: str, api: str
) -> None:
    existing, mode, name = OUT_OF_REACH[trouble]
    if existing:
        (open_folder / existing).touch(0o444)
    open_folder.chmod(mode)
    reply = start(AS_NOBODY, f"sqlite://{open_folder / name}", api).line()
    assert reply.startswith("refused True True"), reply


def test_a_url_that_names_a_folder_is_refused(tmp_path: Path) -> None:
    for url in (f"sqlite://{tmp_path}", f"sqlite://{tmp_path}/", f"sqlite://{tmp_path}/new/"):
        with pytest.raises(lockfast.ConfigurationError, match="names a folder"):
            lockfast.connect(url)


def test_a_folder_that_replaced_the_file_is_an_error_that_names_it(url: str, path: Path) -> None:
    with lockfast.connect(url) as client:
        path.mkdir()
        with pytest.raises(lockfast.BackendError, match=str(path)):
            client.lock("n").acquire(timeout=5)


def test_missing_parent_folders_are_created_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "locks.db"
    with lockfast.connect(f"sqlite://{path}") as client:
        client.lock("n").acquire().release()
    assert path.exists()
    assert path.parent.stat().st_mode & 0o077 == 0


# ---- blocked by another process inside a transaction -----------------------------------------


@contextlib.contextmanager
def somebody_inside(path: Path) -> Iterator[None]:
    with opened(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_store_that_stays_blocked_is_reported_when_patience_is_over(
    client: lockfast.Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "patience", 1.0)
    client.lock("n").acquire().release()
    with somebody_inside(path):
        for timeout in (0, None):
            began = time.monotonic()
            with pytest.raises(lockfast.BackendError, match="stayed locked") as refused:
                client.lock("n", lease=1.0).acquire(timeout=timeout)
            # The patience, and one budget to withdraw; the rest is for a busy machine.
            assert time.monotonic() - began < 1.0 + budget_for(1.0) + 2.0
            assert str(path) in str(refused.value) and refused.value.transient
    assert client.lock("n").acquire(timeout=30).is_held


def test_a_release_into_a_blocked_store_reports_an_unknown_outcome(
    client: lockfast.Client, path: Path
) -> None:
    hold = client.lock("n", lease=3.0).acquire()
    with (
        somebody_inside(path),
        pytest.raises(lockfast.BackendError, match=r"released is unknown.*frees itself in"),
    ):
        hold.release()


def test_a_short_block_is_waited_for(start: Start, client: lockfast.Client, url: str) -> None:
    client.lock("n").acquire().release()
    blocker = start(
        """
import sqlite3
file = sqlite3.connect(url[9:], isolation_level=None)
file.execute("BEGIN IMMEDIATE"); report("inside"); time.sleep(0.5); file.execute("ROLLBACK")
""",
        url,
    )
    assert blocker.line() == "inside"
    assert client.lock("n", lease=0.6).acquire(timeout=PATIENCE).is_held


def test_the_event_loop_goes_on_while_the_store_is_blocked(url: str, path: Path) -> None:
    async def scenario() -> tuple[int, float]:
        client = lockfast.aio.connect(url)
        hold = await client.lock("n").acquire()
        await hold.release()
        rounds, slowest = 0, 0.0
        with somebody_inside(path):
            asking = asyncio.ensure_future(client.lock("n", lease=6.0).acquire())
            while not asking.done():
                before = time.monotonic()
                await asyncio.sleep(0.001)
                rounds, slowest = rounds + 1, max(slowest, time.monotonic() - before)
            with pytest.raises(lockfast.BackendError, match="stayed locked"):
                await asking
        await client.close()
        return rounds, slowest

    rounds, slowest = asyncio.run(scenario())
    assert rounds > 100
    assert slowest < budget_for(6.0) / 2

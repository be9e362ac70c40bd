"""Wake-ups between the processes of one host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lockfast
from both_apis import APIS, took, until
from lockfast.stores.sqlite import peers
from lockfast.stores.sqlite.book import process_of
from lockfast.stores.sqlite.inboxes import Inbox, Inboxes
from lockfast.stores.sqlite.peers import Peers
from lockfast.stores.wakeup_pipe import WakeupPipe

PATIENCE = 60.0
AT_ONCE = 1.0  # less than the refresh interval, after which a waiter is served without a wake-up
Delete = Callable[[Path], None]


def test_threads_that_send_their_first_wakeup_at_once_open_one_socket(tmp_path, monkeypatch):
    made = []

    class Slow(socket.socket):
        def __init__(self, *args):
            made.append(self)
            time.sleep(0.02)  # the scheduler may pause a thread anywhere
            super().__init__(*args)

    monkeypatch.setattr(socket, "socket", Slow)
    inboxes = Inboxes(tmp_path)
    inboxes.peers.wake_address()
    threads = [
        threading.Thread(target=inboxes.wake, args=("elsewhere", "id", None)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inboxes.close()
    assert len(made) == 1, "the other sockets are never closed"


@pytest.mark.parametrize("thread", [True, False])
def test_an_interrupt_while_the_socket_opens_does_not_break_later_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: bool
) -> None:
    ours, theirs = Inboxes(tmp_path), Inboxes(tmp_path)
    new = ours._new

    def interrupted(wake_address: str) -> Inbox:
        new(wake_address)  # bound, and lost before it is stored
        raise KeyboardInterrupt

    monkeypatch.setattr(ours, "_new", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ours.watch("a", lambda grant: None, 0.0, thread)
    monkeypatch.undo()
    woken = threading.Event()
    ours.watch("a", lambda grant: woken.set(), 0.0, thread)
    theirs.peers.wake_address()
    theirs.wake(ours.address_of("a", thread=thread), "a", None)
    if thread:
        asyncio.run(ours.thread_inbox().wait(0.0))
        ours.thread_inbox().receive()
    else:
        ours.listen(WakeupPipe(), 10.0)
    assert woken.is_set()
    ours.close()
    theirs.close()


# ---- a folder that is deleted ------------------------------------------------------------------


def delete_the_registrations(path: Path) -> None:
    shutil.rmtree(path.with_name(path.name + ".d"))


def delete_the_store(path: Path) -> None:
    for one in path.parent.glob(path.name + "*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def wake_sockets(path: Path) -> list[str]:
    return [wake_socket.stem for wake_socket in path.with_name(path.name + ".d").glob("*.wake")]


def wake_addresses_of_waiters(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        return [
            wake_address
            for (wake_address,) in connection.execute("SELECT wake_address FROM waiters")
        ]


@pytest.fixture(params=["short", "x" * 120], ids=["short", "long"])
def deep(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file whose sockets have a path within the length limit, or beyond it."""
    return tmp_path / request.param / "locks.db"


@pytest.fixture
def deleting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Delete], list[str]]:
    """Delete the files when the next waiter is in the queue and is about to open its socket; the
    list is then not empty."""

    def deleting(path: Path, delete: Delete) -> list[str]:
        new, met = Inboxes._opened, []

        def in_between(self: Inboxes, suffix: str) -> Inbox:
            if not met:
                met.append(suffix)
                delete(path)
            return new(self, suffix)

        monkeypatch.setattr(Inboxes, "_opened", in_between)
        return met

    return deleting


@pytest.mark.parametrize("delete", [delete_the_store, delete_the_folder])
@pytest.mark.parametrize("api", APIS)
def test_a_waiter_whose_store_was_deleted_goes_on_waiting_in_the_new_file(
    deep: Path, delete: Delete, api: str, deleting: Callable[[Path, Delete], list[str]]
) -> None:
    with lockfast.connect(f"sqlite://{deep}") as client:
        old = client.lock("n").acquire()
        other = APIS[api](f"sqlite://{deep}")
        met = deleting(deep, delete)
        hold = other.later(lambda client: client.lock("n").acquire()).result(PATIENCE)
        assert met and hold.fence > old.fence
        assert deep.parent.stat().st_mode & 0o077 == 0, "other users may access the folder"
        other.close()


@pytest.mark.parametrize("api", APIS)
def test_a_waiter_whose_folder_was_deleted_registers_again_and_is_woken_there(
    deep: Path, api: str, deleting: Callable[[Path, Delete], list[str]]
) -> None:
    with lockfast.connect(f"sqlite://{deep}") as client:
        hold = client.lock("n").acquire()
        other = APIS[api](f"sqlite://{deep}")
        met = deleting(deep, delete_the_registrations)
        waits = other.later(lambda client: client.lock("n").acquire())
        until(lambda: met and other.client.statistics().waiting)
        # Its socket is new, so it asks again, and its row contains the new wake address.
        until(lambda: wake_sockets(deep) and wake_sockets(deep) == wake_addresses_of_waiters(deep))
        with took() as time_of:
            hold.release()
            assert waits.result(PATIENCE).fence > hold.fence
        assert time_of.unstalled < AT_ONCE
        other.close()


def test_a_folder_that_cannot_be_created_is_still_an_error(
    path: Path, deleting: Callable[[Path, Delete], list[str]]
) -> None:
    def replace_by_a_file(path: Path) -> None:
        delete_the_registrations(path)
        path.with_name(path.name + ".d").touch()

    with lockfast.connect(f"sqlite://{path}") as client:
        client.lock("n").acquire()
        deleting(path, replace_by_a_file)
        with (
            lockfast.connect(f"sqlite://{path}") as other,
            pytest.raises(lockfast.BackendError, match=r"no wake-up socket.*\.d"),
        ):
            other.lock("n").acquire(timeout=PATIENCE)


@pytest.mark.parametrize("thread", [True, False])
def test_a_client_that_registers_again_opens_its_socket_again(deep: Path, thread: bool) -> None:
    ours = Inboxes(deep.with_name("locks.db.d"))
    ours.watch("id", lambda grant: None, 0.0, thread)
    before = ours.address_of("id", thread=thread)
    delete_the_folder(deep)
    ours.peers._checked_at -= peers.CHECK_INTERVAL  # it checks again
    after = ours.address_of("id", thread=thread)
    assert process_of(after) != process_of(before)
    # The keeper listens there, also for a thread that waits on its old socket.
    assert {one.name for one in deep.with_name("locks.db.d").iterdir()} == {
        f"{after}.life",
        f"{after}.wake",
    }
    ours.close()


def test_a_process_that_registers_again_during_a_liveness_check_is_not_taken_for_dead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = path.with_name("locks.db.d")
    ours, theirs = Peers(folder), Peers(folder)
    wake_address = theirs.wake_address()
    flock = fcntl.flock

    def deleted_in_between(life: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        theirs._checked_at -= peers.CHECK_INTERVAL  # it checks again
        assert theirs.wake_address() != wake_address
        flock(life, how)

    monkeypatch.setattr(fcntl, "flock", deleted_in_between)
    assert not ours.is_dead(wake_address), "its holds would be granted to another process"
    theirs.close()

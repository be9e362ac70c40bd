"""How processes on one host ring each other's bells."""

from __future__ import annotations

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
from lockfast.core.ports import Wake
from lockfast.stores.sqlite import peers
from lockfast.stores.sqlite.peers import Peers

PATIENCE = 60.0
AT_ONCE = 1.0  # less than the time after which a place is refreshed, which would tell it too
Vanish = Callable[[Path], None]


def test_threads_that_ring_for_the_first_time_together_open_one_socket(tmp_path, monkeypatch):
    made = []

    class Slow(socket.socket):
        def __init__(self, *said):
            made.append(self)
            time.sleep(0.02)  # a thread may be paused anywhere
            super().__init__(*said)

    monkeypatch.setattr(socket, "socket", Slow)
    peers = Peers(tmp_path)
    threads = [
        threading.Thread(target=peers.wake, args=("elsewhere", "id", None)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peers.close()
    assert len(made) == 1, "one that nobody closes stays open"


# ---- a folder that is deleted ------------------------------------------------------------------


def the_homes_alone(path: Path) -> None:
    shutil.rmtree(path.with_name(path.name + ".d"))


def all_of_it(path: Path) -> None:
    for one in path.parent.glob(path.name + "*"):
        shutil.rmtree(one) if one.is_dir() else one.unlink()


def the_folder_around_it(path: Path) -> None:
    shutil.rmtree(path.parent)


def wakeups(path: Path) -> list[str]:
    return [bell.stem for bell in path.with_name(path.name + ".d").glob("*.bell")]


def wake_addresses_of_waiters(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        return [wake_address for (wake_address,) in connection.execute("SELECT home FROM waiters")]


@pytest.fixture(params=["short", "x" * 120], ids=["short", "long"])
def deep(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file whose bells have a path that a socket takes, or one that is too long for it."""
    return tmp_path / request.param / "locks.db"


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Vanish], list[str]]:
    """Delete it when the next one stands in the queue and has not opened its bell yet; who did."""

    def vanishing(path: Path, vanish: Vanish) -> list[str]:
        watch, met = Peers.watch, []

        def in_between(self: Peers, claim_id: str, wake: Wake, since: float) -> bool:
            if not met:
                assert self._bell is None
                met.append(claim_id)
                vanish(path)
            return watch(self, claim_id, wake, since)

        monkeypatch.setattr(Peers, "watch", in_between)
        return met

    return vanishing


@pytest.mark.parametrize("vanish", [all_of_it, the_folder_around_it])
@pytest.mark.parametrize("api", APIS)
def test_who_finds_no_folder_for_its_bell_waits_on_in_the_new_file(
    deep: Path, vanish: Vanish, api: str, vanishing: Callable[[Path, Vanish], list[str]]
) -> None:
    with lockfast.connect(f"sqlite://{deep}") as client:
        old = client.lock("n").acquire()
        other = APIS[api](f"sqlite://{deep}")
        met = vanishing(deep, vanish)
        hold = other.later(lambda client: client.lock("n").acquire()).result(PATIENCE)
        assert met and hold.fence > old.fence
        assert deep.parent.stat().st_mode & 0o077 == 0, "the folder is for this user alone"
        other.close()


@pytest.mark.parametrize("api", APIS)
def test_who_finds_no_folder_for_its_bell_makes_one_and_is_rung_there(
    deep: Path, api: str, vanishing: Callable[[Path, Vanish], list[str]]
) -> None:
    with lockfast.connect(f"sqlite://{deep}") as client:
        hold = client.lock("n").acquire()
        other = APIS[api](f"sqlite://{deep}")
        met = vanishing(deep, the_homes_alone)
        waits = other.later(lambda client: client.lock("n").acquire())
        until(lambda: met and other.client.statistics().waiting)
        # Its bell is new, so it asks again, and its place says where it is heard now.
        until(lambda: wakeups(deep) and wakeups(deep) == wake_addresses_of_waiters(deep))
        with took() as time_of:
            hold.release()
            assert waits.result(PATIENCE).fence > hold.fence
        assert time_of.seconds < AT_ONCE
        other.close()


def test_a_place_where_no_folder_can_be_is_still_an_error(
    path: Path, vanishing: Callable[[Path, Vanish], list[str]]
) -> None:
    def replace_by_a_file(path: Path) -> None:
        the_homes_alone(path)
        path.with_name(path.name + ".d").touch()

    with lockfast.connect(f"sqlite://{path}") as client:
        client.lock("n").acquire()
        vanishing(path, replace_by_a_file)
        with (
            lockfast.connect(f"sqlite://{path}") as other,
            pytest.raises(lockfast.BackendError, match=r"no bell for .*\.d"),
        ):
            other.lock("n").acquire(timeout=PATIENCE)


def test_a_home_that_is_made_again_has_a_bell_again(deep: Path) -> None:
    ours = Peers(deep.with_name("locks.db.d"))
    ours.watch("id", lambda grant: None, 0.0)
    before = ours.wake_address()
    the_folder_around_it(deep)
    ours._seen_at -= peers.LOOK_EVERY  # it looks again
    after = ours.wake_address()
    assert after != before
    assert {one.name for one in deep.with_name("locks.db.d").iterdir()} == {
        f"{after}.life",
        f"{after}.bell",
    }
    ours.close()


def test_who_moved_while_somebody_looked_at_its_old_home_is_not_taken_for_dead(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = path.with_name("locks.db.d")
    ours, theirs = Peers(folder), Peers(folder)
    wake_address = theirs.wake_address()
    flock = fcntl.flock

    def deleted_in_between(life: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        theirs._seen_at -= peers.LOOK_EVERY  # it looks again
        assert theirs.wake_address() != wake_address
        flock(life, how)

    monkeypatch.setattr(fcntl, "flock", deleted_in_between)
    assert not ours.is_dead(wake_address), "what it holds would be given to another"
    theirs.close()

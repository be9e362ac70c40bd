"""Fences from the host's clock: growing while it stands still, across boots, below the ceiling."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import lockfast
from lockfast.core.ports import Answer
from lockfast.model import Busy, Claim, Granted
from lockfast.stores.sqlite.book import Fences
from lockfast.stores.sqlite.file import File
from lockfast.stores.sqlite.inboxes import Inboxes
from lockfast.stores.sqlite.store import SqliteStore


class Host:
    """Clocks that only the test advances, and clients of one file that use them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0
        self.wall = 2_000_000.0

    def client(self) -> SqliteStore:
        inboxes = Inboxes(self.path.with_name("locks.db.d"))
        file = File(self.path, inboxes.peers, lambda: self.now, lambda: self.wall)
        return SqliteStore(file, inboxes, suspends=False)

    def ceiling(self) -> int:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as file:
            return int(file.execute("SELECT fence_ceiling FROM store").fetchone()[0])


def claimed(store: SqliteStore, claim: Claim) -> list[Answer]:
    answers = store.claim([claim], 5)
    assert isinstance(answers, list)
    return answers


def granted(store: SqliteStore, name: str, claim_id: str = "id") -> Granted:
    (answer,) = claimed(store, Claim(name, claim_id, "w", 1000.0))
    assert isinstance(answer, Granted)
    return answer


def test_fences_grow_although_the_clock_stands_still() -> None:
    fences = Fences(lambda: 5.0)
    issued = [fences.next() for _ in range(5)]
    assert issued == sorted(set(issued))
    seen = fences.current()
    assert seen >= issued[-1]
    assert fences.next() > seen


def test_all_waiters_served_in_one_step_get_different_fences(path: Path) -> None:
    host = Host(path)
    store = host.client()
    woken: list[Granted | None] = []
    claimed(store, Claim("n", "big", "w", 1000.0, 4, 4))
    for number in range(4):
        claim = Claim("n", f"small {number}", "w", 1000.0, 4)
        assert isinstance(claimed(store, claim)[0], Busy)
        store.watch(claim, woken.append, 0.0)
    assert store.release([Claim("n", "big", "w", 1000.0, 4, 4)], 5) == [True]
    fences = [grant.fence for grant in woken if grant is not None]
    assert len(fences) == 4 and fences == sorted(set(fences))
    store.close()


def test_a_ceiling_is_raised_before_fences_reach_it(path: Path) -> None:
    host = Host(path)
    store, idle = host.client(), host.client()
    granted(idle, "idle")
    for number in range(20):
        host.now += Fences.AHEAD / 1e6 / 4
        assert granted(store, f"n{number}").fence < host.ceiling()
    # A client that was idle meanwhile continues below the raised ceiling.
    assert granted(idle, "last").fence < host.ceiling()
    store.close()
    idle.close()


def test_a_new_boot_begins_above_all_earlier_fences_whatever_the_clocks_show(path: Path) -> None:
    host = Host(path)
    last = 0
    for _ in range(5):
        store = host.client()
        for number in range(5):
            host.now += 40.0
            fence = granted(store, f"n{number}", "id").fence
            assert fence > last
            last = fence
            store.release([Claim(f"n{number}", "id", "w", 1000.0)], 5)
        store.close()
        host.now = 3.0  # another boot, which the system may not report
        host.wall -= 500.0


def test_a_wall_clock_that_steps_has_no_effect_on_an_open_file(path: Path) -> None:
    host = Host(path)
    store = host.client()
    before = granted(store, "a").fence
    host.wall -= 86_400.0
    host.now += 0.001
    assert before < granted(store, "b").fence < before + 10_000
    store.close()


def test_a_hold_has_its_own_fence_when_another_thread_claims_at_the_same_time(
    tmp_path: Path,
) -> None:
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db") as client:
        client.lock("warm").acquire().release()
        file = client._core.store._file  # type: ignore[attr-defined]
        execute = file.execute

        def then_another(*arguments: object) -> object:
            file.execute = execute
            fence: object = execute(*arguments)
            client.lock("b").acquire()
            return fence

        file.execute = then_another
        hold = client.lock("a").acquire()
        (holder,) = client.inspect("a").holders
        assert hold.fence == holder.fence


def test_the_first_fence_in_a_replaced_file_is_of_that_file(path: Path) -> None:
    """The wall clock was set forward meanwhile, so the fences of the new file begin above."""
    host = Host(path)
    ours, theirs = host.client(), host.client()
    granted(ours, "a")
    for one in path.parent.glob(path.name + "-*"):
        one.unlink()
    path.unlink()
    host.now += 1.0
    host.wall += 500.0
    before = granted(theirs, "b").fence
    host.now += 1.0
    assert granted(ours, "c").fence > before
    ours.close()
    theirs.close()

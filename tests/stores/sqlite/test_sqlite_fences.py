"""Fences from the host's clock: growing while it stands still, across boots, below the ceiling."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import lockfast
from lockfast.model import Busy, Claim, Granted
from lockfast.runtime.threads import run
from lockfast.stores.sqlite.backend import SqliteBackend
from lockfast.stores.sqlite.fences import AHEAD, FenceClock
from lockfast.stores.sqlite.peers import Peers
from lockfast.stores.sqlite.store import PipeListener
from lockfast.stores.sqlite.transport import BlockingTransport, File


class Host:
    """Clocks that only the test advances, and clients of one file that use them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0
        self.wall = 2_000_000.0

    def client(self) -> SqliteBackend:
        peers = Peers(self.path.with_name("locks.db.d"))
        file = File(self.path, peers, lambda: self.now, lambda: self.wall)

        def close() -> None:
            file.close()
            peers.close()

        transport, listener = BlockingTransport(file), PipeListener(peers)
        return SqliteBackend(transport, listener, peers, lambda: self.now, lambda: self.wall, close)

    def ceiling(self) -> int:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as file:
            return int(file.execute("SELECT fence_ceiling FROM store").fetchone()[0])


def granted(backend: SqliteBackend, name: str, claim_id: str = "id") -> Granted:
    answer = run(backend.claim(Claim(name, claim_id, "w", 1000.0), 5))
    assert isinstance(answer, Granted)
    return answer


def test_fences_grow_although_the_clock_stands_still() -> None:
    fences = FenceClock(lambda: 5.0)
    issued = [fences.next() for _ in range(5)]
    assert issued == sorted(set(issued))
    seen = fences.current()
    assert seen >= issued[-1]
    assert fences.next() > seen


def test_all_waiters_served_in_one_step_get_different_fences(path: Path) -> None:
    host = Host(path)
    backend = host.client()
    woken: list[Granted | None] = []
    run(backend.claim(Claim("n", "big", "w", 1000.0, 4, 4), 5))
    for number in range(4):
        claim = Claim("n", f"small {number}", "w", 1000.0, 4)
        assert isinstance(run(backend.claim(claim, 5)), Busy)
        run(backend.watch(claim, woken.append, 0.0))
    assert run(backend.release(Claim("n", "big", "w", 1000.0, 4, 4), 5))
    fences = [grant.fence for grant in woken if grant is not None]
    assert len(fences) == 4 and fences == sorted(set(fences))
    backend.close()


def test_a_ceiling_is_raised_before_fences_reach_it(path: Path) -> None:
    host = Host(path)
    backend, idle = host.client(), host.client()
    granted(idle, "idle")
    for number in range(20):
        host.now += AHEAD / 1e6 / 4
        assert granted(backend, f"n{number}").fence < host.ceiling()
    # A client that was idle meanwhile continues below the raised ceiling.
    assert granted(idle, "last").fence < host.ceiling()
    backend.close()
    idle.close()


def test_a_new_boot_begins_above_all_earlier_fences_whatever_the_clocks_show(path: Path) -> None:
    host = Host(path)
    last = 0
    for _ in range(5):
        backend = host.client()
        for number in range(5):
            host.now += 40.0
            fence = granted(backend, f"n{number}", "id").fence
            assert fence > last
            last = fence
            run(backend.release(Claim(f"n{number}", "id", "w", 1000.0), 5))
        backend.close()
        host.now = 3.0  # another boot, which the system may not report
        host.wall -= 500.0


def test_a_wall_clock_that_steps_has_no_effect_on_an_open_file(path: Path) -> None:
    host = Host(path)
    backend = host.client()
    before = granted(backend, "a").fence
    host.wall -= 86_400.0
    host.now += 0.001
    assert before < granted(backend, "b").fence < before + 10_000
    backend.close()


def test_a_hold_has_its_own_fence_when_another_thread_claims_at_the_same_time(
    tmp_path: Path,
) -> None:
    with lockfast.connect(f"sqlite:///{tmp_path}/locks.db") as client:
        client.lock("warm").acquire().release()
        transport = client.core.backend._transport  # type: ignore[attr-defined]
        execute = transport.execute_now

        def then_another(*arguments: object) -> int:
            transport.execute_now = execute
            fence: int = execute(*arguments)
            client.lock("b").acquire()
            return fence

        transport.execute_now = then_another
        hold = client.lock("a").acquire()
        (holder,) = client.inspect("a").holders
        assert hold.fence == holder.fence

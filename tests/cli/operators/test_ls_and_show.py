"""`lockfast ls`, `show` and `break` on every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from operator_commands import Command, Need

import lockfast

PATIENCE = 20.0
HOSTILE = "\x1b]0;pwn\x07\x1b[2J\u202ejob\n\\x"


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Waiter:
    """Acquires on a thread of its own, and holds until `end` is called."""

    def __init__(self, lock: Any) -> None:
        self.hold: lockfast.Hold | None = None
        self._ended = threading.Event()
        self._lock = lock
        self._thread = threading.Thread(target=self._work, name="worker-7", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._lock as self.hold:
            self._ended.wait(PATIENCE)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE)


@pytest.fixture
def waiting() -> Iterator[Callable[[Any], Waiter]]:
    waiters: list[Waiter] = []

    def waiting(lock: Any) -> Waiter:
        waiters.append(Waiter(lock))
        return waiters[-1]

    yield waiting
    for waiter in waiters:
        waiter.end()


def test_an_operator_sees_holder_and_waiter_and_breaks_the_hold_with_its_fence(
    client: lockfast.Client, command: Command, waiting: Callable[[Any], Waiter]
) -> None:
    hold = client.lock("orders:42", label="import").acquire()
    heir = waiting(client.lock("orders:42", label="export", timeout=PATIENCE))
    until(lambda: client.inspect("orders:42").waiters, "no waiter")

    listed = command("ls")
    titles, line = listed.out.splitlines()
    assert titles.split() == ["NAME", "KIND", "HOLDER", "HELD", "FOR", "LEASE", "WAITERS"]
    assert line.startswith("orders:42  lock  ") and " import" in line and line.endswith("  1")
    assert max(map(len, listed.out.splitlines())) <= 80

    shown = command("show", "orders:42")
    assert "orders:42: lock, 1 of 1 taken, 1 waiting" in shown.out
    assert f"--fence {hold.fence}" in shown.out and "worker-7 (export)" in shown.out

    seen = command("show", "orders:42", "--json").document
    (holder,) = seen["holders"]
    (waiter,) = seen["waiters"]
    assert (holder["fence"], holder["label"], holder["mode"]) == (hold.fence, "import", None)
    assert (waiter["position"], waiter["thread"], waiter["fair"]) == (1, "worker-7", True)
    assert 0 <= holder["held_seconds"] < PATIENCE and 0 < holder["remaining_seconds"] <= 30
    since = datetime.fromisoformat(holder["since"])
    assert abs((datetime.now(UTC) - since).total_seconds()) < 5
    assert (
        command("ls", "orders:", "--json").document["names"][0]["holders"][0]["label"] == "import"
    )

    refused = command("break", "orders:42", "--fence", hold.fence + 1, "--yes")
    assert refused.code == 1 and str(hold.fence) in refused.err and heir.hold is None
    broken = command("break", "orders:42", "--fence", hold.fence, "--yes")
    assert broken.code == 0 and broken.err == ""
    assert f"broken, fence {hold.fence} of " in broken.out
    until(lambda: heir.hold, "the waiter did not get the lock")
    assert heir.hold is not None and heir.hold.fence > hold.fence
    with pytest.raises(lockfast.HoldLost):
        hold.release()
    assert command("break", "orders:42", "--fence", hold.fence, "--yes").code == 1
    heir.end()
    gone = command("show", "orders:42")
    assert gone.code == 0 and "orders:42: free" in gone.out
    assert "not held" in command("break", "orders:42", "--fence", 1, "--yes").err


def test_every_kind_is_listed_with_the_slots_taken(
    client: lockfast.Client, command: Command, need: Need
) -> None:
    need("semaphore")
    permit = client.semaphore("pool", 5).acquire(2)
    readers = [client.rwlock("config", owner=number).read().acquire() for number in (1, 2)]
    writer = client.rwlock("settings").write().acquire()
    client.latch("start", 3, keep=60).count_down()
    barrier = client.barrier("meeting", 2)
    party = threading.Thread(target=barrier.wait, args=(PATIENCE,), daemon=True)
    party.start()
    until(barrier.waiting, "no party arrived")
    lines = {line.split()[0]: line for line in command("ls", "--wide").out.splitlines()}
    assert lines.keys() - {"NAME"} == {"pool", "config", "settings", "start", "meeting"}
    assert "  barrier 1/2" in lines["meeting"]
    assert "meeting: barrier, 1 of 2 arrived" in command("show", "meeting").out
    assert barrier.wait(PATIENCE)
    party.join(PATIENCE)
    assert "  semaphore 2/5  " in lines["pool"]
    assert "  rwlock 2 read  " in lines["config"] and " +1 " in lines["config"]
    assert "  rwlock write   " in lines["settings"]
    assert "  latch 1/3  " in lines["start"]
    names = {one["name"]: one for one in command("ls", "--json").document["names"]}
    assert [names[name]["kind"] for name in ("pool", "config", "settings", "start")] == [
        "semaphore",
        "read-write lock",
        "read-write lock",
        "latch",
    ]
    assert (names["pool"]["size"], names["pool"]["taken"]) == (5, 2)
    assert [one["mode"] for one in names["config"]["holders"]] == ["read", "read"]
    assert names["settings"]["holders"][0]["mode"] == "write"
    assert "config: read-write lock, 2 read " in command("show", "config").out
    assert "start: latch, 1 of 3 taken " in command("show", "start").out
    for hold in (permit, *readers, writer):
        hold.release()


def test_a_once_every_job_is_listed_and_runs_again_after_a_break(
    client: lockfast.Client, command: Command, need: Need
) -> None:
    need("once_every")
    ran = []

    @client.once_every("1h", name="rates")
    def refresh() -> bool:
        ran.append(1)
        return True

    with client.lock("rates"):  # a lock of the same name is independent
        assert refresh() and not refresh()
        kinds = {one["once"]: one for one in command("ls", "ra", "--json").document["names"]}
        assert kinds.keys() == {False, True} and kinds[True]["name"] == "rates"
        assert {line.split()[1] for line in command("ls").out.splitlines()[1:]} == {"lock", "once"}
        fence = command("show", "rates", "--once", "--json").document["holders"][0]["fence"]
        assert f"--fence {fence} --once" in command("show", "rates", "--once").out
        assert (
            command("break", "rates", "--fence", fence, "--yes").code == 1
        )  # the lock has another fence
        assert command("break", "rates", "--once", "--fence", fence, "--yes").code == 0
        assert refresh() and len(ran) == 2


def test_a_hostile_name_or_label_does_not_control_the_terminal(
    client: lockfast.Client, command: Command
) -> None:
    hold = client.lock(HOSTILE, label="\x1b[31m\u202e\x9b31m\r").acquire()
    for arguments in (
        ("ls",),
        ("ls", "--wide", "--json"),
        ("show", HOSTILE),
        ("break", HOSTILE, "--fence", "7", "--yes"),
        ("break", HOSTILE, "--fence", hold.fence, "--yes"),
    ):
        result = command(*arguments)
        for letter in "\x1b\x07\x9b\u202e\r":
            assert letter not in result.out + result.err, arguments
        assert "pwn" in result.out + result.err, arguments
    with pytest.raises(lockfast.HoldLost):
        hold.release()


def test_ls_lists_its_namespace_unless_all_are_requested(
    url: str, client: lockfast.Client, command: Command
) -> None:
    with (
        lockfast.connect(url, namespace="default2") as beside,
        client.lock("here"),
        beside.lock("there"),
    ):
        assert [one["name"] for one in command("ls", "--json").document["names"]] == ["here"]
        assert " --namespace default2\n" in command("show", "there", "--namespace", "default2").out
        others = command("ls", "--json", "--namespace", "default2").document["names"]
        assert [one["name"] for one in others] == ["there"]
        everything = command("ls", "-A", "--json").document["names"]
        assert {(one["namespace"], one["name"]) for one in everything} >= {
            ("default", "here"),
            ("default2", "there"),
        }
        assert "NAMESPACE" in command("ls", "-A").out
        assert [one["name"] for one in command("ls", "th", "-A", "--json").document["names"]] == [
            "there"
        ]
        short = command("ls", "-A", "--limit", "1")
        assert len(short.out.splitlines()) == 2 and "more are not shown" in short.err


def test_an_empty_store_is_not_an_error(url: str, command: Command) -> None:
    result = command("ls")
    assert (result.code, result.out) == (0, "") and "nothing is held" in result.err
    assert command("ls", "--json").document["names"] == []
    assert command("show", "nothing", "--json").document["kind"] is None

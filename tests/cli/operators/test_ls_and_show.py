"""`lockfast ls`, `show` and `break` on every store: what an operator sees, and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from operator_commands import Need, Operator

import lockfast

PATIENCE = 20.0
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202ejob\n\\x"


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Waiter:
    """Asks on a thread of its own, and holds until it is told to let go."""

    def __init__(self, lock: Any) -> None:
        self.hold: lockfast.Hold | None = None
        self._enough = threading.Event()
        self._lock = lock
        self._thread = threading.Thread(target=self._work, name="worker-7", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._lock as self.hold:
            self._enough.wait(PATIENCE)

    def end(self) -> None:
        self._enough.set()
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


def test_an_operator_sees_who_holds_and_waits_and_breaks_what_is_meant(
    client: lockfast.Client, say: Operator, waiting: Callable[[Any], Waiter]
) -> None:
    hold = client.lock("orders:42", label="import").acquire()
    heir = waiting(client.lock("orders:42", label="export", timeout=PATIENCE))
    until(lambda: client.inspect("orders:42").waiters, "nobody waits")

    listed = say("ls")
    titles, line = listed.out.splitlines()
    assert titles.split() == ["NAME", "KIND", "HOLDER", "HELD", "FOR", "LEASE", "WAIT"]
    assert line.startswith("orders:42  lock  ") and " import" in line and line.endswith("  1")
    assert max(map(len, listed.out.splitlines())) <= 80

    shown = say("show", "orders:42")
    assert "orders:42: lock, 1 of 1 taken, 1 waits" in shown.out
    assert f"--fence {hold.fence}" in shown.out and "worker-7 (export)" in shown.out

    seen = say("show", "orders:42", "--json").document
    (holder,) = seen["holders"]
    (waiter,) = seen["waiters"]
    assert (holder["fence"], holder["label"], holder["mode"]) == (hold.fence, "import", None)
    assert (waiter["position"], waiter["thread"], waiter["fair"]) == (1, "worker-7", True)
    assert 0 <= holder["held_seconds"] < PATIENCE and 0 < holder["remaining_seconds"] <= 30
    since = datetime.fromisoformat(holder["since"])
    assert abs((datetime.now(UTC) - since).total_seconds()) < 5
    assert say("ls", "orders:", "--json").document["names"][0]["holders"][0]["label"] == "import"

    refused = say("break", "orders:42", "--fence", hold.fence + 1, "--yes")
    assert refused.code == 1 and str(hold.fence) in refused.err and heir.hold is None
    broken = say("break", "orders:42", "--fence", hold.fence, "--yes")
    assert broken.code == 0 and broken.err == ""
    assert f"broken, fence {hold.fence} of " in broken.out
    until(lambda: heir.hold, "the next did not get it")
    assert heir.hold is not None and heir.hold.fence > hold.fence
    with pytest.raises(lockfast.HoldLost):
        hold.release()
    assert say("break", "orders:42", "--fence", hold.fence, "--yes").code == 1
    heir.end()
    gone = say("show", "orders:42")
    assert gone.code == 0 and "orders:42: free" in gone.out
    assert "nobody holds it" in say("break", "orders:42", "--fence", 1, "--yes").err


def test_every_kind_is_told_with_what_is_taken_of_it(
    client: lockfast.Client, say: Operator, need: Need
) -> None:
    need("semaphore")
    permit = client.semaphore("pool", 5).acquire(2)
    readers = [client.rwlock("config", owner=number).read().acquire() for number in (1, 2)]
    writer = client.rwlock("settings").write().acquire()
    client.latch("start", 3, keep=60).count_down()
    gate = client.barrier("gate", 2)
    party = threading.Thread(target=gate.wait, args=(PATIENCE,), daemon=True)
    party.start()
    until(gate.waiting, "nobody came")
    lines = {line.split()[0]: line for line in say("ls", "--wide").out.splitlines()}
    assert lines.keys() - {"NAME"} == {"pool", "config", "settings", "start", "gate"}
    assert "  barrier 1/2" in lines["gate"]
    assert "gate: barrier, 1 of 2 came" in say("show", "gate").out
    assert gate.wait(PATIENCE)
    party.join(PATIENCE)
    assert "  semaphore 2/5  " in lines["pool"]
    assert "  rwlock 2 read  " in lines["config"] and " +1 " in lines["config"]
    assert "  rwlock write   " in lines["settings"]
    assert "  latch 1/3  " in lines["start"]
    names = {one["name"]: one for one in say("ls", "--json").document["names"]}
    assert [names[name]["kind"] for name in ("pool", "config", "settings", "start")] == [
        "semaphore",
        "read-write lock",
        "read-write lock",
        "latch",
    ]
    assert (names["pool"]["size"], names["pool"]["taken"]) == (5, 2)
    assert [one["mode"] for one in names["config"]["holders"]] == ["read", "read"]
    assert names["settings"]["holders"][0]["mode"] == "write"
    assert "config: read-write lock, 2 read " in say("show", "config").out
    assert "start: latch, 1 of 3 taken " in say("show", "start").out
    for hold in (permit, *readers, writer):
        hold.release()


def test_what_runs_once_per_period_is_listed_and_can_be_made_to_run_again(
    client: lockfast.Client, say: Operator, need: Need
) -> None:
    need("once_every")
    ran = []

    @client.once_every("1h", name="rates")
    def refresh() -> bool:
        ran.append(1)
        return True

    with client.lock("rates"):  # another thing of the same name
        assert refresh() and not refresh()
        kinds = {one["once"]: one for one in say("ls", "ra", "--json").document["names"]}
        assert kinds.keys() == {False, True} and kinds[True]["name"] == "rates"
        assert {line.split()[1] for line in say("ls").out.splitlines()[1:]} == {"lock", "once"}
        fence = say("show", "rates", "--once", "--json").document["holders"][0]["fence"]
        assert f"--fence {fence} --once" in say("show", "rates", "--once").out
        assert say("break", "rates", "--fence", fence, "--yes").code == 1  # the lock is not meant
        assert say("break", "rates", "--once", "--fence", fence, "--yes").code == 0
        assert refresh() and len(ran) == 2


def test_a_hostile_name_or_label_does_not_drive_the_terminal(
    client: lockfast.Client, say: Operator
) -> None:
    hold = client.lock(HOSTILE, label="\x1b[31m\u202e\x9b31m\r").acquire()
    for words in (
        ("ls",),
        ("ls", "--wide", "--json"),
        ("show", HOSTILE),
        ("break", HOSTILE, "--fence", "7", "--yes"),
        ("break", HOSTILE, "--fence", hold.fence, "--yes"),
    ):
        told = say(*words)
        for letter in "\x1b\x07\x9b\u202e\r":
            assert letter not in told.out + told.err, words
        assert "owned" in told.out + told.err, words
    with pytest.raises(lockfast.HoldLost):
        hold.release()


def test_names_are_of_their_namespace_unless_all_are_asked_for(
    url: str, client: lockfast.Client, say: Operator
) -> None:
    with (
        lockfast.connect(url, namespace="default2") as beside,
        client.lock("here"),
        beside.lock("there"),
    ):
        assert [one["name"] for one in say("ls", "--json").document["names"]] == ["here"]
        assert " --namespace default2\n" in say("show", "there", "--namespace", "default2").out
        others = say("ls", "--json", "--namespace", "default2").document["names"]
        assert [one["name"] for one in others] == ["there"]
        everything = say("ls", "-A", "--json").document["names"]
        assert {(one["namespace"], one["name"]) for one in everything} >= {
            ("default", "here"),
            ("default2", "there"),
        }
        assert "NAMESPACE" in say("ls", "-A").out
        assert [one["name"] for one in say("ls", "th", "-A", "--json").document["names"]] == [
            "there"
        ]
        short = say("ls", "-A", "--limit", "1")
        assert len(short.out.splitlines()) == 2 and "more are not shown" in short.err


def test_an_empty_store_is_no_error(url: str, say: Operator) -> None:
    told = say("ls")
    assert (told.code, told.out) == (0, "") and "nothing is held" in told.err
    assert say("ls", "--json").document["names"] == []
    assert say("show", "nothing", "--json").document["kind"] is None

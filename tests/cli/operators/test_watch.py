"""`lockfast watch` on every store: hand-overs, losses and changes of the queue."""

from __future__ import annotations

import threading
import time

import pytest

import lockfast
from lockfast.cli.admin import Address, Admin, Event, Watch, changes
from lockfast.model import Capabilities, Holder, Snapshot, Waiter, Who

PATIENCE = 20.0


@pytest.fixture
def watch(client: lockfast.Client) -> Watch:
    return Watch(Admin(client), Address("default", "job"), client.capabilities)


def events_of(watch: Watch, *expected: str) -> list[Event]:
    """Poll until exactly these events have been reported."""
    events: list[Event] = []
    end = time.monotonic() + PATIENCE
    while [event.what for event in events] != list(expected):
        assert time.monotonic() < end, [event.what for event in events]
        events += watch.poll()
        time.sleep(0.01)
    return events


def test_changes_of_a_name_are_reported(client: lockfast.Client, watch: Watch) -> None:
    assert [event.what for event in watch.poll()] == ["free"]
    hold = client.lock("job", label="first").acquire()
    (acquired,) = events_of(watch, "acquired")
    assert acquired.holder is not None and acquired.holder.fence == hold.fence
    assert "(first), fence" in watch.line(acquired)
    got: list[lockfast.Hold] = []
    heir = threading.Thread(
        target=lambda: got.append(client.lock("job", label="heir").acquire(timeout=PATIENCE)),
        daemon=True,
    )
    heir.start()
    (waits,) = events_of(watch, "waits")
    assert watch.document(waits)["waiter"]["label"] == "heir"
    assert watch.poll() == []
    hold.release()
    heir.join(PATIENCE)
    (passed,) = events_of(watch, "passed")
    document = watch.document(passed)
    assert document["previous"]["fence"] == hold.fence
    assert document["holder"]["fence"] == got[0].fence
    assert document["how"] == "ended" and "(first)" in watch.line(passed)
    assert client.lock("job", owner="late").try_acquire(timeout=0) is None
    got[0].release()
    (ended,) = events_of(watch, "ended")
    assert "released" in watch.line(ended) and watch.document(ended)["holder"] is None


def test_a_waiter_that_times_out_has_left(client: lockfast.Client, watch: Watch) -> None:
    with client.lock("job"):
        watch.poll()
        hasty = threading.Thread(
            target=lambda: client.lock("job").try_acquire(timeout=1.0), daemon=True
        )
        hasty.start()
        waits, left = events_of(watch, "waits", "left")
        assert waits.waiter is not None and left.waiter is not None
        assert waits.waiter.who == left.waiter.who
        hasty.join(PATIENCE)


# ---- two inspections -------------------------------------------------------------------------

A, B = Who("web1", 1, "MainThread"), Who("web2", 2, "MainThread")


def snapshot(*holders: Holder, waiters: tuple[Waiter, ...] = (), now: float = 100.0) -> Snapshot:
    return Snapshot("default:job", 1, holders, waiters, now)


def held(who: Who, fence: int, remaining: float = 20.0) -> Holder:
    return Holder(who, fence, 1, 90.0, remaining)


@pytest.mark.parametrize(
    ("before", "passed", "what", "how"),
    [
        (held(A, 1, 20.0), 0.25, "ended", "ended"),
        (held(A, 1, 0.2), 0.25, "lapsed", "lapsed"),
        (held(A, 1, 0.2), None, "ended", "unseen"),
        (held(A, 1, 20.0), 25.0, "lapsed", "lapsed"),
    ],
)
def test_a_hold_has_lapsed_only_if_its_lease_had_expired(
    before: Holder, passed: float | None, what: str, how: str
) -> None:
    (event,) = changes(snapshot(before), snapshot(), passed)
    assert (event.what, event.how) == (what, how)


def test_a_renewed_hold_and_an_unchanged_queue_yield_no_events() -> None:
    waits = (Waiter(B, 1, 95.0, True),)
    before = snapshot(held(A, 1, 10.0), waiters=waits)
    assert list(changes(before, snapshot(held(A, 1, 20.0), waiters=waits, now=101.0), 1.0)) == []


def test_two_waiters_of_one_owner_are_counted_separately() -> None:
    twice = (Waiter(B, 1, 95.0, True),) * 2
    events = changes(snapshot(waiters=twice), snapshot(held(B, 5), waiters=twice[:1]), 0.1)
    assert [event.what for event in events] == ["acquired"]  # one of them was served
    events = changes(snapshot(waiters=twice), snapshot(held(A, 5)), 0.1)
    assert [event.what for event in events] == ["acquired", "left", "left"]
    events = changes(snapshot(waiters=twice * 2), snapshot(waiters=twice[:1] * 3), 0.1)
    assert [event.what for event in events] == ["left"]


def test_slightly_different_start_times_of_waiters_yield_no_events() -> None:
    before, after = ((Waiter(B, 1, since, True),) for since in (95.0, 95.001))
    assert list(changes(snapshot(waiters=before), snapshot(waiters=after), 0.1)) == []


def test_each_of_the_changed_holds_is_reported() -> None:
    before = snapshot(held(A, 1), held(A, 2))
    after = snapshot(held(A, 2), held(B, 3), held(B, 4))
    assert [
        (event.what, event.holder and event.holder.fence) for event in changes(before, after, 0.1)
    ] == [
        ("passed", 3),
        ("acquired", 4),
    ]


@pytest.mark.parametrize(
    ("can", "how", "text"),
    [
        (Capabilities("redis", "network"), "ended", "(released or broken)"),
        (
            Capabilities("sqlite", "host", frees_dead_process=True),
            "ended",
            "(released, broken, or its process died)",
        ),
        (
            Capabilities("zookeeper", "network", session=10.0),
            "ended",
            "(released, broken, or its session ended)",
        ),
        (Capabilities("redis", "network"), "lapsed", "(its lease expired)"),
        (
            Capabilities("redis", "network"),
            "unseen",
            "(unknown: the store did not answer)",
        ),
    ],
)
def test_the_line_says_how_a_hold_may_have_ended_on_this_store(
    can: Capabilities, how: str, text: str
) -> None:
    with lockfast.connect("memory://") as client:
        watch = Watch(Admin(client), Address("default", "job"), can)
        assert watch.line(Event("ended", snapshot(), before=held(A, 1), how=how)).endswith(text)


def test_the_end_of_a_hold_during_an_outage_is_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://") as client:
        admin = Admin(client)
        watch = Watch(admin, admin.address("job"), client.capabilities)
        hold = client.lock("job").acquire()
        watch.poll()
        with monkeypatch.context() as outage:
            outage.setattr(admin, "inspect", lambda address: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                watch.poll()
        hold.release()
        assert [(event.what, event.how) for event in watch.poll()] == [("ended", "unseen")]

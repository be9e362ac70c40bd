"""`lockfast watch` on every store: what is told of hand-overs, losses and the queue."""

from __future__ import annotations

import threading
import time

import pytest

import lockfast
from lockfast.cli.admin import Address, Desk
from lockfast.cli.changes import Event, Watch, changes
from lockfast.model import Capabilities, Holder, Snapshot, Waiter, Who

PATIENCE = 20.0


@pytest.fixture
def watch(client: lockfast.Client) -> Watch:
    return Watch(Desk(client), Address("default", "job"), client.capabilities)


def seen(watch: Watch, *wanted: str) -> list[Event]:
    """Look until these were told, and nothing else."""
    told: list[Event] = []
    end = time.monotonic() + PATIENCE
    while [event.what for event in told] != list(wanted):
        assert time.monotonic() < end, [event.what for event in told]
        told += watch.look()
        time.sleep(0.01)
    return told


def test_what_happens_to_a_name_is_told(client: lockfast.Client, watch: Watch) -> None:
    assert [event.what for event in watch.look()] == ["free"]
    hold = client.lock("job", label="first").acquire()
    (acquired,) = seen(watch, "acquired")
    assert acquired.holder is not None and acquired.holder.fence == hold.fence
    assert "(first), fence" in watch.words(acquired)
    got: list[lockfast.Hold] = []
    heir = threading.Thread(
        target=lambda: got.append(client.lock("job", label="heir").acquire(timeout=PATIENCE)),
        daemon=True,
    )
    heir.start()
    (waits,) = seen(watch, "waits")
    assert watch.document(waits)["waiter"]["label"] == "heir"
    assert watch.look() == []
    hold.release()
    heir.join(PATIENCE)
    (passed,) = seen(watch, "passed")
    told = watch.document(passed)
    assert (told["previous"]["fence"], told["holder"]["fence"]) == (hold.fence, got[0].fence)
    assert told["how"] == "ended" and "(first)" in watch.words(passed)
    assert client.lock("job", owner="late").try_acquire(timeout=0) is None
    got[0].release()
    (ended,) = seen(watch, "ended")
    assert "released" in watch.words(ended) and watch.document(ended)["holder"] is None


def test_who_gives_up_has_left(client: lockfast.Client, watch: Watch) -> None:
    with client.lock("job"):
        watch.look()
        hasty = threading.Thread(
            target=lambda: client.lock("job").try_acquire(timeout=1.0), daemon=True
        )
        hasty.start()
        waits, left = seen(watch, "waits", "left")
        assert waits.waiter is not None and left.waiter is not None
        assert waits.waiter.who == left.waiter.who
        hasty.join(PATIENCE)


# ---- what is said of two looks ---------------------------------------------------------------

A, B = Who("web1", 1, "MainThread"), Who("web2", 2, "MainThread")


def looked(*holders: Holder, waiters: tuple[Waiter, ...] = (), now: float = 100.0) -> Snapshot:
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
def test_a_hold_has_lapsed_only_if_its_lease_was_over(
    before: Holder, passed: float | None, what: str, how: str
) -> None:
    (event,) = changes(looked(before), looked(), passed)
    assert (event.what, event.how) == (what, how)


def test_a_hold_that_is_renewed_and_a_queue_that_stays_are_no_news() -> None:
    waits = (Waiter(B, 1, 95.0, True),)
    before = looked(held(A, 1, 10.0), waiters=waits)
    assert list(changes(before, looked(held(A, 1, 20.0), waiters=waits, now=101.0), 1.0)) == []


def test_the_same_one_twice_in_the_queue_is_counted() -> None:
    twice = (Waiter(B, 1, 95.0, True),) * 2
    events = changes(looked(waiters=twice), looked(held(B, 5), waiters=twice[:1]), 0.1)
    assert [event.what for event in events] == ["acquired"]  # one of them was served
    events = changes(looked(waiters=twice), looked(held(A, 5)), 0.1)
    assert [event.what for event in events] == ["acquired", "left", "left"]
    events = changes(looked(waiters=twice * 2), looked(waiters=twice[:1] * 3), 0.1)
    assert [event.what for event in events] == ["left"]


def test_a_queue_whose_times_are_told_a_little_differently_is_no_news() -> None:
    before, after = ((Waiter(B, 1, since, True),) for since in (95.0, 95.001))
    assert list(changes(looked(waiters=before), looked(waiters=after), 0.1)) == []


def test_of_several_holds_each_is_told() -> None:
    before = looked(held(A, 1), held(A, 2))
    after = looked(held(A, 2), held(B, 3), held(B, 4))
    assert [
        (event.what, event.holder and event.holder.fence) for event in changes(before, after, 0.1)
    ] == [
        ("passed", 3),
        ("acquired", 4),
    ]


@pytest.mark.parametrize(
    ("can", "how", "words"),
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
        (Capabilities("redis", "network"), "lapsed", "(its lease ran out)"),
        (
            Capabilities("redis", "network"),
            "unseen",
            "(unseen, while the store did not answer)",
        ),
    ],
)
def test_how_a_hold_may_have_ended_is_said_as_far_as_it_can_be_known(
    can: Capabilities, how: str, words: str
) -> None:
    with lockfast.connect("memory://") as client:
        watch = Watch(Desk(client), Address("default", "job"), can)
        assert watch.words(Event("ended", looked(), before=held(A, 1), how=how)).endswith(words)


def test_what_ended_while_the_store_was_away_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://") as client:
        desk = Desk(client)
        watch = Watch(desk, desk.address("job"), client.capabilities)
        hold = client.lock("job").acquire()
        watch.look()
        with monkeypatch.context() as away:
            away.setattr(desk, "look", lambda address: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                watch.look()
        hold.release()
        assert [(event.what, event.how) for event in watch.look()] == [("ended", "unseen")]

"""The law of slots, continued: repeated claims, leaving, hand-over, breaking, sizes, fences."""

from __future__ import annotations

import pytest

from law_steps import LEASE, LawStore
from lockfast.core import law
from lockfast.core.law import DETACHED, WAITER_LEASE
from lockfast.model import ALL_SLOTS, Claim, Differs, Gone, Granted, Waiter, Who


@pytest.fixture
def store() -> LawStore:
    return LawStore()


# ---- repeated claims, renewal, leaving ---------------------------------------------------------


def test_claiming_twice_makes_one_hold_with_one_fence_and_restarts_the_lease(
    store: LawStore,
) -> None:
    first = store.acquire("a")
    store.pass_time(20.0)
    assert store.claim("a") == first
    store.pass_time(20.0)
    assert store.holders == ["a"]


def test_claiming_twice_makes_one_waiter_that_keeps_its_position(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    store.enqueue("c")
    store.enqueue("b")
    assert store.waiters == ["b", "c"]


def test_renewal_extends_a_hold_and_keeps_its_fence(store: LawStore) -> None:
    fence = store.acquire("a", lease=10.0).fence
    store.pass_time(9.0)
    assert store.renew("a") == Granted(fence, 10.0)
    store.pass_time(9.0)
    assert store.renew("a", lease=3.0) == Granted(fence, 3.0)
    store.pass_time(3.0)
    assert store.holders == []


@pytest.mark.parametrize("end", ["release", "leave", "expire", "break"])
def test_renewal_never_brings_back_a_hold_that_has_ended(store: LawStore, end: str) -> None:
    fence = store.acquire("a").fence
    match end:
        case "release":
            assert store.release("a")
        case "leave":
            store.leave("a")
        case "expire":
            store.pass_time(LEASE)
        case "break":
            assert store.break_hold(fence)
    assert store.renew("a") == Gone()
    assert store.holders == [] and store.waiters == []


def test_a_release_without_a_hold_is_false_and_affects_nobody(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    store.claims["ghost"] = store.claims["a"]._replace(id="ghost")
    assert store.release("ghost") is False
    assert store.release("b") is False
    assert store.holders == ["a"] and store.waiters == ["b"]
    assert store.release("a") is True
    assert store.release("a") is False
    assert store.holders == ["b"]


def test_a_release_after_the_lease_is_false_and_leaves_the_next_holder_alone(
    store: LawStore,
) -> None:
    store.acquire("a", lease=1.0)
    store.pass_time(1.0)
    store.acquire("b")
    assert store.release("a") is False
    assert store.holders == ["b"]


def test_leaving_removes_the_waiter_and_returns_a_snapshot(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    store.enqueue("c")
    seen = store.leave("b")
    assert [holder.who.thread for holder in seen.holders] == ["a"]
    assert [waiter.who.thread for waiter in seen.waiters] == ["c"]


def test_leaving_releases_a_grant_that_crossed_and_serves_the_next(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    store.enqueue("c")
    assert store.release("a")
    assert store.served == ["b"]
    store.leave("b")
    assert store.served == ["c"]


def test_a_writer_that_leaves_lets_the_readers_behind_it_in(store: LawStore) -> None:
    store.acquire("r1", slots=ALL_SLOTS)
    store.enqueue("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    store.enqueue("r2", slots=ALL_SLOTS)
    store.leave("w")
    assert store.served == ["r2"]


def test_leaving_with_an_unknown_claim_changes_nothing(store: LawStore) -> None:
    store.acquire("a")
    store.claims["ghost"] = store.claims["a"]._replace(id="ghost")
    assert len(store.leave("ghost").holders) == 1


# ---- hand-over to another process ------------------------------------------------------------


def test_a_detached_hold_is_taken_over_once_under_the_same_fence(store: LawStore) -> None:
    fence = store.acquire("a").fence
    assert store.transfer("a", attached=False, who="host 1 on-its-way") == Granted(fence, LEASE)
    assert store.transfer("a", attached=True, who="host 2 new") == Granted(fence, LEASE)
    assert store.transfer("a", attached=True, who="host 3 too-late") == Gone()
    (holder,) = store.look().holders
    assert (holder.who.pid, holder.who.thread, holder.fence) == (2, "new", fence)


def test_a_hold_that_was_not_detached_cannot_be_taken_over(store: LawStore) -> None:
    store.acquire("a")
    assert store.transfer("a", attached=True) == Gone()
    assert store.holders == ["a"]


def test_detaching_twice_is_harmless_and_restarts_the_lease(store: LawStore) -> None:
    store.acquire("a")
    store.transfer("a", attached=False)
    store.pass_time(LEASE - 1)
    assert isinstance(store.transfer("a", attached=False), Granted)
    store.pass_time(LEASE - 1)
    assert isinstance(store.transfer("a", attached=True), Granted)


@pytest.mark.parametrize("attached", [True, False])
def test_an_ended_hold_or_a_waiter_cannot_be_handed_over(store: LawStore, attached: bool) -> None:
    store.acquire("a")
    store.enqueue("b")
    assert store.transfer("b", attached=attached) == Gone()
    store.leave("b")
    store.transfer("a", attached=False)
    store.pass_time(LEASE)
    assert store.transfer("a", attached=attached) == Gone()
    assert store.holders == []


def test_a_detached_hold_belongs_to_no_process_until_it_is_taken_over() -> None:
    """The process of the wake address can end a hold by dying; in transit only the lease can."""
    store = LawStore()
    store.acquire("a")
    store.transfer("a", attached=False)
    book = store.memory._names["n"]
    assert [row.wake_address for row in book.holds.values()] == [DETACHED]
    store.transfer("a", attached=True)
    assert [row.wake_address for row in book.holds.values()] == [book.wake_address] != [DETACHED]


def test_a_late_renewal_does_not_undo_a_detachment(store: LawStore) -> None:
    """The keeper may have sent the renewal before the hold was detached."""
    fence = store.acquire("a").fence
    store.transfer("a", attached=False)
    assert store.renew("a") == Granted(fence, LEASE)
    assert store.transfer("a", attached=True) == Granted(fence, LEASE)


def test_a_late_renewal_does_not_undo_a_take_over(store: LawStore) -> None:
    """The renewal must not replace the wake address of the new owner."""
    store.acquire("a")
    store.transfer("a", attached=False)
    store.transfer("a", attached=True, who="host 2 new")
    (row,) = store.memory._names["n"].holds.values()
    row.wake_address = "the new owner's"
    store.renew("a")
    assert row.wake_address == "the new owner's"


# ---- breaking --------------------------------------------------------------------------------


def test_breaking_compares_the_fence(store: LawStore) -> None:
    fence = store.acquire("a").fence
    assert store.break_hold(fence + 1) is False
    assert store.break_hold(fence - 1) is False
    assert store.holders == ["a"]
    assert store.break_hold(fence) is True
    assert store.holders == []
    assert store.break_hold(fence) is False


def test_breaking_ends_only_the_hold_with_that_fence_and_serves_the_next(store: LawStore) -> None:
    store.acquire("a", slots=2)
    fence = store.acquire("b", slots=2).fence
    store.enqueue("c", slots=2)
    assert store.break_hold(fence)
    assert store.served == ["c"]
    assert sorted(store.holders) == ["a", "c"]


def test_the_next_fence_after_breaking_is_greater_by_more_than_one_grant(store: LawStore) -> None:
    """The broken holder may have seen the next number announced; no claim gets that one."""
    fence = store.acquire("a").fence
    assert store.break_hold(fence)
    assert store.acquire("b").fence >= fence + 2


# ---- sizes -----------------------------------------------------------------------------------


def test_a_name_in_use_with_another_size_differs(store: LawStore) -> None:
    store.acquire("a", slots=3)
    assert store.claim("b", slots=1) == Differs(3)
    assert store.claim("c", slots=ALL_SLOTS) == Differs(3)
    assert store.waiters == []
    assert store.release("a")
    assert isinstance(store.claim("b"), Granted)


@pytest.mark.parametrize("fair", [True, False])
def test_waiters_also_fix_the_size(store: LawStore, fair: bool) -> None:
    store.acquire("a", slots=2, take=2, lease=1.0)
    store.enqueue("b", slots=2, fair=fair)
    store.pass_time(1.0)
    assert store.claim("c", slots=1) == Differs(2)


def test_a_claim_of_more_than_all_slots_is_refused(store: LawStore) -> None:
    assert store.claim("a", slots=2, take=3) == Differs(2)
    assert store.waiters == []


def test_a_holder_is_not_refused_for_its_size(store: LawStore) -> None:
    first = store.acquire("a", slots=3)
    assert store.claim("a", slots=1) == first


# ---- fences ----------------------------------------------------------------------------------


def test_fences_rise_from_grant_to_grant_across_names(store: LawStore) -> None:
    fences = []
    for name in ("x", "y", "x"):
        claim = Claim(name, "id", "w", LEASE)
        fences.append(store.memory.step(name, law.claim, claim)[0].fence)
        assert store.memory.step(name, law.release, claim)[0]
    assert fences == sorted(set(fences))


def test_fences_rise_although_the_wall_clock_steps_back(store: LawStore) -> None:
    before = store.acquire("a").fence
    store.release("a")
    store.wall -= 500.0
    assert store.acquire("b").fence > before


def test_fences_have_the_wall_clock_as_their_lower_bound(store: LawStore) -> None:
    """A store that has lost its data thus continues above the fences that it issued before."""
    assert store.acquire("a").fence == int(store.wall * 1e6)
    store.pass_time(1.0)
    forgetful = LawStore()
    forgetful.wall = store.wall
    assert forgetful.acquire("a").fence > store.look().holders[0].fence


def test_a_busy_answer_carries_the_last_fence_issued(store: LawStore) -> None:
    fence = store.acquire("a").fence
    assert store.enqueue("b").fence == fence
    assert store.break_hold(fence)
    ((_, grant),) = store.woken
    assert grant is not None and grant.fence > fence


# ---- snapshots, and remains --------------------------------------------------


def test_a_snapshot_shows_holders_and_waiters_in_order_and_changes_nothing(store: LawStore) -> None:
    store.acquire("a", slots=2, take=2, lease=8.0)
    store.pass_time(1.0)
    store.enqueue("u", slots=2, fair=False)
    store.enqueue("b", slots=2, take=2)
    seen = store.look()
    assert seen.name == "n" and seen.slots == 2 and seen.now == store.wall
    (holder,) = seen.holders
    assert (holder.take, holder.since, holder.remaining) == (2, store.wall - 1.0, 7.0)
    assert seen.waiters == (
        Waiter(Who("host", 1, "b"), 2, store.wall, True),
        Waiter(Who("host", 1, "u"), 1, store.wall, False),
    )
    assert store.look() == seen
    assert store.woken == []


def test_since_is_when_the_claim_was_granted_not_when_it_was_queued(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    store.pass_time(2.0)
    store.release("a")
    assert store.look().holders[0].since == store.wall


@pytest.mark.parametrize("end", ["release", "leave", "expire", "break", "refused", "waiter"])
def test_nothing_is_left_of_a_name_when_its_last_row_ends(store: LawStore, end: str) -> None:
    match end:
        case "release":
            store.acquire("a")
            store.release("a")
        case "leave":
            store.acquire("a")
            store.enqueue("b")
            store.leave("b")
            store.leave("a")
        case "expire":
            store.acquire("a")
            store.pass_time(LEASE)
            store.look()
        case "break":
            store.break_hold(store.acquire("a").fence)
        case "refused":
            store.claim("a", slots=1, take=2)
        case "waiter":
            store.acquire("a", lease=1.0)
            store.enqueue("b")
            store.enqueue("u", fair=False)
            store.pass_time(WAITER_LEASE)
            store.look()
    assert store.memory._names == {}

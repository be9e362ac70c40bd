"""The law of slots over the memory book: which claim gets a name, in what order, and how long.

These tests have no client, no thread and no sleep: each line is one atomic step at one moment of a
clock that only the test moves.
"""

from __future__ import annotations

import pytest

from law_steps import LEASE, LawStore
from lockfast.core.law import FIRST_LEASE, REFRESH, WAITER_LEASE
from lockfast.model import ALL_SLOTS, Busy, Gone, Granted


@pytest.fixture
def store() -> LawStore:
    return LawStore()


# ---- grants and their order ------------------------------------------------------------------


def test_a_free_name_is_granted_for_the_whole_lease(store: LawStore) -> None:
    assert store.acquire("a", lease=12.0).lease == 12.0
    assert store.look().holders[0].remaining == 12.0
    assert store.woken == []


def test_a_taken_name_is_served_in_arrival_order(store: LawStore) -> None:
    store.acquire("a")
    for claim_id in "bcd":
        store.enqueue(claim_id)
    order = []
    for claim_id in "abcd":
        assert store.release(claim_id)
        order += store.served
    assert order == ["b", "c", "d"]


def test_a_fair_claim_that_fits_does_not_overtake_one_that_waits(store: LawStore) -> None:
    store.acquire("a", slots=3, take=2)
    store.enqueue("big", slots=3, take=3)
    store.enqueue("small", slots=3, take=1)
    assert store.waiters == ["big", "small"]
    assert store.release("a")
    assert store.served == ["big"]
    assert store.waiters == ["small"]


def test_a_release_serves_all_waiters_that_fit_and_stops_at_the_first_that_does_not(
    store: LawStore,
) -> None:
    store.acquire("a", slots=4, take=4)
    for claim_id, take in (("b", 1), ("c", 2), ("d", 2), ("e", 1)):
        store.enqueue(claim_id, slots=4, take=take)
    assert store.release("a")
    assert store.served == ["b", "c"]  # e would fit too, but may not overtake d
    assert store.waiters == ["d", "e"]


def test_slots_left_beside_the_holders_are_granted_at_once(store: LawStore) -> None:
    store.acquire("a", slots=3, take=2)
    assert isinstance(store.claim("b", slots=3, take=1), Granted)
    store.enqueue("c", slots=3)


def test_a_waiting_writer_blocks_later_readers_which_then_share(store: LawStore) -> None:
    store.acquire("r1", slots=ALL_SLOTS)
    store.acquire("r2", slots=ALL_SLOTS)
    store.enqueue("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    store.enqueue("r3", slots=ALL_SLOTS)
    store.enqueue("r4", slots=ALL_SLOTS)
    assert store.release("r1")
    assert store.woken == []
    assert store.release("r2")
    assert store.served == ["w"]
    assert store.release("w")
    assert store.served == ["r3", "r4"]


def test_an_unfair_claim_that_fits_overtakes_the_waiters(store: LawStore) -> None:
    store.acquire("a", slots=3, take=2)
    store.enqueue("big", slots=3, take=3)
    assert isinstance(store.claim("quick", slots=3, fair=False), Granted)
    assert isinstance(store.claim("late", slots=3, fair=False), Busy)


def test_an_unfair_waiter_blocks_nobody(store: LawStore) -> None:
    store.acquire("a", slots=3, take=2)
    store.enqueue("u", slots=3, take=2, fair=False)
    assert isinstance(store.claim("fair", slots=3), Granted)


def test_unfair_waiters_are_woken_only_for_slots_that_fair_waiters_leave_over(
    store: LawStore,
) -> None:
    store.acquire("a", slots=3, take=3)
    store.enqueue("u1", slots=3, fair=False)
    store.enqueue("u3", slots=3, take=3, fair=False)
    store.enqueue("u2", slots=3, take=2, fair=False)
    store.enqueue("f", slots=3, take=1)
    assert store.release("a")
    assert store.served == ["f"]
    assert store.woken_without_grant == ["u1"]  # then one slot is left: too few for u3 and for u2
    assert store.waiters == ["u1", "u3", "u2"]  # woken, not granted


def test_no_unfair_waiter_is_woken_when_no_slot_is_left_over(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("u", fair=False)
    store.enqueue("f")
    assert store.release("a")
    assert store.woken == [("f", Granted(store.look().holders[0].fence, FIRST_LEASE))]


def test_of_two_unfair_waiters_the_first_to_ask_again_is_granted(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("u1", fair=False)
    store.enqueue("u2", fair=False)
    assert store.release("a")
    assert store.woken_without_grant == ["u1"]
    # u1 may be paused or dead: the slot is free, and u2 claims now.
    assert isinstance(store.claim("u2"), Granted)
    assert isinstance(store.claim("u1"), Busy)


def test_an_unfair_waiter_that_refreshes_when_slots_are_free_is_granted_its_whole_lease(
    store: LawStore,
) -> None:
    store.acquire("a")
    store.enqueue("u", fair=False)
    assert store.release("a")
    granted = store.renew("u")
    assert isinstance(granted, Granted) and granted.lease == LEASE
    assert store.waiters == []


def test_a_claim_that_does_not_wait_is_not_queued(store: LawStore) -> None:
    store.acquire("a")
    assert isinstance(store.claim("b", wait=False), Busy)
    assert store.waiters == []


# ---- leases and dead rows ---------------------------------------------------------------------


@pytest.mark.parametrize("lease", [2.0, FIRST_LEASE, 30.0])
def test_a_waiter_served_by_a_release_gets_a_short_first_lease(
    store: LawStore, lease: float
) -> None:
    store.acquire("a")
    store.enqueue("b", lease=lease)
    assert store.release("a")
    ((_, grant),) = store.woken
    assert grant is not None and grant.lease == min(lease, FIRST_LEASE)
    assert store.look().holders[0].remaining == grant.lease


def test_a_repeated_claim_that_finds_its_grant_starts_the_whole_lease(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    assert store.release("a")
    ((_, grant),) = store.woken
    assert grant is not None
    assert store.claim("b") == Granted(grant.fence, LEASE)
    store.pass_time(LEASE - 0.1)
    assert store.holders == ["b"]


def test_an_expired_lease_frees_its_slots_for_the_queue_before_any_newcomer(
    store: LawStore,
) -> None:
    store.acquire("a", lease=1.0)
    store.enqueue("b")
    store.pass_time(1.0)
    store.enqueue("new")
    assert store.served == ["b"]
    assert store.holders == ["b"] and store.waiters == ["new"]


def test_an_expired_lease_goes_to_the_waiter_that_refreshes(store: LawStore) -> None:
    store.acquire("a", lease=1.0)
    store.enqueue("b", lease=9.0)
    store.pass_time(1.0)
    granted = store.renew("b")
    assert (
        isinstance(granted, Granted) and granted.lease == 9.0
    )  # it has just asked: no first lease
    assert store.woken == []


def test_a_refresh_also_serves_the_other_waiters_that_fit(store: LawStore) -> None:
    store.acquire("a", slots=2, take=2, lease=1.0)
    store.enqueue("b", slots=2)
    store.enqueue("c", slots=2)
    store.pass_time(1.0)
    assert isinstance(store.renew("c"), Granted)
    assert store.served == ["b"]


def test_a_hold_ends_exactly_at_its_lease_and_not_before(store: LawStore) -> None:
    store.acquire("a", lease=1.0)
    store.pass_time(0.5)
    assert isinstance(store.claim("b", wait=False), Busy)
    store.pass_time(0.5)
    assert isinstance(store.claim("b", wait=False), Granted)


def test_waiters_that_were_not_refreshed_are_skipped_and_the_live_ones_keep_their_order(
    store: LawStore,
) -> None:
    store.acquire("a", lease=100.0)
    for claim_id in ("dead1", "b", "dead2", "c"):
        store.enqueue(claim_id)
    store.pass_time(WAITER_LEASE - 1)
    assert isinstance(store.renew("b"), Busy)
    assert isinstance(store.renew("c"), Busy)
    store.pass_time(1)
    assert store.waiters == ["b", "c"]
    assert store.release("a")
    assert store.served == ["b"]
    assert store.renew("dead1") == Gone()


def test_a_dead_writer_at_the_head_no_longer_blocks_the_readers(store: LawStore) -> None:
    store.acquire("r1", slots=ALL_SLOTS, lease=100.0)
    store.enqueue("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    store.pass_time(WAITER_LEASE)
    assert isinstance(store.claim("r2", slots=ALL_SLOTS), Granted)


def test_a_waiter_that_lost_its_position_is_queued_at_the_end_again(store: LawStore) -> None:
    store.acquire("a", lease=100.0)
    store.enqueue("late")
    store.pass_time(1.0)
    store.enqueue("b")
    store.pass_time(WAITER_LEASE - 1.0)
    store.enqueue("late")
    assert store.waiters == ["b", "late"]


def test_retry_after_is_the_end_of_the_soonest_hold_for_the_first_in_the_queue(
    store: LawStore,
) -> None:
    store.acquire("a", slots=2, lease=1.0)
    store.acquire("b", slots=2, lease=0.5)
    assert store.enqueue("first", slots=2).retry_after == 0.5
    assert store.enqueue("second", slots=2).retry_after == REFRESH
    assert store.enqueue("unfair", slots=2, fair=False).retry_after == 0.5
    store.claim("no-wait", slots=2, wait=False)
    store.pass_time(0.25)
    assert store.enqueue("first").retry_after == 0.25


def test_retry_after_is_a_refresh_when_all_holds_last_longer(store: LawStore) -> None:
    store.acquire("a")
    assert store.enqueue("b").retry_after == REFRESH

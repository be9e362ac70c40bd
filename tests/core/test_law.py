"""The law of slots, step by step, over the memory book: who gets a name, in what order, how long.

No client, no thread and no sleep: each line is one atomic step at one moment of a clock that only
the test moves.
"""

from __future__ import annotations

import pytest

from law_steps import LEASE, Desk
from lockfast.core.law import FIRST_LEASE, REFRESH, WAITER_LEASE
from lockfast.model import ALL_SLOTS, Busy, Gone, Granted


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- who, and in what order ------------------------------------------------------------------


def test_a_free_name_is_granted_for_the_whole_lease(desk: Desk) -> None:
    assert desk.holds("a", lease=12.0).lease == 12.0
    assert desk.look().holders[0].remaining == 12.0
    assert desk.woken == []


def test_a_taken_name_is_served_in_arrival_order(desk: Desk) -> None:
    desk.holds("a")
    for claim_id in "bcd":
        desk.waits(claim_id)
    order = []
    for claim_id in "abcd":
        assert desk.release(claim_id)
        order += desk.served
    assert order == ["b", "c", "d"]


def test_a_fair_claim_that_fits_does_not_overtake_one_that_waits(desk: Desk) -> None:
    desk.holds("a", slots=3, take=2)
    desk.waits("big", slots=3, take=3)
    desk.waits("small", slots=3, take=1)
    assert desk.waiters == ["big", "small"]
    assert desk.release("a")
    assert desk.served == ["big"]
    assert desk.waiters == ["small"]


def test_a_release_serves_all_who_fit_at_once_and_stops_at_the_first_who_does_not(
    desk: Desk,
) -> None:
    desk.holds("a", slots=4, take=4)
    for claim_id, take in (("b", 1), ("c", 2), ("d", 2), ("e", 1)):
        desk.waits(claim_id, slots=4, take=take)
    assert desk.release("a")
    assert desk.served == ["b", "c"]  # e would fit too, but nobody overtakes d
    assert desk.waiters == ["d", "e"]


def test_slots_left_beside_the_holders_are_granted_at_once(desk: Desk) -> None:
    desk.holds("a", slots=3, take=2)
    assert isinstance(desk.claim("b", slots=3, take=1), Granted)
    desk.waits("c", slots=3)


def test_a_waiting_writer_stops_later_readers_and_then_they_share(desk: Desk) -> None:
    desk.holds("r1", slots=ALL_SLOTS)
    desk.holds("r2", slots=ALL_SLOTS)
    desk.waits("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    desk.waits("r3", slots=ALL_SLOTS)
    desk.waits("r4", slots=ALL_SLOTS)
    assert desk.release("r1")
    assert desk.woken == []
    assert desk.release("r2")
    assert desk.served == ["w"]
    assert desk.release("w")
    assert desk.served == ["r3", "r4"]


def test_an_unfair_claim_overtakes_those_who_wait_if_it_fits(desk: Desk) -> None:
    desk.holds("a", slots=3, take=2)
    desk.waits("big", slots=3, take=3)
    assert isinstance(desk.claim("quick", slots=3, fair=False), Granted)
    assert isinstance(desk.claim("late", slots=3, fair=False), Busy)


def test_an_unfair_waiter_stops_nobody(desk: Desk) -> None:
    desk.holds("a", slots=3, take=2)
    desk.waits("u", slots=3, take=2, fair=False)
    assert isinstance(desk.claim("fair", slots=3), Granted)


def test_unfair_waiters_are_rung_only_for_slots_that_the_fair_leave_over(desk: Desk) -> None:
    desk.holds("a", slots=3, take=3)
    desk.waits("u1", slots=3, fair=False)
    desk.waits("u3", slots=3, take=3, fair=False)
    desk.waits("u2", slots=3, take=2, fair=False)
    desk.waits("f", slots=3, take=1)
    assert desk.release("a")
    assert desk.served == ["f"]
    assert desk.only_rung == ["u1"]  # then one slot is left: too few for u3 and for u2
    assert desk.waiters == ["u1", "u3", "u2"]  # rung, not granted


def test_no_unfair_waiter_is_rung_when_nothing_is_left_over(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("u", fair=False)
    desk.waits("f")
    assert desk.release("a")
    assert desk.woken == [("f", Granted(desk.look().holders[0].fence, FIRST_LEASE))]


def test_of_two_rung_unfair_waiters_whoever_asks_first_gets_it(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("u1", fair=False)
    desk.waits("u2", fair=False)
    assert desk.release("a")
    assert desk.only_rung == ["u1"]
    # u1 may be paused, or have died: the slot is free, and u2 asks now.
    assert isinstance(desk.claim("u2"), Granted)
    assert isinstance(desk.claim("u1"), Busy)


def test_an_unfair_waiter_that_refreshes_when_slots_are_free_is_granted_its_whole_lease(
    desk: Desk,
) -> None:
    desk.holds("a")
    desk.waits("u", fair=False)
    assert desk.release("a")
    granted = desk.renew("u")
    assert isinstance(granted, Granted) and granted.lease == LEASE
    assert desk.waiters == []


def test_who_does_not_wait_leaves_no_place(desk: Desk) -> None:
    desk.holds("a")
    assert isinstance(desk.claim("b", wait=False), Busy)
    assert desk.waiters == []


# ---- leases and the dead ---------------------------------------------------------------------


@pytest.mark.parametrize("lease", [2.0, FIRST_LEASE, 30.0])
def test_who_is_served_while_not_asking_gets_a_short_first_lease(desk: Desk, lease: float) -> None:
    desk.holds("a")
    desk.waits("b", lease=lease)
    assert desk.release("a")
    ((_, grant),) = desk.woken
    assert grant is not None and grant.lease == min(lease, FIRST_LEASE)
    assert desk.look().holders[0].remaining == grant.lease


def test_a_grant_found_by_asking_again_starts_the_whole_lease(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    assert desk.release("a")
    ((_, grant),) = desk.woken
    assert grant is not None
    assert desk.claim("b") == Granted(grant.fence, LEASE)
    desk.pass_time(LEASE - 0.1)
    assert desk.holders == ["b"]


def test_a_lease_that_ran_out_frees_its_slots_for_the_queue_before_any_newcomer(
    desk: Desk,
) -> None:
    desk.holds("a", lease=1.0)
    desk.waits("b")
    desk.pass_time(1.0)
    desk.waits("new")
    assert desk.served == ["b"]
    assert desk.holders == ["b"] and desk.waiters == ["new"]


def test_a_lease_that_ran_out_is_served_to_the_waiter_who_refreshes(desk: Desk) -> None:
    desk.holds("a", lease=1.0)
    desk.waits("b", lease=9.0)
    desk.pass_time(1.0)
    granted = desk.renew("b")
    assert isinstance(granted, Granted) and granted.lease == 9.0  # asked just now: no first lease
    assert desk.woken == []


def test_a_refresh_also_serves_the_others_who_fit(desk: Desk) -> None:
    desk.holds("a", slots=2, take=2, lease=1.0)
    desk.waits("b", slots=2)
    desk.waits("c", slots=2)
    desk.pass_time(1.0)
    assert isinstance(desk.renew("c"), Granted)
    assert desk.served == ["b"]


def test_a_hold_ends_exactly_at_its_lease_and_not_before(desk: Desk) -> None:
    desk.holds("a", lease=1.0)
    desk.pass_time(0.5)
    assert isinstance(desk.claim("b", wait=False), Busy)
    desk.pass_time(0.5)
    assert isinstance(desk.claim("b", wait=False), Granted)


def test_places_that_were_not_refreshed_are_skipped_and_the_living_keep_their_order(
    desk: Desk,
) -> None:
    desk.holds("a", lease=100.0)
    for claim_id in ("dead1", "b", "dead2", "c"):
        desk.waits(claim_id)
    desk.pass_time(WAITER_LEASE - 1)
    assert isinstance(desk.renew("b"), Busy)
    assert isinstance(desk.renew("c"), Busy)
    desk.pass_time(1)
    assert desk.waiters == ["b", "c"]
    assert desk.release("a")
    assert desk.served == ["b"]
    assert desk.renew("dead1") == Gone()


def test_a_dead_writer_at_the_head_no_longer_stops_the_readers(desk: Desk) -> None:
    desk.holds("r1", slots=ALL_SLOTS, lease=100.0)
    desk.waits("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    desk.pass_time(WAITER_LEASE)
    assert isinstance(desk.claim("r2", slots=ALL_SLOTS), Granted)


def test_who_lost_its_place_stands_at_the_end_again(desk: Desk) -> None:
    desk.holds("a", lease=100.0)
    desk.waits("late")
    desk.pass_time(1.0)
    desk.waits("b")
    desk.pass_time(WAITER_LEASE - 1.0)
    desk.waits("late")
    assert desk.waiters == ["b", "late"]


def test_retry_after_is_the_end_of_the_soonest_hold_for_the_first_in_the_queue(desk: Desk) -> None:
    desk.holds("a", slots=2, lease=1.0)
    desk.holds("b", slots=2, lease=0.5)
    assert desk.waits("first", slots=2).retry_after == 0.5
    assert desk.waits("second", slots=2).retry_after == REFRESH
    assert desk.waits("unfair", slots=2, fair=False).retry_after == 0.5
    desk.claim("asks once", slots=2, wait=False)
    desk.pass_time(0.25)
    assert desk.waits("first").retry_after == 0.25


def test_retry_after_is_a_refresh_when_all_holds_last_longer(desk: Desk) -> None:
    desk.holds("a")
    assert desk.waits("b").retry_after == REFRESH

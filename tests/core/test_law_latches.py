"""The law of slots where many wait together: rule 7, latches and barriers, step by step."""

from __future__ import annotations

import pytest

from law_steps import LEASE, Desk
from lockfast.core.law import FIRST_LEASE, REFRESH, WAITER_LEASE
from lockfast.model import BARRIER, LATCH, Busy, Differs, Gone, Granted

KEEP = 1000.0


@pytest.fixture
def desk() -> Desk:
    return Desk()


def count(desk: Desk, claim_id: str, size: int = 2, keep: float = KEEP) -> object:
    return desk.claim(claim_id, slots=LATCH + size, take=1, lease=keep, wait=False)


def at_latch(desk: Desk, claim_id: str, size: int = 2, **terms: object) -> object:
    return desk.claim(claim_id, slots=LATCH + size, take=0, **terms)


def at_barrier(desk: Desk, claim_id: str, size: int = 3, **terms: object) -> object:
    return desk.claim(claim_id, slots=BARRIER + size, **terms)


# ---- latches ---------------------------------------------------------------------------------


def test_a_latch_of_which_nothing_is_counted_is_closed(desk: Desk) -> None:
    assert isinstance(at_latch(desk, "w"), Busy)
    assert desk.waiters == ["w"] and desk.holders == []


def test_who_asks_a_closed_latch_once_leaves_no_place(desk: Desk) -> None:
    assert isinstance(at_latch(desk, "w", wait=False), Busy)
    assert desk.waiters == [] and desk.look().slots == 0
    count(desk, "1")
    assert isinstance(at_latch(desk, "w", wait=False), Busy)
    assert desk.waiters == []


def test_the_last_count_down_serves_all_who_wait_with_a_first_lease(desk: Desk) -> None:
    for claim_id in "uvw":
        assert isinstance(at_latch(desk, claim_id), Busy)
    assert isinstance(count(desk, "1"), Granted)
    assert desk.woken == []
    assert isinstance(count(desk, "2"), Granted)
    assert desk.served == ["u", "v", "w"]
    assert {grant.lease for _, grant in desk.woken if grant is not None} == {FIRST_LEASE}
    assert desk.waiters == []


def test_an_unfair_wait_is_let_through_with_all_others(desk: Desk) -> None:
    at_latch(desk, "u", size=1, fair=False)
    at_latch(desk, "v", size=1)
    count(desk, "1", size=1)
    assert desk.served == ["u", "v"]


def test_an_open_latch_grants_at_once_for_the_whole_lease(desk: Desk) -> None:
    count(desk, "1", size=1)
    assert at_latch(desk, "w", size=1) == Granted(desk.look().holders[-1].fence, LEASE)
    assert isinstance(at_latch(desk, "x", size=1, wait=False), Granted)
    assert desk.release("w") and desk.release("x")
    assert desk.holders == ["1"]


def test_an_open_latch_is_counted_no_further(desk: Desk) -> None:
    count(desk, "1", size=1, keep=50.0)
    last = desk.look().holders[0].fence
    assert count(desk, "2", size=1) == Busy(REFRESH, last)
    assert desk.holders == ["1"] and desk.look().holders[0].remaining == 50.0


def test_those_who_passed_do_not_count(desk: Desk) -> None:
    count(desk, "1", size=1)
    for claim_id in "uvw":
        at_latch(desk, claim_id, size=1)
    assert sum(holder.take for holder in desk.look().holders) == 1


def test_a_count_down_asked_twice_counts_once(desk: Desk) -> None:
    first = count(desk, "1")
    assert count(desk, "1") == first
    assert desk.holders == ["1"] and isinstance(at_latch(desk, "w"), Busy)


def test_all_that_was_counted_ends_together_after_the_last(desk: Desk) -> None:
    count(desk, "1", size=3, keep=100.0)
    desk.pass_time(60.0)
    count(desk, "2", size=3, keep=100.0)
    assert [holder.remaining for holder in desk.look().holders] == [100.0, 100.0]
    desk.pass_time(99.0)
    assert desk.holders == ["1", "2"]
    desk.pass_time(1.0)
    assert desk.holders == [] and desk.look().slots == 0


def test_a_count_down_does_not_lengthen_the_leases_of_those_who_passed(desk: Desk) -> None:
    count(desk, "1", size=1, keep=10.0)
    at_latch(desk, "w", size=1, lease=20.0)
    desk.pass_time(11.0)  # what was counted is forgotten, who passed has not gone on yet
    assert desk.holders == ["w"]
    assert isinstance(count(desk, "2", size=1), Granted)
    assert [holder.remaining for holder in desk.look().holders] == [9.0, KEEP]


def test_a_latch_is_no_latch_of_another_size_nor_anything_else(desk: Desk) -> None:
    count(desk, "1")
    for slots, take in ((LATCH + 3, 1), (LATCH + 3, 0), (BARRIER + 2, 1), (1, 1)):
        assert desk.claim("x", slots=slots, take=take) == Differs(LATCH + 2)
    assert desk.holders == ["1"] and desk.waiters == []


def test_a_refreshed_place_at_a_latch_stays_and_is_told_when_it_is_open(desk: Desk) -> None:
    at_latch(desk, "w")
    for _ in range(3):
        desk.pass_time(WAITER_LEASE - 1)
        assert isinstance(desk.renew("w"), Busy)
    count(desk, "1")
    count(desk, "2")
    assert desk.served == ["w"] and isinstance(desk.renew("w"), Granted)


def test_who_left_a_latch_is_not_served(desk: Desk) -> None:
    at_latch(desk, "u")
    at_latch(desk, "w")
    assert not desk.leave("u").crossed
    count(desk, "1")
    count(desk, "2")
    assert desk.served == ["w"]


def test_breaking_one_count_closes_the_latch_again(desk: Desk) -> None:
    count(desk, "1")
    count(desk, "2")
    assert desk.break_hold(desk.look().holders[0].fence)
    assert isinstance(at_latch(desk, "w", wait=False), Busy)


# ---- barriers --------------------------------------------------------------------------------


def test_parties_wait_until_they_are_enough_and_pass_together(desk: Desk) -> None:
    assert isinstance(at_barrier(desk, "a"), Busy)
    assert isinstance(at_barrier(desk, "b"), Busy)
    assert desk.woken == [] and desk.waiters == ["a", "b"] and desk.holders == []
    assert isinstance(at_barrier(desk, "c"), Granted)
    assert desk.served == ["a", "b"] and desk.waiters == []


def test_who_is_late_to_hear_finds_that_it_passed(desk: Desk) -> None:
    """The whole lease, not a first lease: at a barrier nobody waits for a hold to end."""
    for claim_id in "abc":
        at_barrier(desk, claim_id)
    assert {grant.lease for _, grant in desk.woken if grant is not None} == {LEASE}
    desk.pass_time(LEASE - 1)
    assert isinstance(desk.renew("a"), Granted) and isinstance(desk.claim("b"), Granted)


def test_a_barrier_can_be_used_again_while_those_who_passed_have_not_gone_on(desk: Desk) -> None:
    for claim_id in "abc":
        at_barrier(desk, claim_id)
    assert isinstance(at_barrier(desk, "d"), Busy)
    assert isinstance(at_barrier(desk, "e"), Busy)
    assert desk.release("a") and desk.woken == []
    assert isinstance(at_barrier(desk, "f"), Granted)
    assert desk.served == ["d", "e"]


def test_an_arrival_asked_twice_is_one_party(desk: Desk) -> None:
    for _ in range(4):
        assert isinstance(at_barrier(desk, "a"), Busy)
    assert desk.waiters == ["a"]


def test_the_last_arrival_asked_twice_has_passed(desk: Desk) -> None:
    at_barrier(desk, "a", size=2)
    passed = at_barrier(desk, "b", size=2)
    assert at_barrier(desk, "b", size=2) == passed
    assert desk.waiters == []


def test_a_party_that_left_or_died_does_not_count(desk: Desk) -> None:
    at_barrier(desk, "a")
    at_barrier(desk, "b")
    assert not desk.leave("a").crossed
    assert isinstance(at_barrier(desk, "c"), Busy)
    desk.pass_time(WAITER_LEASE)
    assert isinstance(at_barrier(desk, "d"), Busy) and desk.waiters == ["d"]
    assert isinstance(desk.renew("b"), Gone)


def test_a_party_that_left_when_it_had_passed_is_told_so_once(desk: Desk) -> None:
    at_barrier(desk, "a", size=2)
    at_barrier(desk, "b", size=2)
    assert desk.leave("a").crossed
    assert not desk.leave("a").crossed and not desk.look().crossed
    assert desk.holders == ["b"]


def test_a_party_that_asks_once_passes_only_as_the_last(desk: Desk) -> None:
    assert isinstance(at_barrier(desk, "a", size=2, wait=False), Busy)
    assert desk.waiters == []
    at_barrier(desk, "a", size=2, wait=True)
    assert isinstance(at_barrier(desk, "b", size=2, wait=False), Granted)


def test_an_unfair_party_is_counted_like_the_others(desk: Desk) -> None:
    at_barrier(desk, "a", size=2, fair=False)
    assert isinstance(at_barrier(desk, "b", size=2), Granted)
    assert desk.served == ["a"]


def test_a_barrier_is_no_barrier_of_another_size(desk: Desk) -> None:
    at_barrier(desk, "a")
    assert at_barrier(desk, "b", size=2) == Differs(BARRIER + 3)
    assert desk.waiters == ["a"]

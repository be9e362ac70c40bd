"""The law of slots for latches and barriers (rule 7), step by step."""

from __future__ import annotations

import pytest

from law_steps import LEASE, LawStore
from lockfast.core.law import FIRST_LEASE, REFRESH, WAITER_LEASE
from lockfast.model import BARRIER, LATCH, Busy, Differs, Gone, Granted

KEEP = 1000.0


@pytest.fixture
def store() -> LawStore:
    return LawStore()


def count(store: LawStore, claim_id: str, size: int = 2, keep: float = KEEP) -> object:
    return store.claim(claim_id, slots=LATCH + size, take=1, lease=keep, wait=False)


def at_latch(store: LawStore, claim_id: str, size: int = 2, **terms: object) -> object:
    return store.claim(claim_id, slots=LATCH + size, take=0, **terms)


def at_barrier(store: LawStore, claim_id: str, size: int = 3, **terms: object) -> object:
    return store.claim(claim_id, slots=BARRIER + size, **terms)


# ---- latches ---------------------------------------------------------------------------------


def test_a_latch_without_any_count_is_closed(store: LawStore) -> None:
    assert isinstance(at_latch(store, "w"), Busy)
    assert store.waiters == ["w"] and store.holders == []


def test_a_claim_on_a_closed_latch_that_does_not_wait_is_not_queued(store: LawStore) -> None:
    assert isinstance(at_latch(store, "w", wait=False), Busy)
    assert store.waiters == [] and store.look().slots == 0
    count(store, "1")
    assert isinstance(at_latch(store, "w", wait=False), Busy)
    assert store.waiters == []


def test_the_last_count_down_serves_all_waiters_with_a_first_lease(store: LawStore) -> None:
    for claim_id in "uvw":
        assert isinstance(at_latch(store, claim_id), Busy)
    assert isinstance(count(store, "1"), Granted)
    assert store.woken == []
    assert isinstance(count(store, "2"), Granted)
    assert store.served == ["u", "v", "w"]
    assert {grant.lease for _, grant in store.woken if grant is not None} == {FIRST_LEASE}
    assert store.waiters == []


def test_an_unfair_waiter_passes_a_latch_with_all_others(store: LawStore) -> None:
    at_latch(store, "u", size=1, fair=False)
    at_latch(store, "v", size=1)
    count(store, "1", size=1)
    assert store.served == ["u", "v"]


def test_an_open_latch_grants_at_once_for_the_whole_lease(store: LawStore) -> None:
    count(store, "1", size=1)
    assert at_latch(store, "w", size=1) == Granted(store.look().holders[-1].fence, LEASE)
    assert isinstance(at_latch(store, "x", size=1, wait=False), Granted)
    assert store.release("w") and store.release("x")
    assert store.holders == ["1"]


def test_an_open_latch_accepts_no_more_counts(store: LawStore) -> None:
    count(store, "1", size=1, keep=50.0)
    last = store.look().holders[0].fence
    assert count(store, "2", size=1) == Busy(REFRESH, last)
    assert store.holders == ["1"] and store.look().holders[0].remaining == 50.0


def test_waiters_that_passed_do_not_count(store: LawStore) -> None:
    count(store, "1", size=1)
    for claim_id in "uvw":
        at_latch(store, claim_id, size=1)
    assert sum(holder.take for holder in store.look().holders) == 1


def test_a_repeated_count_down_counts_once(store: LawStore) -> None:
    first = count(store, "1")
    assert count(store, "1") == first
    assert store.holders == ["1"] and isinstance(at_latch(store, "w"), Busy)


def test_all_counts_expire_together_after_the_last(store: LawStore) -> None:
    count(store, "1", size=3, keep=100.0)
    store.pass_time(60.0)
    count(store, "2", size=3, keep=100.0)
    assert [holder.remaining for holder in store.look().holders] == [100.0, 100.0]
    store.pass_time(99.0)
    assert store.holders == ["1", "2"]
    store.pass_time(1.0)
    assert store.holders == [] and store.look().slots == 0


def test_a_count_down_does_not_lengthen_the_leases_of_waiters_that_passed(store: LawStore) -> None:
    count(store, "1", size=1, keep=10.0)
    at_latch(store, "w", size=1, lease=20.0)
    store.pass_time(11.0)  # the count has expired, the waiter that passed has not yet released
    assert store.holders == ["w"]
    assert isinstance(count(store, "2", size=1), Granted)
    assert [holder.remaining for holder in store.look().holders] == [9.0, KEEP]


def test_a_latch_differs_from_one_of_another_size_and_from_other_kinds(store: LawStore) -> None:
    count(store, "1")
    for slots, take in ((LATCH + 3, 1), (LATCH + 3, 0), (BARRIER + 2, 1), (1, 1)):
        assert store.claim("x", slots=slots, take=take) == Differs(LATCH + 2)
    assert store.holders == ["1"] and store.waiters == []


def test_a_refreshed_waiter_stays_at_a_latch_and_is_served_when_it_opens(store: LawStore) -> None:
    at_latch(store, "w")
    for _ in range(3):
        store.pass_time(WAITER_LEASE - 1)
        assert isinstance(store.renew("w"), Busy)
    count(store, "1")
    count(store, "2")
    assert store.served == ["w"] and isinstance(store.renew("w"), Granted)


def test_a_waiter_that_left_a_latch_is_not_served(store: LawStore) -> None:
    at_latch(store, "u")
    at_latch(store, "w")
    assert not store.leave("u").crossed
    count(store, "1")
    count(store, "2")
    assert store.served == ["w"]


def test_breaking_one_count_closes_the_latch_again(store: LawStore) -> None:
    count(store, "1")
    count(store, "2")
    assert store.break_hold(store.look().holders[0].fence)
    assert isinstance(at_latch(store, "w", wait=False), Busy)


# ---- barriers --------------------------------------------------------------------------------


def test_parties_wait_until_they_are_complete_and_pass_together(store: LawStore) -> None:
    assert isinstance(at_barrier(store, "a"), Busy)
    assert isinstance(at_barrier(store, "b"), Busy)
    assert store.woken == [] and store.waiters == ["a", "b"] and store.holders == []
    assert isinstance(at_barrier(store, "c"), Granted)
    assert store.served == ["a", "b"] and store.waiters == []


def test_a_party_that_asks_late_finds_that_it_passed(store: LawStore) -> None:
    """A barrier grants the whole lease, not a first lease: nobody waits for those holds to end."""
    for claim_id in "abc":
        at_barrier(store, claim_id)
    assert {grant.lease for _, grant in store.woken if grant is not None} == {LEASE}
    store.pass_time(LEASE - 1)
    assert isinstance(store.renew("a"), Granted) and isinstance(store.claim("b"), Granted)


def test_a_barrier_can_be_reused_before_the_parties_that_passed_have_released(
    store: LawStore,
) -> None:
    for claim_id in "abc":
        at_barrier(store, claim_id)
    assert isinstance(at_barrier(store, "d"), Busy)
    assert isinstance(at_barrier(store, "e"), Busy)
    assert store.release("a") and store.woken == []
    assert isinstance(at_barrier(store, "f"), Granted)
    assert store.served == ["d", "e"]


def test_a_repeated_arrival_is_one_party(store: LawStore) -> None:
    for _ in range(4):
        assert isinstance(at_barrier(store, "a"), Busy)
    assert store.waiters == ["a"]


def test_a_repeated_last_arrival_has_passed(store: LawStore) -> None:
    at_barrier(store, "a", size=2)
    passed = at_barrier(store, "b", size=2)
    assert at_barrier(store, "b", size=2) == passed
    assert store.waiters == []


def test_a_party_that_left_or_died_does_not_count(store: LawStore) -> None:
    at_barrier(store, "a")
    at_barrier(store, "b")
    assert not store.leave("a").crossed
    assert isinstance(at_barrier(store, "c"), Busy)
    store.pass_time(WAITER_LEASE)
    assert isinstance(at_barrier(store, "d"), Busy) and store.waiters == ["d"]
    assert isinstance(store.renew("b"), Gone)


def test_leaving_a_passed_barrier_reports_the_crossed_grant_once(store: LawStore) -> None:
    at_barrier(store, "a", size=2)
    at_barrier(store, "b", size=2)
    assert store.leave("a").crossed
    assert not store.leave("a").crossed and not store.look().crossed
    assert store.holders == ["b"]


def test_a_party_that_does_not_wait_passes_only_as_the_last(store: LawStore) -> None:
    assert isinstance(at_barrier(store, "a", size=2, wait=False), Busy)
    assert store.waiters == []
    at_barrier(store, "a", size=2, wait=True)
    assert isinstance(at_barrier(store, "b", size=2, wait=False), Granted)


def test_an_unfair_party_is_counted_like_the_others(store: LawStore) -> None:
    at_barrier(store, "a", size=2, fair=False)
    assert isinstance(at_barrier(store, "b", size=2), Granted)
    assert store.served == ["a"]


def test_a_barrier_differs_from_one_of_another_size(store: LawStore) -> None:
    at_barrier(store, "a")
    assert at_barrier(store, "b", size=2) == Differs(BARRIER + 3)
    assert store.waiters == ["a"]

"""The law of slots, continued: asking twice, leaving, hand-over, breaking, sizes, fences."""

from __future__ import annotations

import pytest

from law_steps import LEASE, Desk
from lockfast.core import law
from lockfast.core.law import DETACHED, WAITER_LEASE
from lockfast.model import ALL_SLOTS, Claim, Differs, Gone, Granted, Waiter, Who


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- asking twice, renewing, leaving ---------------------------------------------------------


def test_claiming_twice_is_one_hold_under_one_fence_and_starts_the_lease_again(
    desk: Desk,
) -> None:
    first = desk.holds("a")
    desk.pass_time(20.0)
    assert desk.claim("a") == first
    desk.pass_time(20.0)
    assert desk.holders == ["a"]


def test_claiming_twice_is_one_place_and_keeps_it(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    desk.waits("c")
    desk.waits("b")
    assert desk.waiters == ["b", "c"]


def test_renewal_extends_a_hold_and_keeps_its_fence(desk: Desk) -> None:
    fence = desk.holds("a", lease=10.0).fence
    desk.pass_time(9.0)
    assert desk.renew("a") == Granted(fence, 10.0)
    desk.pass_time(9.0)
    assert desk.renew("a", lease=3.0) == Granted(fence, 3.0)
    desk.pass_time(3.0)
    assert desk.holders == []


@pytest.mark.parametrize("end", ["release", "leave", "expire", "break"])
def test_renewal_never_brings_back_what_has_ended(desk: Desk, end: str) -> None:
    fence = desk.holds("a").fence
    match end:
        case "release":
            assert desk.release("a")
        case "leave":
            desk.leave("a")
        case "expire":
            desk.pass_time(LEASE)
        case "break":
            assert desk.break_hold(fence)
    assert desk.renew("a") == Gone()
    assert desk.holders == [] and desk.waiters == []


def test_a_release_of_what_is_not_there_is_false_and_touches_nobody(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    desk.claims["ghost"] = desk.claims["a"]._replace(id="ghost")
    assert desk.release("ghost") is False
    assert desk.release("b") is False
    assert desk.holders == ["a"] and desk.waiters == ["b"]
    assert desk.release("a") is True
    assert desk.release("a") is False
    assert desk.holders == ["b"]


def test_a_release_after_the_lease_is_false_and_leaves_the_next_holder_alone(desk: Desk) -> None:
    desk.holds("a", lease=1.0)
    desk.pass_time(1.0)
    desk.holds("b")
    assert desk.release("a") is False
    assert desk.holders == ["b"]


def test_leaving_gives_up_the_place_and_shows_who_is_there(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    desk.waits("c")
    seen = desk.leave("b")
    assert [holder.who.thread for holder in seen.holders] == ["a"]
    assert [waiter.who.thread for waiter in seen.waiters] == ["c"]


def test_leaving_gives_back_a_grant_that_crossed_and_serves_the_next(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    desk.waits("c")
    assert desk.release("a")
    assert desk.served == ["b"]
    desk.leave("b")
    assert desk.served == ["c"]


def test_a_writer_that_leaves_lets_the_readers_behind_it_in(desk: Desk) -> None:
    desk.holds("r1", slots=ALL_SLOTS)
    desk.waits("w", slots=ALL_SLOTS, take=ALL_SLOTS)
    desk.waits("r2", slots=ALL_SLOTS)
    desk.leave("w")
    assert desk.served == ["r2"]


def test_leaving_without_having_come_changes_nothing(desk: Desk) -> None:
    desk.holds("a")
    desk.claims["ghost"] = desk.claims["a"]._replace(id="ghost")
    assert len(desk.leave("ghost").holders) == 1


# ---- hand-over to another process ------------------------------------------------------------


def test_a_detached_hold_is_taken_over_once_under_the_same_fence(desk: Desk) -> None:
    fence = desk.holds("a").fence
    assert desk.transfer("a", attached=False, who="host 1 on-its-way") == Granted(fence, LEASE)
    assert desk.transfer("a", attached=True, who="host 2 new") == Granted(fence, LEASE)
    assert desk.transfer("a", attached=True, who="host 3 too-late") == Gone()
    (holder,) = desk.look().holders
    assert (holder.who.pid, holder.who.thread, holder.fence) == (2, "new", fence)


def test_what_was_not_detached_cannot_be_taken_over(desk: Desk) -> None:
    desk.holds("a")
    assert desk.transfer("a", attached=True) == Gone()
    assert desk.holders == ["a"]


def test_detaching_twice_is_harmless_and_each_time_starts_the_lease_again(desk: Desk) -> None:
    desk.holds("a")
    desk.transfer("a", attached=False)
    desk.pass_time(LEASE - 1)
    assert isinstance(desk.transfer("a", attached=False), Granted)
    desk.pass_time(LEASE - 1)
    assert isinstance(desk.transfer("a", attached=True), Granted)


@pytest.mark.parametrize("attached", [True, False])
def test_what_has_ended_or_only_waits_cannot_be_handed_over(desk: Desk, attached: bool) -> None:
    desk.holds("a")
    desk.waits("b")
    assert desk.transfer("b", attached=attached) == Gone()
    desk.leave("b")
    desk.transfer("a", attached=False)
    desk.pass_time(LEASE)
    assert desk.transfer("a", attached=attached) == Gone()
    assert desk.holders == []


def test_a_detached_hold_belongs_to_no_process_until_it_is_taken_over() -> None:
    """`home` decides whose death ends it; on the way only its lease may."""
    desk = Desk()
    desk.holds("a")
    desk.transfer("a", attached=False)
    book = desk.store._names["n"]
    assert [row.wake_address for row in book.holds.values()] == [DETACHED]
    desk.transfer("a", attached=True)
    assert [row.wake_address for row in book.holds.values()] == [book.wake_address] != [DETACHED]


def test_a_late_renewal_does_not_undo_a_detachment(desk: Desk) -> None:
    """The keeper may have sent it before; the hold is on its way all the same."""
    fence = desk.holds("a").fence
    desk.transfer("a", attached=False)
    assert desk.renew("a") == Granted(fence, LEASE)
    assert desk.transfer("a", attached=True) == Granted(fence, LEASE)


def test_a_late_renewal_does_not_undo_a_take_over(desk: Desk) -> None:
    """Its home stays the one whose death ends it."""
    desk.holds("a")
    desk.transfer("a", attached=False)
    desk.transfer("a", attached=True, who="host 2 new")
    (row,) = desk.store._names["n"].holds.values()
    row.wake_address = "the new owner's"
    desk.renew("a")
    assert row.wake_address == "the new owner's"


# ---- breaking --------------------------------------------------------------------------------


def test_breaking_compares_the_fence(desk: Desk) -> None:
    fence = desk.holds("a").fence
    assert desk.break_hold(fence + 1) is False
    assert desk.break_hold(fence - 1) is False
    assert desk.holders == ["a"]
    assert desk.break_hold(fence) is True
    assert desk.holders == []
    assert desk.break_hold(fence) is False


def test_breaking_ends_only_the_hold_with_that_fence_and_serves_the_next(desk: Desk) -> None:
    desk.holds("a", slots=2)
    fence = desk.holds("b", slots=2).fence
    desk.waits("c", slots=2)
    assert desk.break_hold(fence)
    assert desk.served == ["c"]
    assert sorted(desk.holders) == ["a", "c"]


def test_the_next_fence_after_breaking_is_greater_by_more_than_one_grant(desk: Desk) -> None:
    """The broken holder may have seen the number after its own announced; nobody gets that one."""
    fence = desk.holds("a").fence
    assert desk.break_hold(fence)
    assert desk.holds("b").fence >= fence + 2


# ---- sizes -----------------------------------------------------------------------------------


def test_a_name_in_use_with_another_size_differs(desk: Desk) -> None:
    desk.holds("a", slots=3)
    assert desk.claim("b", slots=1) == Differs(3)
    assert desk.claim("c", slots=ALL_SLOTS) == Differs(3)
    assert desk.waiters == []
    assert desk.release("a")
    assert isinstance(desk.claim("b"), Granted)


@pytest.mark.parametrize("fair", [True, False])
def test_those_who_wait_also_fix_the_size(desk: Desk, fair: bool) -> None:
    desk.holds("a", slots=2, take=2, lease=1.0)
    desk.waits("b", slots=2, fair=fair)
    desk.pass_time(1.0)
    assert desk.claim("c", slots=1) == Differs(2)


def test_more_than_all_slots_can_never_be_had(desk: Desk) -> None:
    assert desk.claim("a", slots=2, take=3) == Differs(2)
    assert desk.waiters == []


def test_who_already_holds_is_not_refused_for_its_size(desk: Desk) -> None:
    first = desk.holds("a", slots=3)
    assert desk.claim("a", slots=1) == first


# ---- fences ----------------------------------------------------------------------------------


def test_fences_rise_from_grant_to_grant_also_between_names(desk: Desk) -> None:
    fences = []
    for name in ("x", "y", "x"):
        claim = Claim(name, "id", "w", LEASE)
        fences.append(desk.store.step(name, law.claim, claim)[0].fence)
        assert desk.store.step(name, law.release, claim)[0]
    assert fences == sorted(set(fences))


def test_fences_rise_although_the_wall_clock_steps_back(desk: Desk) -> None:
    before = desk.holds("a").fence
    desk.release("a")
    desk.wall -= 500.0
    assert desk.holds("b").fence > before


def test_fences_have_the_wall_clock_as_their_floor(desk: Desk) -> None:
    """So a store that forgot everything goes on above what it gave before."""
    assert desk.holds("a").fence == int(desk.wall * 1e6)
    desk.pass_time(1.0)
    forgetful = Desk()
    forgetful.wall = desk.wall
    assert forgetful.holds("a").fence > desk.look().holders[0].fence


def test_a_busy_answer_carries_the_last_fence_given(desk: Desk) -> None:
    fence = desk.holds("a").fence
    assert desk.waits("b").fence == fence
    assert desk.break_hold(fence)
    ((_, grant),) = desk.woken
    assert grant is not None and grant.fence > fence


# ---- what is shown, and what is left behind --------------------------------------------------


def test_looking_shows_holders_and_waiters_in_order_and_changes_nothing(desk: Desk) -> None:
    desk.holds("a", slots=2, take=2, lease=8.0)
    desk.pass_time(1.0)
    desk.waits("u", slots=2, fair=False)
    desk.waits("b", slots=2, take=2)
    seen = desk.look()
    assert seen.name == "n" and seen.slots == 2 and seen.now == desk.wall
    (holder,) = seen.holders
    assert (holder.take, holder.since, holder.remaining) == (2, desk.wall - 1.0, 7.0)
    assert seen.waiters == (
        Waiter(Who("host", 1, "b"), 2, desk.wall, True),
        Waiter(Who("host", 1, "u"), 1, desk.wall, False),
    )
    assert desk.look() == seen
    assert desk.woken == []


def test_since_is_the_moment_of_the_grant_not_of_the_place(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    desk.pass_time(2.0)
    desk.release("a")
    assert desk.look().holders[0].since == desk.wall


@pytest.mark.parametrize("end", ["release", "leave", "expire", "break", "refused", "place"])
def test_nothing_is_left_of_a_name_when_the_last_of_it_ends(desk: Desk, end: str) -> None:
    match end:
        case "release":
            desk.holds("a")
            desk.release("a")
        case "leave":
            desk.holds("a")
            desk.waits("b")
            desk.leave("b")
            desk.leave("a")
        case "expire":
            desk.holds("a")
            desk.pass_time(LEASE)
            desk.look()
        case "break":
            desk.break_hold(desk.holds("a").fence)
        case "refused":
            desk.claim("a", slots=1, take=2)
        case "place":
            desk.holds("a", lease=1.0)
            desk.waits("b")
            desk.waits("u", fair=False)
            desk.pass_time(WAITER_LEASE)
            desk.look()
    assert desk.store._names == {}

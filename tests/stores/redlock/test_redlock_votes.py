"""Counting votes, merging snapshots and wake-ups: without servers and clocks."""

from __future__ import annotations

import pytest

from lockfast.model import Busy, Differs, Gone, Holder, Snapshot, Waiter, Who
from lockfast.stores.redis.commands import MALFORMED
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redlock.nodes import GRACE, Health, MergedWakeups
from lockfast.stores.redlock.votes import Poll, Tally, merge_snapshots, votes_in
from lockfast.stores.wakeups import Wakeups

LEASE = 10.0
YES = [1, 100, 10_000_000]
NO = [0, 1_500_000, 99]
ME, YOU = Who("host", 1, "me"), Who("host", 2, "you")


def tally(*replies, leases=(LEASE,)):
    counted = Tally(len(replies), leases)
    counted.count(replies)
    return counted


def test_a_majority_grants_and_one_fence_at_a_majority_is_settled():
    counted = tally(YES, YES, None)
    assert counted.is_granted(0) and counted.decided(0)
    assert counted.fence(0) == (100, True)
    assert tally(YES, [1, 200, 10_000_000], NO).fence(0) == (200, False)


def test_less_than_a_majority_is_busy_as_soon_as_that_is_certain():
    assert not tally(YES, NO, None).decided(0)
    assert tally(NO, NO, None).decided(0)
    assert not tally(NO, None, None).decided(0), "it is not known yet whether a majority answers"
    assert isinstance(tally(YES, NO, NO).refusal(0, 0.5), Busy)


def test_different_fences_of_the_nodes_do_not_decide_a_vote():
    other = [0, 1_500_000, 120]  # its vote was late, and gave the same holder another fence
    assert not tally(NO, other, None).decided(0)
    assert tally(NO, other, NO).decided(0)
    assert tally(NO, other, NO).refusal(0, 0.01) == Busy(1.5, 99)
    assert tally(NO, other, Unreachable("away")).decided(0), "no reply is pending"
    assert tally(NO, NO, None, leases=(LEASE, LEASE)).decided(1), (
        "no node voted on the second claim"
    )


def test_a_claim_waits_for_a_settled_hold_and_is_retried_soon_after_a_split_vote():
    assert tally(NO, NO, YES).refusal(0, 0.01) == Busy(1.5, 99)
    assert tally(NO, [0, 1_500_000, 98], YES).refusal(0, 0.01) == Busy(0.01, 98)
    ending = [0, 200_000, 99]
    assert tally(ending, NO, NO).refusal(0, 0.01).retry_after == 1.5, (
        "two holds must end for a majority"
    )
    assert tally(ending, NO, NO, YES, YES).refusal(0, 0.01).retry_after == 0.2


def test_a_name_of_another_size_and_lost_waiters_are_reported():
    assert tally([2, 5, 0], [2, 5, 0], NO).refusal(0, 0.01) == Differs(5)
    assert tally([3, 0, 0], [3, 0, 0], YES).refusal(0, 0.01) == Gone()


def test_nodes_that_do_not_vote_are_sorted_by_reason():
    counted = tally([4], [5, 2_000_000], Unreachable("away"))
    assert counted.new == {0} and counted.recovering == {1: 2.0} and not counted.pending
    assert not counted.answers and not counted.malformed
    assert tally([6, 5_000_000], YES, YES).too_long == 5.0
    assert tally(ServerError("NOSCRIPT"), YES, NO).pending == {0}, "it only lacks the script"


@pytest.mark.parametrize(
    "reply", [b"OK", 7, [], [1, 2], [9, 0, 0], [1, 0, 1], [1, 2**60, 1], ["1"]]
)
def test_a_malformed_reply_is_no_vote(reply):
    counted = tally(reply, YES, YES)
    assert counted.malformed == [0] and counted.of(0).keys() == {1, 2}
    with pytest.raises(MALFORMED):
        votes_in(reply, [LEASE])


def test_an_unknown_answer_is_neither_yes_nor_no():
    poll = Poll(3, 2)
    poll.count([[1, 0], None, [1, 0]])
    assert (poll.verdict(0), poll.verdict(1)) == (True, False)
    poll = Poll(3, 1)
    poll.count([1, Unreachable("away"), 0])
    assert poll.verdict(0) is None
    poll = Poll(3, 1, exact=True)
    poll.count([[1], [-500], [-700]])
    assert poll.verdict(0) is False and poll.greatest(0) == 700


def holder(who, fence, rest=5.0):
    return Holder(who, fence, 1, 1.0, rest)


def test_a_snapshot_shows_the_holder_that_a_majority_knows():
    mine, theirs = holder(ME, 7), holder(YOU, 9)
    views = [
        Snapshot("a", 1, (mine,), now=1.0),
        Snapshot("a", 1, (holder(ME, 7, 3.0),), now=2.0),
        Snapshot("a", 1, (theirs,), now=3.0),
    ]
    (seen,) = merge_snapshots("a", views, 3).holders
    assert (seen.who, seen.fence, seen.remaining) == (ME, 7, 3.0)
    assert len(merge_snapshots("a", views[1:], 3).holders) == 2, (
        "either may hold it: one node is silent"
    )
    unsettled = [Snapshot("a", 1, (holder(ME, fence),)) for fence in (5, 6, 8)]
    (seen,) = merge_snapshots("a", unsettled, 3).holders
    assert seen.fence == 8


def test_a_snapshot_shows_waiters_that_a_majority_knows_or_may_know():
    mine, yours, again = (
        Waiter(ME, 1, 1.0, True),
        Waiter(YOU, 1, 2.0, True),
        Waiter(ME, 1, 3.0, True),
    )
    views = [
        Snapshot("a", 1, (holder(ME, 7),), (yours,)),
        Snapshot("a", 1, (holder(ME, 7),), (yours,)),
        Snapshot("a", 1, (), (mine, yours)),
    ]
    assert merge_snapshots("a", views, 3).waiters == (yours,), (
        "one node does not know yet that it was granted"
    )
    assert merge_snapshots("a", views[1:], 3).waiters == (mine, yours), (
        "the first may wait: one node is silent"
    )
    queues = [Snapshot("a", 1, (), queue) for queue in ((mine, yours, again), (yours, mine, again))]
    assert merge_snapshots("a", [*queues, views[0]], 3).waiters == (mine, yours, again)
    few = [Snapshot("a", 1, (), queue) for queue in ((mine, again), (yours,), (yours,))]
    assert merge_snapshots("a", few, 3).waiters == (yours,), "the longest queue is not the true one"


def test_wakeups_of_several_nodes_wake_a_waiter_once():
    wakeups, woken = Wakeups(), []
    wakeups.watch("id", woken.append)
    merged = MergedWakeups(wakeups, 3)
    for node in (0, 1, 2):
        merged.deliver(node, "id", 10.0)
    assert woken == [None]
    merged.flush(10.0 + GRACE)
    assert woken == [None] and merged.due() is None
    merged.deliver(2, "id", 20.0)
    assert woken == [None]
    merged.flush(20.0 + GRACE)
    assert woken == [None, None], "the wake-up of a single node counts after a moment"
    merged.deliver(0, "id", 30.0)
    merged.deliver(0, "id", 30.001)  # another release
    merged.deliver(1, "id", 30.001)
    assert len(woken) == 3


def test_an_unreachable_node_is_skipped_for_longer_each_time():
    health, now = Health(), 100.0
    pauses = []
    for _ in range(12):
        health.failed(now, Unreachable("away"))
        begun = now
        while health.is_skipped(now):
            now += 0.01
        pauses.append(now - begun)
    assert pauses == sorted(pauses) and pauses[0] < 0.1 and 4.9 < pauses[-1] < 5.1
    health.recovered()
    assert not health.is_skipped(now) and health.error is None

"""Looking changes nothing at the store, so it is asked again, once, where that may help."""

from __future__ import annotations

import pytest

from lockfast import AcquireTimeout, BackendError
from lockfast.core.keeper import MAX_BUDGET, budget_for

LOOKS = {
    "inspect": lambda client: client.inspect("n"),
    "names": lambda client: client.names(),
}


@pytest.fixture(params=list(LOOKS))
def verb(request):
    return request.param


def failing(client, clock, verb, *troubles):
    """The store raises these first, each after so many seconds; then it is as it was. With which
    budgets it was asked."""
    real, left, budgets = getattr(client.core.backend, verb), list(troubles), []

    async def broken(asked, budget, *said):
        budgets.append(budget)
        if left:
            after, error = left.pop(0)
            if after:
                clock.advance(after)
            raise error
        return await real(asked, budget, *said)

    setattr(client.core.backend, verb, broken)
    return budgets


def test_what_failed_at_once_is_asked_again(lockfast_client, lockfast_clock, verb):
    before = LOOKS[verb](lockfast_client)
    budgets = failing(lockfast_client, lockfast_clock, verb, (0.5, BackendError("closed")))
    after = LOOKS[verb](lockfast_client)
    assert type(after) is type(before)
    # Both together have the time that one had.
    assert budgets == pytest.approx([MAX_BUDGET, MAX_BUDGET - 0.5])


def test_a_store_that_is_away_is_asked_twice_and_its_error_is_told(
    lockfast_client, lockfast_clock, verb
):
    away = BackendError("away")
    budgets = failing(lockfast_client, lockfast_clock, verb, *[(0.5, away)] * 9)
    with pytest.raises(BackendError) as told:
        LOOKS[verb](lockfast_client)
    assert told.value is away and told.value.__context__ is None
    assert len(budgets) == 2


def test_what_took_its_time_to_fail_is_not_asked_again(lockfast_client, lockfast_clock, verb):
    """What is left would be too short for an answer, and the error would tell of nothing else."""
    silent = BackendError("did not answer")
    began = lockfast_clock.now()
    budgets = failing(lockfast_client, lockfast_clock, verb, *[(MAX_BUDGET * 0.6, silent)] * 9)
    with pytest.raises(BackendError) as told:
        LOOKS[verb](lockfast_client)
    assert told.value is silent and len(budgets) == 1
    assert lockfast_clock.now() - began < MAX_BUDGET


def test_what_asking_again_cannot_cure_is_told_at_once(lockfast_client, lockfast_clock, verb):
    refused = BackendError("wrong password", transient=False)
    budgets = failing(lockfast_client, lockfast_clock, verb, (0, refused))
    with pytest.raises(BackendError) as told:
        LOOKS[verb](lockfast_client)
    assert told.value is refused and len(budgets) == 1


def test_who_is_refused_is_told_by_whom_though_the_first_look_failed(
    lockfast_client, lockfast_clock
):
    hold = lockfast_client.lock("n", owner="a").acquire()
    lock = lockfast_client.lock("n", owner="b", lease=6)
    budgets = failing(lockfast_client, lockfast_clock, "inspect", (0.1, BackendError("closed")))
    with pytest.raises(AcquireTimeout) as refused:
        lock.acquire(timeout=0)
    assert refused.value.snapshot.holders[0].fence == hold.fence
    limit = budget_for(6) / 2
    assert budgets == pytest.approx([limit, limit - 0.1])

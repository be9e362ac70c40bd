"""Inspection changes nothing at the store, so it is retried, once, where that may help."""

from __future__ import annotations

import pytest

from lockfast import AcquireTimeout, BackendError
from lockfast.core.claim import GRACE
from lockfast.core.keeper import MAX_BUDGET

LOOKS = {
    "inspect": lambda client: client.inspect("n"),
    "names": lambda client: client.names(),
}


@pytest.fixture(params=list(LOOKS))
def verb(request):
    return request.param


def failing(client, clock, verb, *troubles):
    """Make the verb raise these errors first, each after so many seconds, and then work again.
    Return the list of budgets with which it was called."""
    real, left, budgets = getattr(client._core.store, verb), list(troubles), []

    async def broken(asked, budget, *args):
        budgets.append(budget)
        if left:
            after, error = left.pop(0)
            if after:
                clock.advance(after)
            raise error
        return real(asked, budget, *args)

    setattr(client._core.store, verb, broken)
    return budgets


def test_an_inspection_that_failed_early_is_retried(lockfast_client, lockfast_clock, verb):
    before = LOOKS[verb](lockfast_client)
    budgets = failing(lockfast_client, lockfast_clock, verb, (0.5, BackendError("closed")))
    after = LOOKS[verb](lockfast_client)
    assert type(after) is type(before)
    # Both attempts share the budget of one.
    assert budgets == pytest.approx([MAX_BUDGET, MAX_BUDGET - 0.5])


def test_an_unreachable_store_is_asked_twice_and_its_error_is_raised(
    lockfast_client, lockfast_clock, verb
):
    away = BackendError("away")
    budgets = failing(lockfast_client, lockfast_clock, verb, *[(0.5, away)] * 9)
    with pytest.raises(BackendError) as raised:
        LOOKS[verb](lockfast_client)
    assert raised.value is away and raised.value.__context__ is None
    assert len(budgets) == 2


def test_an_inspection_that_failed_late_is_not_retried(lockfast_client, lockfast_clock, verb):
    """The rest of the budget would be too short for an answer, and its error would hide this
    one."""
    silent = BackendError("did not answer")
    began = lockfast_clock.now()
    budgets = failing(lockfast_client, lockfast_clock, verb, *[(MAX_BUDGET * 0.6, silent)] * 9)
    with pytest.raises(BackendError) as raised:
        LOOKS[verb](lockfast_client)
    assert raised.value is silent and len(budgets) == 1
    assert lockfast_clock.now() - began < MAX_BUDGET


def test_a_permanent_error_is_raised_at_once(lockfast_client, lockfast_clock, verb):
    refused = BackendError("wrong password", transient=False)
    budgets = failing(lockfast_client, lockfast_clock, verb, (0, refused))
    with pytest.raises(BackendError) as raised:
        LOOKS[verb](lockfast_client)
    assert raised.value is refused and len(budgets) == 1


def test_a_time_out_names_the_holder_although_the_first_inspection_failed(
    lockfast_client, lockfast_clock
):
    hold = lockfast_client.lock("n", owner="a").acquire()
    lock = lockfast_client.lock("n", owner="b", lease=6)
    budgets = failing(lockfast_client, lockfast_clock, "inspect", (0.03, BackendError("closed")))
    with pytest.raises(AcquireTimeout) as refused:
        lock.acquire(timeout=0)
    assert refused.value.snapshot.holders[0].fence == hold.fence
    assert budgets == pytest.approx([GRACE, GRACE - 0.03])

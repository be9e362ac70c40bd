"""Valid fences, and the message of a refusal."""

from __future__ import annotations

import pickle

import pytest

import lockfast
from lockfast.guards.fence import fence_of, refuse_if_stale


def test_a_hold_and_its_fence_are_interchangeable(lockfast_client):
    with lockfast_client.lock("a") as hold:
        assert fence_of(hold) == fence_of(hold.fence) == hold.fence


@pytest.mark.parametrize("fence", [0, 1, 2**53 + 1, 2**63 - 1])
def test_a_fence_is_any_number_that_fits_a_bigint(fence):
    assert fence_of(fence) == fence


class Fenced:
    def __init__(self, fence: object) -> None:
        self.fence = fence


@pytest.mark.parametrize("wrong", [True, False, -1, 2**63, 1.0, float("nan"), "7", b"7", None, []])
def test_an_invalid_fence_is_refused_and_never_converted(wrong):
    with pytest.raises(lockfast.ConfigurationError, match="fence"):
        fence_of(wrong)
    with pytest.raises(lockfast.ConfigurationError, match="fence"):
        fence_of(Fenced(wrong))


def test_a_refusal_names_the_resource_both_numbers_and_what_to_do():
    with pytest.raises(lockfast.StaleFence) as caught:
        refuse_if_stale("account 42", 7, 9)
    error = caught.value
    assert (error.name, error.fence, error.seen) == ("account 42", 7, 9)
    for text in ("'account 42'", "7", "9", "Nothing was written", "acquire the lock again"):
        assert text in str(error)
    assert isinstance(error, lockfast.LockfastError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.seen) == (str(error), 9)


def test_a_missing_row_is_refused_too():
    with pytest.raises(lockfast.StaleFence) as caught:
        refuse_if_stale("account 42", 7, None)
    assert caught.value.seen is None


@pytest.mark.parametrize("seen", [0, 6, 7])
def test_the_same_fence_and_lower_ones_do_not_refuse_a_write(seen):
    refuse_if_stale("account 42", 7, seen)

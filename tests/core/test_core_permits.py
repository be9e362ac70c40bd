"""Edge cases of expiring permits: nobody knows the id yet, and the store does not answer."""

from __future__ import annotations

import pytest
from test_core import scripted, terms
from test_core_multi_edges import closed_midway

import lockfast
from lockfast import BackendError, HoldLost
from lockfast.core.primitives import take_permit
from lockfast.model import Gone


@pytest.fixture
def hurried():
    """A client on the real clock that retries for a quarter of a second."""
    with lockfast.connect("memory://", lease=1.5) as client:
        yield client


def test_a_permit_that_is_gone_before_its_id_is_returned_is_lost(lockfast_client):
    scripted(lockfast_client, "transfer", Gone())
    with pytest.raises(HoldLost, match="'a'"):
        lockfast_client.permits("a", 2).acquire()
    assert not lockfast_client._core.ledger.by_owner and not lockfast_client.names()


@pytest.mark.parametrize("transient", [True, False])
def test_a_permit_that_the_store_does_not_confirm_is_released(hurried, transient):
    left = scripted(hurried, "transfer", *[BackendError("away", transient=transient)] * 99)
    with pytest.raises(BackendError, match="away"):
        hurried.permits("a", 2).acquire()
    assert len(left) < 98 if transient else len(left) == 98
    assert not hurried._core.ledger.by_owner and not hurried.names()


def test_a_permit_of_a_coroutine_closed_midway_is_left_to_its_lease(lockfast_client):
    taking = take_permit(lockfast_client._core, terms(slots=2, owner="x"), None)
    closed_midway(lockfast_client, "transfer", taking)
    assert lockfast_client.names() == ["n"]


def test_a_permit_whose_renewal_failed_is_not_lost(lockfast_client):
    permits = lockfast_client.permits("a", 2)
    permit = permits.acquire()
    scripted(lockfast_client, "renew", BackendError("away"))
    with pytest.raises(BackendError, match="away"):
        permits.renew(permit)
    assert permits.in_use() == 1


def test_a_detached_hold_that_the_store_does_not_confirm_is_still_held(hurried):
    transfer = hurried._core.store.transfer
    hold = hurried.lock("a").acquire()
    scripted(hurried, "transfer", *[BackendError("away")] * 99)
    with pytest.raises(BackendError, match="away"):
        hold.detach()
    hurried._core.store.transfer = transfer
    assert hold.is_held and hurried.attach("a", hold.detach()).fence == hold.fence

"""Permits that expire, at their edges: nobody was told their id, and the store does not answer."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import BackendError, HoldLost
from holdfast.core.permits import take_permit
from holdfast.model import Gone
from test_core import scripted, terms
from test_core_multi_edges import dropped


@pytest.fixture
def hurried():
    """A client on the real clock, which asks again for a quarter of a second."""
    with holdfast.connect("memory://", lease=1.5) as client:
        yield client


def test_a_permit_that_is_gone_before_it_is_told_is_a_loss_and_forgotten(holdfast_client):
    scripted(holdfast_client, "transfer", Gone())
    with pytest.raises(HoldLost, match="'a'"):
        holdfast_client.permits("a", 2).acquire()
    assert not holdfast_client.core.ledger.by_owner and not holdfast_client.names()


@pytest.mark.parametrize("transient", [True, False])
def test_a_permit_that_the_store_does_not_confirm_is_given_back(hurried, transient):
    left = scripted(hurried, "transfer", *[BackendError("away", transient=transient)] * 99)
    with pytest.raises(BackendError, match="away"):
        hurried.permits("a", 2).acquire()
    assert len(left) < 98 if transient else len(left) == 98
    assert not hurried.core.ledger.by_owner and not hurried.names()


def test_a_permit_that_nobody_goes_on_to_take_is_left_to_its_lease(holdfast_client):
    taking = take_permit(holdfast_client.core, terms(slots=2, owner="x"), None)
    dropped(holdfast_client, "transfer", taking)
    assert holdfast_client.names() == ["n"]


def test_a_permit_that_cannot_be_renewed_for_now_is_not_lost(holdfast_client):
    permits = holdfast_client.permits("a", 2)
    permit = permits.acquire()
    scripted(holdfast_client, "renew", BackendError("away"))
    with pytest.raises(BackendError, match="away"):
        permits.renew(permit)
    assert permits.in_use() == 1


def test_a_detached_hold_that_the_store_does_not_confirm_is_still_held(hurried):
    transfer = hurried.core.backend.transfer
    hold = hurried.lock("a").acquire()
    scripted(hurried, "transfer", *[BackendError("away")] * 99)
    with pytest.raises(BackendError, match="away"):
        hold.detach()
    hurried.core.backend.transfer = transfer
    assert hold.is_held and hurried.attach("a", hold.detach()).fence == hold.fence

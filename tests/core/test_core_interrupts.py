"""Steps that an interrupt left half done: each can be repeated, and leaves nothing behind."""

from __future__ import annotations

import pytest
from test_core import scripted
from test_core_multi_edges import closed_midway

from lockfast.core.ledger import RELEASED
from lockfast.core.terms import Terms
from lockfast.model import Granted
from lockfast.runtime.threads import run


def test_an_entry_is_undone_once(lockfast_client):
    core = lockfast_client._core
    lock = lockfast_client.lock("a")
    outer, inner = lock.acquire(), lock.acquire()
    assert core.undo(inner._held, inner._depth) is None and inner._held.count == 1
    assert core.undo(inner._held, inner._depth) is None and outer.is_held
    assert core.undo(outer._held, outer._depth) is None and not outer.is_held
    assert core.undo(outer._held, outer._depth) is None
    assert lockfast_client.names() == []


def test_the_end_of_a_hold_can_be_repeated_from_any_point(lockfast_client):
    ledger = lockfast_client._core.ledger
    hold = lockfast_client.lock("a").acquire()
    ledger.kept.pop(hold._held.claim.id)
    ledger.forget(hold._held)  # and here the interrupt came
    hold.release()
    assert hold._held.state is RELEASED and lockfast_client.names() == []
    assert not ledger.by_owner and not ledger.kept


def test_grants_that_come_too_late_are_claimed_again_until_one_is_in_time(
    lockfast_client, lockfast_clock
):
    def late():
        lockfast_clock.advance(6)
        return Granted(1, 5.0)

    scripted(lockfast_client, "claim", late, late, Granted(1, 5.0))
    hold = lockfast_client.lock("n", lease=5).acquire()
    assert hold.is_held and hold.remaining() == pytest.approx(4.95)


def test_an_attach_that_is_closed_midway_sends_no_request(lockfast_client):
    hold = lockfast_client.lock("a").acquire()
    fence, text = hold.fence, hold.detach()
    terms = Terms("default:a", 30.0, True)
    transfer = lockfast_client._core.store.transfer
    closed_midway(
        lockfast_client, "transfer", lockfast_client._core.attach(terms, text.split(":")[1], fence)
    )
    lockfast_client._core.store.transfer = transfer
    assert run(lockfast_client._core.attach(terms, text.split(":")[1], fence)).fence == fence

"""Multi-locks at their edges: stores that are away, closed clients, locks that are asked alone."""

from __future__ import annotations

import types

import pytest

import holdfast
from holdfast import BackendError, HoldLost, NotHeld, WouldDeadlock
from holdfast.core.multi import Part, attempt_all, release_all
from holdfast.runtime.blocking import run
from test_core import scripted, terms


def part(client, name, **more):
    return Part(client.core, terms(**more)._replace(name=f"default:{name}"))


def striking(client, verb, *errors):
    """The store does as it is told by this verb, and then these are raised, one after the other."""
    real, left = getattr(client.core.backend, verb), list(errors)

    async def strikes(*said):
        answer = await real(*said)
        if left:
            raise left.pop(0)
        return answer

    setattr(client.core.backend, verb, strikes)
    return left


@types.coroutine
def suspended():
    yield


def dropped(client, verb, work):
    """Run it until the store is asked by this verb; then nobody runs it any more."""

    async def suspends(*said):
        await suspended()

    setattr(client.core.backend, verb, suspends)
    work.send(None)
    work.close()


def test_each_step_out_of_a_lost_name_is_told(holdfast_client):
    outer = holdfast_client.lock("a").acquire()
    hold = holdfast_client.multi_lock("a", "b").acquire()
    holdfast_client.store.forget("default:a")
    with pytest.raises(HoldLost):
        hold.renew()
    with pytest.raises(HoldLost, match="'a'"):
        hold.release()
    with pytest.raises(HoldLost, match="'a'"):
        holdfast_client.lock("a").acquire()  # its owner has not unwound
    with pytest.raises(HoldLost, match="'a'"):
        outer.release()
    with holdfast_client.multi_lock("a", "b"):
        pass


def test_what_our_clock_says_is_lost_is_given_back_at_the_store(holdfast_client, holdfast_clock):
    asked = []
    release_many = holdfast_client.core.backend.release_many

    async def counted(claims, budget):
        asked.append([claim.name for claim in claims])
        return await release_many(claims, budget)

    holdfast_client.core.backend.release_many = counted
    names = holdfast_client.lock("a"), holdfast_client.lock("b", lease=10)
    hold = holdfast_client.multi_lock(*names).acquire()
    holdfast_clock.advance(9.95)  # the store's lease is over a little later than our belief
    assert hold.lost and holdfast_client.inspect("b").holders
    with pytest.raises(HoldLost, match="'b'"):
        hold.release()
    assert asked == [["default:a"], ["default:b"]] and not holdfast_client.names()


def interrupt():
    raise KeyboardInterrupt


def test_an_interruption_while_the_store_does_not_answer_is_not_replaced(holdfast_client, caplog):
    hold = holdfast_client.multi_lock("a", "b").acquire()
    scripted(holdfast_client, "release_many", interrupt, BackendError("away"))
    with pytest.raises(KeyboardInterrupt):
        hold.release()
    assert "release of 2 unknown: away" in caplog.text and not hold.is_held


def test_a_store_that_will_never_answer_is_asked_once(holdfast_client):
    hold = holdfast_client.multi_lock("a", "b").acquire()
    broken = BackendError("broken", transient=False)
    left = scripted(holdfast_client, "release_many", broken, [True, True])
    asked = scripted(holdfast_client, "release")
    with pytest.raises(BackendError, match="whether 'b' was released is unknown") as caught:
        hold.release()
    assert not caught.value.transient and len(left) == 1 and asked == []
    hold.release()  # which says that it can be asked for again
    with pytest.raises(NotHeld):
        hold.release()


def test_a_release_that_the_store_did_not_know_any_more_is_a_loss(holdfast_client):
    hold = holdfast_client.multi_lock("a", "b").acquire()
    holdfast_client.store.forget("default:b")
    with pytest.raises(HoldLost, match="'b'"):
        hold.release()
    assert not holdfast_client.names()


def test_a_writer_among_them_that_cannot_tell_that_it_reads_on_says_so(holdfast_client):
    rw = holdfast_client.rwlock("r")
    hold = holdfast_client.multi_lock("a", rw.write()).acquire()
    reading = rw.read().acquire()
    scripted(holdfast_client, "shrink", BackendError("broken", transient=False))
    with pytest.raises(BackendError, match="whether others may read 'r' now is unknown"):
        hold.release()
    assert reading.is_held and not rw.write().is_held
    reading.release()
    assert not holdfast_client.names()


def test_a_renewal_by_hand_does_not_make_a_reader_a_writer_again(holdfast_client):
    rw = holdfast_client.rwlock("r")
    writing, reading = rw.write().acquire(), rw.read().acquire()
    renew = holdfast_client.core.backend.renew

    async def meanwhile(*said):
        writing.release()
        return await renew(*said)

    holdfast_client.core.backend.renew = meanwhile
    reading.renew(lease=50)
    assert reading.lease == 50 and not rw.write().is_held
    with pytest.raises(WouldDeadlock):
        rw.write().acquire()
    reading.release()


@pytest.mark.parametrize("at", [0, 1])
def test_a_client_closed_between_the_grants_and_their_entry_keeps_none(holdfast_client, at):
    enter = holdfast_client.core.ledger.enter
    entered = []

    def closes(*said):
        enter(*said)
        entered.append(said)
        if len(entered) > at:
            holdfast_client.core.ledger.closed = True

    holdfast_client.core.ledger.enter = closes
    with pytest.raises(NotHeld, match="closed"):
        holdfast_client.multi_lock("a", "b", "c").acquire()
    assert not holdfast_client.names() and not holdfast_client.core.ledger.kept
    assert not holdfast_client.core.ledger.asking


def test_what_was_asked_for_in_vain_is_left_by_the_keeper(holdfast_client, holdfast_clock):
    left = striking(holdfast_client, "claim_many", KeyboardInterrupt())
    leave = holdfast_client.core.backend.leave
    scripted(holdfast_client, "leave", *[BackendError("away")] * 3)
    with pytest.raises(KeyboardInterrupt):
        holdfast_client.multi_lock("a", "b", "c").acquire()
    assert left == [] and holdfast_client.names() == ["a", "b", "c"]
    holdfast_client.core.backend.leave = leave
    holdfast_clock.advance(3)
    assert not holdfast_client.names() and not holdfast_client.core.ledger.abandoned


def test_a_refusal_of_the_store_leaves_nothing(holdfast_client):
    striking(holdfast_client, "claim_many", BackendError("no", transient=False))
    with pytest.raises(BackendError, match="no"):
        holdfast_client.multi_lock("a", "b").acquire()
    assert not holdfast_client.names() and not holdfast_client.core.ledger.asking


def test_plain_locks_are_asked_for_one_by_one(holdfast_client):
    asked = []
    claim_many = holdfast_client.core.backend.claim_many

    async def counted(claims, budget):
        asked.append([claim.name[-1] for claim in claims])
        return await claim_many(claims, budget)

    holdfast_client.core.backend.claim_many = counted
    parts = [
        part(holdfast_client, name, layout="simple" if name in "ad" else "") for name in "abcd"
    ]
    held = run(attempt_all(parts, None))
    assert asked == [["a"], ["b", "c"], ["d"]]
    entries = [(one.core, held, 1) for one, held in zip(parts, held, strict=True)]
    assert run(release_all(entries)) == []


def test_plain_locks_that_are_held_already_are_entered_again(holdfast_client):
    parts = [part(holdfast_client, name, layout="simple") for name in "ab"]
    first, again = run(attempt_all(parts, None)), run(attempt_all(parts, None))
    assert first == again and [held.count for held in first] == [2, 2]


def test_what_is_entered_again_behind_the_one_that_is_waited_for_is_entered_once():
    with holdfast.connect("memory://") as client:
        client.lock("b", owner="other", lease=0.2).acquire()
        outer = client.lock("d").acquire()
        with client.multi_lock("a", "b", "c", "d", timeout=15) as hold:
            assert hold.is_held and hold.fences["d"] == outer.fence
        outer.release()
        assert not client.names()


def test_a_label_of_its_own_is_shown(holdfast_client):
    parts = [part(holdfast_client, "a", label="mine"), part(holdfast_client, "b", label="other")]
    run(attempt_all(parts, None))
    labels = [holdfast_client.inspect(name).holders[0].who.label for name in "ab"]
    assert labels == ["mine", "other"]


def test_what_is_dropped_in_the_middle_is_left_to_its_lease(holdfast_client):
    parts = [part(holdfast_client, name) for name in "ab"]
    claim_many = holdfast_client.core.backend.claim_many
    dropped(holdfast_client, "claim_many", attempt_all(parts, None))
    holdfast_client.core.backend.claim_many = claim_many
    held = run(attempt_all(parts, None))
    entries = [(one.core, held, 1) for one, held in zip(parts, held, strict=True)]
    dropped(holdfast_client, "release_many", release_all(entries))
    assert holdfast_client.names() == ["a", "b"]

"""Corner cases of the protocol on a real server: lost answers, nodes of other sessions, parents
that other clients delete."""

from __future__ import annotations

import contextlib
import queue
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient
from zookeeper_nodes import lose_answer

import lockfast
from lockfast.model import Busy, Claim, Granted
from lockfast.runtime.threads import ThreadSignal
from lockfast.stores.zookeeper.nodes import digest_of
from lockfast.stores.zookeeper.requests import Create, Delete, Put, Sync, Transaction

SOON = 15.0


def test_a_claim_whose_answer_is_lost_is_found_again_under_its_fence(here):
    with here.client.lock("warm"):
        pass
    left = lose_answer(here.session, Create)
    with here.client.lock("a") as hold:
        (node,) = here.nodes("a")
        stat = here.kazoo.exists(f"{here.root}/default:a/{node}")
        assert hold.fence == stat.czxid and stat.ephemeralOwner == here.session.id
    assert left == [0] and not here.nodes("a")


def test_a_waiter_whose_answer_is_lost_is_in_the_queue_once(here):
    other = lockfast.connect(here.url)
    hold = other.lock("a").acquire()
    lose_answer(here.session, Create)
    assert here.client.lock("a").try_acquire(timeout=0.3) is None
    assert len(here.nodes("a")) == 1, "an orphan was left in the queue"
    hold.release()
    other.close()


def test_a_claim_that_fails_without_an_answer_leaves_nothing(here):
    with here.client.lock("a"):
        pass
    left = lose_answer(
        here.session, (Create, Sync), times=1000
    )  # and the search for the node gets none
    with pytest.raises(lockfast.BackendError):
        here.client.lock("a", lease=0.6).acquire()
    left[0] = 0
    until = time.monotonic() + SOON
    while True:
        with contextlib.suppress(Exception):  # the parent may be gone too
            if here.nodes("a"):
                assert time.monotonic() < until, here.nodes("a")
                time.sleep(0.05)
                continue
        break


def claim_on(here, name, claim_id):
    store = here.client._endpoint.blocking(ThreadSignal)
    claim = Claim(f"default:{name}", claim_id, "host 1 thread", 30.0)
    return store, claim


def test_a_node_of_an_old_session_is_never_taken_for_ours(here):
    """The node differs from ours only in its owner: an earlier session of this claim created it."""
    store, claim = claim_on(here, "a", "secret-1")
    here.kazoo.ensure_path(f"{here.root}/default:a")
    old = here.kazoo.create(
        f"{here.root}/default:a/s-1-1-{digest_of('secret-1')}-",
        b"n 30000 0 0 f host 1 thread",
        ephemeral=True,
        sequence=True,
    )
    entry = here.registry.entry(claim)
    entry.uncertain = True  # as if the answer to its create had been lost with the session
    (answer,) = store.claim([claim], 5.0)
    assert isinstance(answer, Busy), "the old session's node was taken for ours"
    assert len(here.nodes("a")) == 2 and not old.endswith(entry.name)
    here.kazoo.delete(old)
    (answer,) = store.claim([claim], 5.0)
    assert isinstance(answer, Granted)
    store.release([claim], 5.0)


def test_parents_that_other_clients_delete_are_created_again(here):
    with here.client.lock("a"):
        pass
    here.kazoo.delete(f"{here.root}/default:a")
    assert here.registry.knows_parent(f"{here.root}/default:a"), (
        "the parent is not known: the test tests nothing"
    )
    with here.client.lock("a"):
        assert len(here.nodes("a")) == 1
    here.kazoo.delete(here.root.rpartition("/")[0], recursive=True)
    with here.client.lock("a"), here.client.lock("b"):
        assert len(here.nodes("a")) == 1


def test_a_parent_that_is_deleted_between_its_create_and_ours_is_created_again(here):
    with here.client.lock("warm"):
        pass
    session, real, removed = here.session, here.session.send, []

    def send(requests, done):
        if isinstance(requests[-2:][0], Create) and not removed:
            removed.append(real([requests[0], Delete(requests[0].path)], lambda: None))
            requests = requests[1:]
        return real(requests, done)

    session.send = send
    store, claim = claim_on(here, "a", "secret-2")
    assert isinstance(store.claim([claim], 5.0)[0], Granted) and removed
    store.release([claim], 5.0)


@pytest.mark.parametrize("verb", ["detach", "attach"])
def test_a_transfer_whose_answer_is_lost_keeps_position_and_fence(here, verb):
    other = lockfast.connect(here.url)
    hold = here.client.lock("a").acquire()
    if verb == "detach":
        left = lose_answer(here.session, Transaction)
        text = hold.detach()
        assert left == [0]
        taken = other.attach("a", text)
        assert taken.fence == hold.fence
    else:
        text = hold.detach()
        left = lose_answer(other._endpoint._session, Transaction)
        taken = other.attach("a", text)
        assert left == [0] and taken.fence == hold.fence
    assert here.client.lock("a").locked()
    other.close()


def test_a_writer_whose_downgrade_was_not_answered_is_a_reader(here):
    other = lockfast.connect(here.url)
    lock = here.client.rwlock("a")
    with lock.read():
        pass
    writing = lock.write().acquire()
    reading = lock.read().acquire()
    left = lose_answer(here.session, Transaction)
    writing.release()
    assert left == [0] and reading.is_held
    with other.rwlock("a", timeout=5).read() as theirs:
        assert theirs.is_held and reading.is_held and theirs.fence > reading.fence
    reading.release()
    assert not here.nodes("a")
    other.close()


def test_a_semaphores_waiter_whose_mark_was_not_answered_holds(here):
    other = lockfast.connect(here.url)
    first = other.semaphore("a", 2).acquire(2)
    with ThreadPoolExecutor(2) as pool:
        waiters = [pool.submit(here.client.semaphore("a", 2, timeout=SOON).acquire) for _ in "12"]
        while len(other.inspect("a").waiters) < 2:
            time.sleep(0.01)
        left = lose_answer(here.session, Put)
        first.release()
        holds = [waiter.result(SOON) for waiter in waiters]
        assert left == [0] and all(hold.is_held for hold in holds)
        for hold in holds:
            hold.release()
    other.close()


def test_three_hundred_names_leave_nothing_behind(here):
    for number in range(300):
        with here.client.lock(f"name {number}"):
            pass
    until = time.monotonic() + SOON
    while here.kazoo.get_children(here.root):
        assert time.monotonic() < until, "parents were left behind"
        time.sleep(0.1)


def test_closing_leaves_nothing_behind_at_once(here):
    client = lockfast.connect(here.url)
    hold = client.lock("a").acquire()
    with client.lock("b"):
        pass
    assert hold.is_held
    client.close()
    assert here.kazoo.get_children(here.root) == []


def test_a_node_that_lockfast_did_not_write_is_left_alone_and_reported(here):
    here.kazoo.ensure_path(f"{here.root}/default:a/somebody else's")
    with pytest.raises(lockfast.BackendError, match="did not write") as caught:
        here.client.lock("a").acquire()
    assert not caught.value.transient
    assert "somebody else's" in here.nodes("a")


def test_a_session_that_ends_is_reported_at_once_and_once(here):
    losses = []
    hold = here.client.lock("a", on_lost=losses.append).acquire()
    expire(here)
    began = time.monotonic()
    assert hold.wait_lost(SOON) and time.monotonic() - began < 5, (
        "the loss was not reported at once"
    )
    assert not hold.is_held
    with pytest.raises(lockfast.HoldLost):
        hold.release()
    with here.client.lock("a", timeout=SOON) as again:
        assert again.fence > hold.fence
    assert losses == [hold]


def test_a_waiter_goes_on_waiting_in_another_session(here):
    other = lockfast.connect(here.url)
    hold = other.lock("a").acquire()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(here.client.lock("a", timeout=SOON).acquire)
        while not other.inspect("a").waiters:
            time.sleep(0.01)
        expire(here)
        while not here.session.connected or not other.inspect("a").waiters:
            time.sleep(0.01)
        hold.release()
        theirs = waiter.result(SOON)
        assert theirs.is_held and theirs.fence > hold.fence
        theirs.release()
    other.close()


def expire(here):
    """Close the session from another client, as the server does on a time-out."""
    client = here.session._connection.client
    thief = KazooClient(
        here.session.address.hosts, client_id=(client._session_id, client._session_passwd)
    )
    thief.start(SOON)
    thief.stop()
    thief.close()


def test_a_hand_over_wakes_one_waiter_and_costs_a_delete_and_a_list(here, zookeeper_server):
    """The number of waiters does not matter: each watches the node before it, and no other."""
    waiters, hand_overs = 8, 5
    hold = here.client.lock("a").acquire()
    with (
        lockfast.connect(here.url) as other,
        ThreadPoolExecutor(waiters) as pool,
    ):
        got = queue.Queue()
        for count in range(1, waiters + 1):
            pool.submit(lambda: got.put(other.lock("a", timeout=SOON, owner=object()).acquire()))
            while len(here.nodes("a")) <= count or other.statistics().waiting < count:
                time.sleep(0.01)
        time.sleep(0.1)  # the last of them has set its watch by now
        before = int(zookeeper_server.counters()["packets_received"])
        for _ in range(hand_overs):
            hold.release()
            hold = got.get(timeout=SOON)
        time.sleep(0.1)  # any other waiter that was woken has asked by now
        asked = int(zookeeper_server.counters()["packets_received"]) - before
        for _ in range(hand_overs, waiters):
            hold.release()
            hold = got.get(timeout=SOON)
        hold.release()
    # The surplus: our own request for the counters, and a few pings.
    assert 2 * hand_overs <= asked <= 2 * hand_overs + 6

"""Slots migrate while names in them are held and waited for: MOVED, ASK and TRYAGAIN."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_clients import elsewhere, errors, slot, stopped_scripts

from both_apis import PATIENCE, Agent, took, until
from lockfast import BackendError
from lockfast.stores.redis.commands import Call
from lockfast.stores.redis.errors import Unreachable, Unsettled
from lockfast.stores.redis_cluster.routing import Router
from lockfast.stores.redis_cluster.slots import SlotMap, slot_at
from lockfast.stores.steps import perform

Make = Callable[..., Agent]
# Well below 1.5 s, after which a refresh replaces a lost wake-up.
BY_WAKEUP = 0.7


@pytest.fixture
def cluster(redis_cluster: Any) -> Iterator[Any]:
    """The shared cluster; a migration that a test did not end is ended."""
    moving: list[tuple[int, Any, Any]] = []
    redis_cluster.moving = moving
    yield redis_cluster
    for number, source, to in moving:
        redis_cluster.end_to_move(number, source, to)


@pytest.fixture(scope="module")
def lonely(new_redis_cluster: Callable[..., Any]) -> Any:
    """A cluster of one node, whose slots tests remove and add again."""
    return new_redis_cluster(1, 0)


def begin_to_move(cluster: Any, name: str) -> tuple[int, Any, Any]:
    source = cluster.owner(slot(name))
    move = slot(name), source, elsewhere(cluster, source)
    cluster.begin_to_move(move[0], move[2])
    cluster.moving.append(move)
    return move


def end_to_move(cluster: Any, move: tuple[int, Any, Any]) -> None:
    cluster.end_to_move(*move)
    cluster.moving.remove(move)


def move(cluster: Any, name: str) -> None:
    end_to_move(cluster, begin_to_move(cluster, name))


def channels(node: Any, name: str) -> list[bytes]:
    """List the channels of a name that clients have subscribed at this node."""
    return [channel for channel in node.call("PUBSUB", "SHARDCHANNELS") if name.encode() in channel]


def test_a_hold_is_renewed_while_its_slot_migrates_and_released_at_the_new_node(
    agent: Make, cluster: Any, name: str
) -> None:
    mine = agent(cluster.url, lease=1.5)
    hold = mine.do(lambda client: client.lock(name).acquire())
    moving = begin_to_move(cluster, name)
    before = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= before + 2)
    cluster.move_keys(*moving)  # from now on the old node answers ASK
    before = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= before + 2)
    assert errors(cluster, "ASK") >= 2
    end_to_move(cluster, moving)
    before = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= before + 2)
    assert hold.is_held
    (holder,) = mine.do(lambda client: client.inspect(name)).holders
    assert holder.fence == hold.fence
    mine.do(lambda client: hold.release())
    assert mine.do(lambda client: client.inspect(name)).holders == ()


def test_a_name_that_moved_is_found_with_one_redirection(
    agent: Make, cluster: Any, name: str
) -> None:
    mine = agent(cluster.url)
    for _ in range(2):
        hold = mine.do(lambda client: client.lock(name).acquire())
        mine.do(lambda client: hold.release())  # noqa: B023
    move(cluster, name)
    before = errors(cluster, "MOVED")
    for _ in range(10):
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=1))
        mine.do(lambda client: hold.release())  # noqa: B023
    # Two if the first claim did not suspend: that path returns without following a redirection.
    assert 1 <= errors(cluster, "MOVED") - before <= 2


@pytest.mark.parametrize("when", ["after the move", "during the move"])
def test_waiters_are_served_in_arrival_order_when_their_slot_migrates(
    agent: Make, cluster: Any, name: str, when: str
) -> None:
    holder, others = agent(cluster.url, lease=9), [agent(cluster.url, lease=9) for _ in range(3)]
    hold = holder.do(lambda client: client.lock(name).acquire())
    waits: list[Any] = []
    for number, other in enumerate(others):
        waits.append(other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE)))
        until(lambda: len(holder.do(lambda c: c.inspect(name)).waiters) == number + 1)  # noqa: B023
    moving = begin_to_move(cluster, name)
    if when == "during the move":
        cluster.move_keys(*moving)
        releases = holder.later(lambda client: hold.release())
        time.sleep(0.1)
        end_to_move(cluster, moving)
        releases.result(PATIENCE)
    else:
        end_to_move(cluster, moving)
        until(lambda: len(channels(moving[2], name)) == len(others))
        holder.do(lambda client: hold.release())
    served = []
    with took() as time_of:
        while len(served) < len(waits):
            number = until(
                lambda: [n for n, w in enumerate(waits) if w.done() and n not in served]
            )[0]
            got = waits[number].result()
            assert got.fence > hold.fence
            served.append(number)
            others[number].do(lambda client: got.release())  # noqa: B023
    assert served == [0, 1, 2]
    if when == "after the move":
        assert time_of.unstalled < BY_WAKEUP


def test_a_repeated_setslot_ends_subscriptions_and_waiters_subscribe_again(
    agent: Make, cluster: Any, name: str
) -> None:
    """The precondition of arrival order: a waiter that no subscription reaches counts as gone."""
    mine, other = agent(cluster.url, lease=9), agent(cluster.url, lease=9)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    owner = cluster.owner(slot(name))
    until(lambda: channels(owner, name))
    owner.call("CLUSTER", "SETSLOT", slot(name), "NODE", owner.id)
    until(lambda: channels(owner, name))
    assert not waits.done()
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    assert time_of.unstalled < BY_WAKEUP
    other.do(lambda client: later.release())


def test_a_claim_in_a_migrating_slot_is_granted_when_the_migration_ends(
    agent: Make, cluster: Any, name: str
) -> None:
    mine = agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())
    moving = begin_to_move(cluster, name)
    threading.Timer(0.4, end_to_move, (cluster, moving)).start()
    with took() as time_of:
        later = mine.do(lambda client: client.lock(name).acquire(timeout=2))
    assert later.fence > hold.fence
    assert time_of.seconds > 0.2 and time_of.unstalled < 3.0
    assert errors(cluster, "TRYAGAIN") >= 1
    mine.do(lambda client: later.release())


@pytest.mark.parametrize("keys", ["some", "none"])
def test_a_migration_that_does_not_end_fails_within_the_budget_without_a_storm(
    agent: Make, cluster: Any, name: str, keys: str
) -> None:
    """For a name without keys the old node answers ASK, and the new one TRYAGAIN."""
    lease = 6
    mine = agent(cluster.url, lease=lease)
    if keys == "some":
        hold = mine.do(lambda client: client.lock(name).acquire())
        mine.do(lambda client: hold.release())
    begin_to_move(cluster, name)
    before = errors(cluster, "TRYAGAIN")
    with took() as time_of, pytest.raises(BackendError, match=r"TRYAGAIN|ASK") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert caught.value.transient
    assert time_of.unstalled < 2 * lease / 6 + 0.5
    assert 3 <= errors(cluster, "TRYAGAIN") - before < 60, "a storm"


def test_a_time_out_names_the_reply_for_which_the_request_was_repeated() -> None:
    """The rest of the budget was too short for an answer, which is not the reason of the error."""
    slots = SlotMap(["127.0.0.1:1"])
    slots.moved(7, "127.0.0.1:1")
    replies: list[BackendError] = [
        Unsettled("redis at 127.0.0.1:1 replied: TRYAGAIN"),
        Unreachable("redis at 127.0.0.1:1 did not reply with a map"),
        Unreachable("redis at 127.0.0.1:1 did not answer in time"),
    ]

    def send(command: bytes, budget: float) -> Any:
        raise replies.pop(0)

    channel: Any = SimpleNamespace(send=send)
    router = Router(slots, lambda endpoint: channel, lambda seconds: None, "a cluster")
    key = next(f"{n}" for n in range(10**6) if slot_at(f"{n}") == 7)
    steps = router.run(Call(None, b"", 0, key), 5.0)
    with pytest.raises(Unreachable, match=r"did not answer in time; before that, .* TRYAGAIN"):
        perform(steps, lambda request: request[0](*request[1:]))


def test_a_claim_fails_while_the_cluster_is_down_and_is_retried_with_pauses(
    agent: Make, lonely: Any, name: str
) -> None:
    (node,) = lonely.nodes
    mine = agent(lonely.url, lease=3)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())
    before = errors(lonely, "CLUSTERDOWN")
    node.call("CLUSTER", "DELSLOTS", slot(name))
    with took() as time_of, pytest.raises(BackendError, match=r"CLUSTERDOWN|no node") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert caught.value.transient
    assert time_of.unstalled < 2 * 3 / 6 + 0.5
    assert errors(lonely, "CLUSTERDOWN") - before < 60, "a storm"
    waits = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    threading.Timer(0.1, node.call, ("CLUSTER", "ADDSLOTS", slot(name))).start()
    again = waits.result(PATIENCE)
    assert again.fence > hold.fence
    mine.do(lambda client: again.release())


def test_the_last_waiter_is_served_while_the_slot_migrates(
    agent: Make, cluster: Any, name: str
) -> None:
    """All keys are still at the old node, and the release empties the queue: from then on, in the
    middle of the script, the server treats that key as migrated."""
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: mine.do(lambda client: client.inspect(name)).waiters)
    moving = begin_to_move(cluster, name)
    mine.do(lambda client: hold.release())  # it raises if that is unknown
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    end_to_move(cluster, moving)
    other.do(lambda client: later.release())


def test_the_last_reader_is_served_while_the_slot_migrates(
    agent: Make, cluster: Any, name: str
) -> None:
    """Slots are left after it, so the script reads the queue again, which is empty now."""
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.rwlock(name).write().acquire())
    waits = other.later(lambda client: client.rwlock(name).read().acquire(timeout=PATIENCE))
    until(lambda: mine.do(lambda client: client.inspect(name)).waiters)
    moving = begin_to_move(cluster, name)
    mine.do(lambda client: hold.release())  # it raises if that is unknown
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    end_to_move(cluster, moving)
    other.do(lambda client: later.release())


def test_a_waiter_that_times_out_while_the_slot_migrates_leaves_the_queue(
    agent: Make, cluster: Any, name: str
) -> None:
    mine, other = agent(cluster.url), agent(cluster.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).try_acquire(timeout=0.5))
    until(lambda: mine.do(lambda client: client.inspect(name)).waiters)
    moving, before = begin_to_move(cluster, name), stopped_scripts(cluster)
    assert waits.result(PATIENCE) is None
    assert stopped_scripts(cluster) == before
    end_to_move(cluster, moving)
    assert mine.do(lambda client: client.inspect(name)).waiters == ()
    mine.do(lambda client: hold.release())

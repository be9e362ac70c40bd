"""Batches of names in a cluster: one write per node, and a silent node affects only its own
names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_clients import calls, elsewhere, names_at, slot

from both_apis import PATIENCE, Agent, took, until
from lockfast import BackendError, HoldLost
from lockfast.stores.redis.commands import key_of

Make = Callable[..., Agent]


@pytest.fixture(scope="module")
def patient(new_redis_cluster: Callable[..., Any]) -> Any:
    """Masters without replicas: none is replaced when it falls silent."""
    return new_redis_cluster(3, 0, node_timeout=60.0)


def test_a_multi_lock_over_all_shards_is_all_or_none(agent: Make, patient: Any) -> None:
    mine, other = agent(patient.url, lease=3), agent(patient.url, lease=3)
    names = [name for node in patient.nodes for name in names_at(patient, node, 4)]
    hold = mine.do(lambda client: client.multi_lock(*names).acquire())
    for name in names:
        assert other.do(lambda client: client.lock(name).try_acquire()) is None  # noqa: B023
    mine.do(lambda client: hold.release())
    taken = sorted(names)[5]
    theirs = other.do(lambda client: client.lock(taken).acquire())
    assert mine.do(lambda client: client.multi_lock(*names).try_acquire()) is None
    assert other.do(lambda client: client.names()) == [taken]
    other.do(lambda client: theirs.release())


def test_a_waiter_for_one_of_several_names_holds_none_of_the_later_ones(
    agent: Make, patient: Any
) -> None:
    mine, other = agent(patient.url, lease=3), agent(patient.url, lease=3)
    names = sorted(name for node in patient.nodes for name in names_at(patient, node, 3))
    theirs = other.do(lambda client: client.lock(names[4]).acquire())
    waits = mine.later(lambda client: client.multi_lock(*names).acquire(timeout=PATIENCE))
    until(lambda: mine.client.statistics().waiting)
    assert other.do(lambda client: client.names()) == names[:5]
    other.do(lambda client: theirs.release())
    hold = waits.result(PATIENCE)
    assert other.do(lambda client: client.names()) == names
    mine.do(lambda client: hold.release())
    assert other.do(lambda client: client.names()) == []


@pytest.fixture
def reads(patient: Any) -> Iterator[Callable[[], list[int]]]:
    """How often each node has read from its clients, including this query."""
    asking = [node.client() for node in patient.nodes]
    yield lambda: [one.info("stats")["total_reads_processed"] for one in asking]
    for one in asking:
        one.close()


def test_a_batch_of_free_names_costs_one_write_per_node(
    agents: Any, patient: Any, reads: Callable[[], list[int]]
) -> None:
    mine = agents("blocking", patient.url)
    names = [name for node in patient.nodes for name in names_at(patient, node, 20)]
    warm = mine.client.multi_lock(*names).acquire()
    warm.release()
    asked = [calls(node, "evalsha") for node in patient.nodes]
    before = reads()
    hold = mine.client.multi_lock(*names).acquire()
    hold.release()
    after = reads()
    for node, scripts in zip(patient.nodes, asked, strict=True):
        assert calls(node, "evalsha") - scripts == 2 * 20
    # One write for the claims and one for the releases; each may arrive in two pieces.
    assert max(new - old for new, old in zip(after, before, strict=True)) <= 1 + 2 * 2


def test_holds_are_renewed_in_one_write_per_node(
    agents: Any, patient: Any, reads: Callable[[], list[int]]
) -> None:
    mine = agents("blocking", patient.url, lease=1.2)
    names = [name for node in patient.nodes for name in names_at(patient, node, 30)]
    holds = [mine.client.lock(name, owner=name).acquire() for name in names]
    until(lambda: mine.client.statistics().renewals >= 90)
    before, renewals = reads(), mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= renewals + 90)
    after = reads()
    # A round may have begun before the first reading, or have gone on before the second.
    assert max(new - old for new, old in zip(after, before, strict=True)) <= 1 + 3 * 2
    assert all(hold.is_held for hold in holds)
    for hold in holds:
        hold.release()
    assert mine.client.names() == []


def test_a_silent_node_costs_its_own_holds_and_no_others(agent: Make, patient: Any) -> None:
    """The keeper needs more than one batch, and the silence lasts several leases."""
    mine = agent(patient.url, lease=1.5)
    silent, *others = patient.nodes
    lost_names = names_at(patient, silent, 5)
    kept_names = [name for node in others for name in names_at(patient, node, 80)]

    def take(name: str) -> Any:
        return mine.do(lambda client: client.lock(name, owner=name).acquire())

    kept, lost = [take(name) for name in kept_names], [take(name) for name in lost_names]
    free = names_at(patient, others[0], 1)[0]
    silent.pause()
    try:
        until(lambda: all(hold.lost for hold in lost))
        time.sleep(3.0)
        assert all(hold.is_held for hold in kept)
        hold = mine.do(lambda client: client.lock(free).acquire(timeout=1))
        mine.do(lambda client: hold.release())
        with pytest.raises(BackendError, match="did not answer"):
            mine.do(lambda client: client.lock(lost_names[0]).acquire(timeout=0))
    finally:
        silent.resume()
    for hold in kept:
        mine.do(lambda client: hold.release())  # noqa: B023
    for hold in lost:
        with pytest.raises(HoldLost):
            mine.do(lambda client: hold.release())  # noqa: B023
    until(lambda: mine.do(lambda client: client.names()) == [])


def test_callers_of_a_silent_node_do_not_all_refresh_the_slot_map(
    agents: Any, patient: Any
) -> None:
    mine = agents("blocking", patient.url, lease=9)
    silent, *others = patient.nodes
    names = names_at(patient, silent, 40)
    mine.client.lock(names[0]).acquire().release()
    before = sum(calls(node, "cluster|slots") for node in others)
    silent.pause()
    try:
        with took() as time_of:
            asking = [
                mine.later(lambda client: client.lock(name).acquire(timeout=0))  # noqa: B023
                for name in names
            ]
            for future in asking:
                with pytest.raises(BackendError):
                    future.result(PATIENCE)
    finally:
        silent.resume()
    asked = sum(calls(node, "cluster|slots") for node in others) - before
    # At most ten refreshes a second, plus one at the beginning and one at the end.
    assert 1 <= asked <= 10 * time_of.seconds + 2


def test_renewals_find_names_whose_slots_have_moved(agents: Any, patient: Any) -> None:
    mine = agents("blocking", patient.url, lease=1.2)
    source = patient.nodes[0]
    names = names_at(patient, source, 10)
    holds = [mine.client.lock(name, owner=name).acquire() for name in names]
    to = elsewhere(patient, source)
    for name in names:
        patient.move(slot(name), to)
    renewals = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= renewals + 20)
    assert all(hold.is_held for hold in holds)
    for hold in holds:
        hold.release()


def test_names_of_all_nodes_are_listed_and_broken(agent: Make, patient: Any) -> None:
    mine = agent(patient.url)
    names = [name for node in patient.nodes for name in names_at(patient, node, 2, "walk")]
    holds = {}
    for name in names:
        holds[name] = mine.do(lambda client: client.lock(name, owner=name).acquire())  # noqa: B023
    assert mine.do(lambda client: client.names("walk")) == sorted(names)
    for name, hold in holds.items():
        assert patient.owner(slot(name)).call("EXISTS", key_of(f"default:{name}"))
        assert mine.do(lambda client: client.break_hold(name, hold.fence)) is True  # noqa: B023
        assert mine.do(lambda client: client.break_hold(name, hold.fence)) is False  # noqa: B023
    assert mine.do(lambda client: client.names("walk")) == []

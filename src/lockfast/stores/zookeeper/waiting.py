"""A claim in the queue: take the hold, or watch the node that blocks it, which `order` finds. A
blocking node whose lease is over is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import REFRESH
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.stores.zookeeper.nodes import HOLDS, NEW, SESSION, TIMED, WAITS, facts_of
from lockfast.stores.zookeeper.operation import Listed, Operation
from lockfast.stores.zookeeper.order import Position, position_of
from lockfast.stores.zookeeper.registry import QueueEntry
from lockfast.stores.zookeeper.requests import Children, Exists, Get, Put, Refusal, Request

NEVER = float("inf")


async def take_or_watch(
    operation: Operation, claim: Claim, entry: QueueEntry, listed: Listed, fresh: bool
) -> Granted | Busy | Differs | Listed | None:
    """Answer the claim; a newer list to decide by; None: the claim's node is not in the list."""
    at = listed.at(entry.name)
    if at < 0:
        return None
    if not entry.granted:
        size = listed.size
        if claim.take > size or (not entry.size_checked and size != claim.slots):
            # The name has another kind or size, unless the nodes that define it have expired.
            before = [node for node in listed.nodes[:at] if node.lifetime != SESSION]
            seen = await operation.read(entry.parent, before)
            if await operation.delete_expired(entry.parent, seen):
                return await operation.list_nodes(entry.parent)
            return Differs(size)
        entry.size_checked = True
    position = position_of(listed.nodes, at, listed.size)
    if position.holds or entry.granted:
        return await _take(operation, claim, entry, position, fresh)
    if position.ahead is None:
        return await _watch_all(operation, claim, entry, position)
    return await _watch_one(operation, claim, entry, position)


async def _take(
    operation: Operation, claim: Claim, entry: QueueEntry, position: Position, fresh: bool
) -> Granted | None:
    """Take the hold. Its node is written to if the lease begins now and not when the node was
    created. A waiter of a semaphore writes as well: the next waiter watches for that."""
    restarts = entry.lifetime == TIMED and not fresh
    waited = entry.state == WAITS or position.followed
    if restarts or (position.shared and waited and not entry.marked):
        facts = facts_of(claim, HOLDS, entry.fence, entry.since)
        (answer,) = await operation.ask(Put(entry.path, facts.encoded()))
        if answer is Refusal.NO_NODE:
            return None
        entry.marked, entry.state = True, HOLDS
    entry.granted, entry.armed = True, False
    return Granted(entry.fence, operation.registry.valid_for(claim.lease))


async def _watch_one(
    operation: Operation, claim: Claim, entry: QueueEntry, position: Position
) -> Busy | Listed:
    """Watch the node ahead. A newer list if that node is gone or its lease is over."""
    ahead = position.ahead
    assert ahead is not None
    if not (claim.wait or position.expiring):
        return Busy(REFRESH, 0)
    path = f"{entry.parent}/{ahead.name}"
    requests: list[Request] = [Get(path, entry.arm(path) if claim.wait else None)]
    requests += _mark_waiting(claim, entry)
    if position.shared:
        # It may have become a holder before the watch was set, and will not write again.
        wake = entry.arm(entry.parent) if claim.wait else None
        requests += [Exists(entry.parent, wake), Children(entry.parent)]
    answers = await operation.ask(*requests)
    if not _is_waiting(claim, entry, answers) or answers[0] is Refusal.NO_NODE:
        return await operation.list_nodes(entry.parent)
    if position.expiring:
        (seen,) = operation.decode(entry.parent, position.expiring, answers[:1])
        if await operation.delete_expired(entry.parent, [seen]):
            return await operation.list_nodes(entry.parent)
        return _busy(operation, entry, operation.time_left(seen))
    if position.shared:
        listed = await operation.parse_list(entry.parent, answers[-1])
        at = listed.at(entry.name)
        if at < 0 or position_of(listed.nodes, at, listed.size) != position:
            return listed
    return _busy(operation, entry)


async def _watch_all(
    operation: Operation, claim: Claim, entry: QueueEntry, position: Position
) -> Busy | Listed:
    """Watch the children and the size: the first waiter of a semaphore gets the next free slot."""
    wake = entry.arm(entry.parent) if claim.wait else None
    answers = await operation.ask(
        *(Get(f"{entry.parent}/{node.name}") for node in position.expiring),
        *_mark_waiting(claim, entry),
        Exists(entry.parent, wake),
        Children(entry.parent, wake),
    )
    seen = operation.decode(entry.parent, position.expiring, answers[: len(position.expiring)])
    waits = _is_waiting(claim, entry, answers[len(position.expiring) :])
    if await operation.delete_expired(entry.parent, seen) or not waits:
        return await operation.list_nodes(entry.parent)
    listed = await operation.parse_list(entry.parent, answers[-1])
    at = listed.at(entry.name)
    if at < 0 or position_of(listed.nodes, at, listed.size) != position:
        return listed
    return _busy(operation, entry, min((operation.time_left(one) for one in seen), default=NEVER))


def _busy(operation: Operation, entry: QueueEntry, time_left: float = NEVER) -> Busy:
    entry.recheck_at = operation.registry.clock() + time_left
    return Busy(min(time_left, REFRESH), 0)


def _mark_waiting(claim: Claim, entry: QueueEntry) -> list[Request]:
    """Record on our node that its lease has not begun, where others would end it by its lease."""
    if not claim.wait or entry.state != NEW or entry.lifetime != TIMED:
        return []
    return [Put(entry.path, facts_of(claim, WAITS, entry.fence, entry.since).encoded())]


def _is_waiting(claim: Claim, entry: QueueEntry, answers: Sequence[Any]) -> bool:
    """Record the answer to `_mark_waiting`. False: our node is gone."""
    if claim.wait and entry.state == NEW:
        entry.state = WAITS
        return entry.lifetime != TIMED or Refusal.NO_NODE not in answers
    return True

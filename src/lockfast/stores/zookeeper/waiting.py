"""Where a claim stands in the queue, and what it does about it: take its turn, or watch what is in
the way, and end it if its lease is over. See `order` for who stands in whose way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import REFRESH
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.stores.zookeeper.nodes import HOLDS, NEW, SESSION, TIMED, WAITS, facts_of
from lockfast.stores.zookeeper.operation import Listed, Turn
from lockfast.stores.zookeeper.order import Standing, standing
from lockfast.stores.zookeeper.registry import Place
from lockfast.stores.zookeeper.requests import Children, Exists, Get, No, Put, Request

NEVER = float("inf")


async def stand(
    turn: Turn, claim: Claim, waiter: Place, listed: Listed, fresh: bool
) -> Granted | Busy | Differs | Listed | None:
    """What we are told where we stand; a newer list to look at; None: we do not stand there."""
    at = listed.at(waiter.name)
    if at < 0:
        return None
    if not waiter.granted:
        size = listed.size
        unfit = claim.take > size or (not waiter.settled and size != claim.slots)
        if unfit:
            # Of another kind or size. Not if those who say so have ended.
            before = [node for node in listed.nodes[:at] if node.life != SESSION]
            if await turn.bury(waiter.parent, await turn.read(waiter.parent, before)):
                return await turn.look(waiter.parent)
            return Differs(size)
        waiter.settled = True
    stands = standing(listed.nodes, at, listed.size)
    if stands.holds or waiter.granted:
        return await _take(turn, claim, waiter, stands, fresh)
    if stands.ahead is None:
        return await _watch_all(turn, claim, waiter, stands)
    return await _watch_one(turn, claim, waiter, stands)


async def _take(
    turn: Turn, claim: Claim, waiter: Place, stands: Standing, fresh: bool
) -> Granted | None:
    """It is ours. If its lease is to begin now, and not when its node was made, we write so. So
    does who waited for a semaphore, before it goes on: the next one watches for that."""
    restarts = waiter.life == TIMED and not fresh
    waited = waiter.state == WAITS or stands.followed
    if restarts or (stands.shared and waited and not waiter.marked):
        facts = facts_of(claim, HOLDS, waiter.fence, waiter.since)
        (answer,) = await turn.ask(Put(waiter.path, facts.encoded()))
        if answer is No.NODE:
            return None
        waiter.marked = True
        waiter.state = HOLDS
    waiter.granted = True
    waiter.armed = False
    return Granted(waiter.fence, turn.desk.grantable(claim.lease))


async def _watch_one(turn: Turn, claim: Claim, waiter: Place, stands: Standing) -> Busy | Listed:
    """Watch the one in the way; or it is gone, or over: a newer list."""
    ahead = stands.ahead
    assert ahead is not None
    if not (claim.wait or stands.mortal):
        return Busy(REFRESH, 0)
    path = f"{waiter.parent}/{ahead.name}"
    requests: list[Request] = [Get(path, waiter.watching(path) if claim.wait else None)]
    requests += _waiting(claim, waiter)
    if stands.shared:
        # It may have begun to hold before we watched it, and will not write so again.
        wake = waiter.watching(waiter.parent) if claim.wait else None
        requests += [Exists(waiter.parent, wake), Children(waiter.parent)]
    answers = await turn.ask(*requests)
    if not _waits(claim, waiter, answers) or answers[0] is No.NODE:
        return await turn.look(waiter.parent)
    if stands.mortal:
        (seen,) = turn.seen(waiter.parent, stands.mortal, answers[:1])
        if await turn.bury(waiter.parent, [seen]):
            return await turn.look(waiter.parent)
        return _busy(turn, waiter, turn.rest(seen))
    if stands.shared:
        listed = await turn.listed(waiter.parent, answers[-1])
        at = listed.at(waiter.name)
        if at < 0 or standing(listed.nodes, at, listed.size) != stands:
            return listed
    return _busy(turn, waiter)


async def _watch_all(turn: Turn, claim: Claim, waiter: Place, stands: Standing) -> Busy | Listed:
    """We are the first to get what becomes free of a semaphore: watch whoever comes and goes,
    and the size."""
    wake = waiter.watching(waiter.parent) if claim.wait else None
    answers = await turn.ask(
        *(Get(f"{waiter.parent}/{node.name}") for node in stands.mortal),
        *_waiting(claim, waiter),
        Exists(waiter.parent, wake),
        Children(waiter.parent, wake),
    )
    seen = turn.seen(waiter.parent, stands.mortal, answers[: len(stands.mortal)])
    waits = _waits(claim, waiter, answers[len(stands.mortal) :])
    if await turn.bury(waiter.parent, seen) or not waits:
        return await turn.look(waiter.parent)
    listed = await turn.listed(waiter.parent, answers[-1])
    at = listed.at(waiter.name)
    if at < 0 or standing(listed.nodes, at, listed.size) != stands:
        return listed
    return _busy(turn, waiter, min((turn.rest(one) for one in seen), default=NEVER))


def _busy(turn: Turn, waiter: Place, rest: float = NEVER) -> Busy:
    waiter.recheck_at = turn.desk.clock() + rest
    return Busy(min(rest, REFRESH), 0)


def _waiting(claim: Claim, waiter: Place) -> list[Request]:
    """Say on our node that its lease has not begun, where others would end it by its lease."""
    if not claim.wait or waiter.state != NEW or waiter.life != TIMED:
        return []
    return [Put(waiter.path, facts_of(claim, WAITS, waiter.fence, waiter.since).encoded())]


def _waits(claim: Claim, waiter: Place, answers: Sequence[Any]) -> bool:
    """It is said. False: our node is gone."""
    if claim.wait and waiter.state == NEW:
        waiter.state = WAITS
        return waiter.life != TIMED or No.NODE not in answers
    return True

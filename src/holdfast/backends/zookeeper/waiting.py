"""Where a claim stands in the queue, and what it does about it: take its turn, or watch what is in
the way, and end it if its lease is over. See `order` for who stands in whose way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.backends.zookeeper.desk import Place
from holdfast.backends.zookeeper.nodes import HOLDS, NEW, SESSION, TIMED, WAITS, facts_of
from holdfast.backends.zookeeper.order import Standing, standing
from holdfast.backends.zookeeper.requests import Children, Exists, Get, No, Put, Request
from holdfast.backends.zookeeper.turn import Listed, Turn
from holdfast.core.law import REFRESH
from holdfast.model import Busy, Claim, Differs, Granted

NEVER = float("inf")


async def stand(
    turn: Turn, claim: Claim, place: Place, listed: Listed, fresh: bool
) -> Granted | Busy | Differs | Listed | None:
    """What we are told where we stand; a newer list to look at; None: we do not stand there."""
    at = listed.at(place.name)
    if at < 0:
        return None
    if not place.granted:
        size = listed.size
        unfit = claim.take > size or (not place.settled and size != claim.slots)
        if unfit:
            # Of another kind or size. Not if those who say so have ended.
            before = [node for node in listed.nodes[:at] if node.life != SESSION]
            if await turn.bury(place.parent, await turn.read(place.parent, before)):
                return await turn.look(place.parent)
            return Differs(size)
        place.settled = True
    stands = standing(listed.nodes, at, listed.size)
    if stands.holds or place.granted:
        return await _take(turn, claim, place, stands, fresh)
    if stands.ahead is None:
        return await _watch_all(turn, claim, place, stands)
    return await _watch_one(turn, claim, place, stands)


async def _take(
    turn: Turn, claim: Claim, place: Place, stands: Standing, fresh: bool
) -> Granted | None:
    """It is ours. If its lease is to begin now, and not when its node was made, we write so. So
    does who waited for a semaphore, before it goes on: the next one watches for that."""
    restarts = place.life == TIMED and not fresh
    waited = place.state == WAITS or stands.followed
    if restarts or (stands.shared and waited and not place.marked):
        facts = facts_of(claim, HOLDS, place.fence, place.since)
        (answer,) = await turn.ask(Put(place.path, facts.encoded()))
        if answer is No.NODE:
            return None
        place.marked = True
        place.state = HOLDS
    place.granted = True
    place.armed = False
    return Granted(place.fence, turn.desk.grantable(claim.lease))


async def _watch_one(turn: Turn, claim: Claim, place: Place, stands: Standing) -> Busy | Listed:
    """Watch the one in the way; or it is gone, or over: a newer list."""
    ahead = stands.ahead
    assert ahead is not None
    if not (claim.wait or stands.mortal):
        return Busy(REFRESH, 0)
    path = f"{place.parent}/{ahead.name}"
    requests: list[Request] = [Get(path, place.watching(path) if claim.wait else None)]
    requests += _waiting(claim, place)
    if stands.shared:
        # It may have begun to hold before we watched it, and will not write so again.
        ring = place.watching(place.parent) if claim.wait else None
        requests += [Exists(place.parent, ring), Children(place.parent)]
    answers = await turn.ask(*requests)
    if not _waits(claim, place, answers) or answers[0] is No.NODE:
        return await turn.look(place.parent)
    if stands.mortal:
        (seen,) = turn.seen(place.parent, stands.mortal, answers[:1])
        if await turn.bury(place.parent, [seen]):
            return await turn.look(place.parent)
        return _busy(turn, place, turn.rest(seen))
    if stands.shared:
        listed = await turn.listed(place.parent, answers[-1])
        at = listed.at(place.name)
        if at < 0 or standing(listed.nodes, at, listed.size) != stands:
            return listed
    return _busy(turn, place)


async def _watch_all(turn: Turn, claim: Claim, place: Place, stands: Standing) -> Busy | Listed:
    """We are the first to get what becomes free of a semaphore: watch whoever comes and goes,
    and the size."""
    ring = place.watching(place.parent) if claim.wait else None
    answers = await turn.ask(
        *(Get(f"{place.parent}/{node.name}") for node in stands.mortal),
        *_waiting(claim, place),
        Exists(place.parent, ring),
        Children(place.parent, ring),
    )
    seen = turn.seen(place.parent, stands.mortal, answers[: len(stands.mortal)])
    waits = _waits(claim, place, answers[len(stands.mortal) :])
    if await turn.bury(place.parent, seen) or not waits:
        return await turn.look(place.parent)
    listed = await turn.listed(place.parent, answers[-1])
    at = listed.at(place.name)
    if at < 0 or standing(listed.nodes, at, listed.size) != stands:
        return listed
    return _busy(turn, place, min((turn.rest(one) for one in seen), default=NEVER))


def _busy(turn: Turn, place: Place, rest: float = NEVER) -> Busy:
    place.recheck_at = turn.desk.clock() + rest
    return Busy(min(rest, REFRESH), 0)


def _waiting(claim: Claim, place: Place) -> list[Request]:
    """Say on our node that its lease has not begun, where others would end it by its lease."""
    if not claim.wait or place.state != NEW or place.life != TIMED:
        return []
    return [Put(place.path, facts_of(claim, WAITS, place.fence, place.since).encoded())]


def _waits(claim: Claim, place: Place, answers: Sequence[Any]) -> bool:
    """It is said. False: our node is gone."""
    if claim.wait and place.state == NEW:
        place.state = WAITS
        return place.life != TIMED or No.NODE not in answers
    return True

"""Latches and barriers: what many wait for together (rule 7 of the law).

**A latch** of n is open when n nodes that count are there. They are persistent, and numbered: the n
first of them count, one that comes later is taken back by who made it. All of them are forgotten
together, when the lease of the newest is over. Who waits watches the children: these are not hot.

**A barrier** of n is passed by n nodes at once, the first n that have not passed. Whoever sees so
many writes "passed" on all of them in one transaction, which fails if one of them left or has
passed meanwhile. So groups are of exactly n, and whose node says so has passed, however late it
looks. The last that comes always sees the others, because its node is younger than theirs; so
somebody does it. Each watches its own node.
"""

from __future__ import annotations

from holdfast.backends.zookeeper.arrival import arrive
from holdfast.backends.zookeeper.desk import Place
from holdfast.backends.zookeeper.nodes import DETACHED, PASSED, SESSION, Node
from holdfast.backends.zookeeper.requests import Children, Delete, Get, Kind, No, Put, Together
from holdfast.backends.zookeeper.turn import Listed, Turn
from holdfast.core.law import REFRESH
from holdfast.errors import Unsupported
from holdfast.model import BARRIER, LATCH, Busy, Claim, Differs, Granted

BUSY = Busy(REFRESH, 0)
NEVER = float("inf")
# ZooKeeper takes no request of a megabyte or more.
MOST_BYTES = 900_000
BYTES_PER_PARTY = 200


async def claim(turn: Turn, claim: Claim) -> Granted | Busy | Differs:
    counts = claim.slots < BARRIER and claim.take > 0
    desk = turn.desk
    new = claim.id not in desk.places
    place = desk.place(claim.id, turn.parent(claim.name))
    if counts:
        # What was counted we do not keep in mind. If its answer was lost, it is found there.
        place.life, place.unsure = DETACHED, place.unsure or new
    asked_at = desk.clock()
    while True:
        if counts:
            listed, _ = await arrive(turn, claim, place, DETACHED, Kind.NUMBERED)
        else:
            listed, _ = await arrive(turn, claim, place, SESSION)
        if await _forgotten(turn, place, listed):
            continue
        at = listed.at(place.name)
        if at < 0:
            continue
        if not place.settled and listed.size != claim.slots:
            await turn.remove(place)
            return Differs(listed.size)
        place.settled = True
        if counts:
            return await _count(turn, claim, place, listed)
        passes = _pass_latch if claim.slots < BARRIER else _pass_barrier
        answer = await passes(turn, claim, place, listed)
        if answer is None:
            continue
        if isinstance(answer, Granted):
            place.granted, place.armed, place.confirmed = True, False, asked_at
        elif not claim.wait:
            await turn.remove(place)
        return answer


def counting(nodes: list[Node]) -> list[Node]:
    """Those that count a latch down."""
    return [node for node in nodes if LATCH < node.slots < BARRIER and node.take]


async def _forgotten(turn: Turn, place: Place, listed: Listed) -> bool:
    """Remove what has ended: of a latch all that counted, when the newest of it is over; of another
    kind whatever is over."""
    older = listed.nodes[: max(listed.at(place.name), 0)]
    last = counting(older)[-1:]
    mortal = last or [node for node in older if node.life != SESSION]
    over = [seen for seen in await turn.read(place.parent, mortal) if turn.rest(seen) <= 0]
    if not over:
        return False
    if last:
        await turn.ask(*(Delete(f"{place.parent}/{node.name}") for node in counting(older)))
        return True
    return await turn.bury(place.parent, over)


async def _count(turn: Turn, claim: Claim, place: Place, listed: Listed) -> Granted | Busy:
    needed = claim.slots - LATCH
    if place.name in [node.name for node in counting(listed.nodes)[:needed]]:
        turn.desk.drop(place)  # it belongs to nobody
        return Granted(place.fence, claim.lease)
    await turn.remove(place)  # nothing was left to count
    return BUSY


async def _pass_latch(
    turn: Turn, claim: Claim, place: Place, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - LATCH
    if len(counting(listed.nodes)) < needed and claim.wait:
        ring = place.watching(place.parent)
        (answer,) = await turn.ask(Children(place.parent, ring))
        listed = await turn.listed(place.parent, answer)
        if listed.at(place.name) < 0:
            return None
    if len(counting(listed.nodes)) >= needed:
        return Granted(place.fence, turn.desk.grantable(claim.lease))
    place.recheck_at = NEVER
    return BUSY


async def _pass_barrier(
    turn: Turn, claim: Claim, place: Place, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - BARRIER
    size = needed * (len(place.path) + BYTES_PER_PARTY)
    if size > MOST_BYTES:
        raise Unsupported(
            f"a barrier of {needed} is too large for ZooKeeper, which would have to write {size} "
            f"bytes in one step, of {MOST_BYTES}: take a shorter name, or fewer parties"
        )
    ring = place.watching(place.path) if claim.wait else None
    own, answer = await turn.ask(Get(place.path, ring), Children(place.parent))
    if own is No.NODE:
        return None
    granted = Granted(place.fence, turn.desk.grantable(claim.lease))
    nodes = (await turn.listed(place.parent, answer)).nodes
    if len(nodes) >= needed:
        seen = await turn.read(place.parent, nodes)
        if any(one.node.name == place.name and one.facts.state == PASSED for one in seen):
            return granted
        waiting = [one for one in seen if one.facts.state != PASSED][:needed]
        if len(waiting) == needed:
            marks = tuple(
                Put(
                    f"{place.parent}/{one.node.name}",
                    one.facts._replace(state=PASSED).encoded(),
                    one.stat.version,
                )
                for one in waiting
            )
            (done,) = await turn.ask(Together(marks))
            if done is not True:
                return None  # one of them left, or somebody else did it: look again
            if any(one.node.name == place.name for one in waiting):
                return granted
            return None
    if (
        turn.seen(place.parent, [listed.nodes[listed.at(place.name)]], [own])[0].facts.state
        == PASSED
    ):
        return granted
    place.recheck_at = NEVER
    return BUSY


async def leave(turn: Turn, claim: Claim, place: Place) -> bool:
    """Give up waiting; whether we were let through before. A node that has passed a barrier was
    written on, so it is not deleted unless we know that."""
    if place.under_way or place.unsure:
        await turn.find(place)
    if not place.name or not turn.desk.is_ours(place):
        turn.desk.drop(place)
        return place.granted
    untouched = 0 if claim.slots >= BARRIER else -1
    answer, deleted = await turn.ask(Children(place.parent), Delete(place.path, untouched))
    listed = await turn.listed(place.parent, answer)
    if deleted is No.VERSION:
        await turn.ask(Delete(place.path))
        crossed = True
    else:
        opened = len(counting(listed.nodes)) >= claim.slots - LATCH
        crossed = place.granted or (claim.slots < BARRIER and opened)
    turn.desk.drop(place)
    return crossed

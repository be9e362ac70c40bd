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

from lockfast.core.law import REFRESH
from lockfast.errors import Unsupported
from lockfast.model import BARRIER, LATCH, Busy, Claim, Differs, Granted
from lockfast.stores.zookeeper.enqueue import arrive
from lockfast.stores.zookeeper.nodes import DETACHED, PASSED, SESSION, Node
from lockfast.stores.zookeeper.operation import Listed, Turn
from lockfast.stores.zookeeper.registry import Place
from lockfast.stores.zookeeper.requests import Children, Delete, Get, Kind, No, Put, Together

BUSY = Busy(REFRESH, 0)
NEVER = float("inf")
# ZooKeeper takes no request of a megabyte or more.
MOST_BYTES = 900_000
BYTES_PER_PARTY = 200


async def claim(turn: Turn, claim: Claim) -> Granted | Busy | Differs:
    counts = claim.slots < BARRIER and claim.take > 0
    desk = turn.desk
    new = claim.id not in desk.waiters
    waiter = desk.waiter(claim.id, turn.parent(claim.name))
    if counts:
        # What was counted we do not keep in mind. If its answer was lost, it is found there.
        waiter.life, waiter.unsure = DETACHED, waiter.unsure or new
    asked_at = desk.clock()
    while True:
        if counts:
            listed, _ = await arrive(turn, claim, waiter, DETACHED, Kind.NUMBERED)
        else:
            listed, _ = await arrive(turn, claim, waiter, SESSION)
        if await _forgotten(turn, waiter, listed):
            continue
        at = listed.at(waiter.name)
        if at < 0:
            continue
        if not waiter.settled and listed.size != claim.slots:
            await turn.remove(waiter)
            return Differs(listed.size)
        waiter.settled = True
        if counts:
            return await _count(turn, claim, waiter, listed)
        passes = _pass_latch if claim.slots < BARRIER else _pass_barrier
        answer = await passes(turn, claim, waiter, listed)
        if answer is None:
            continue
        if isinstance(answer, Granted):
            waiter.granted, waiter.armed, waiter.confirmed = True, False, asked_at
        elif not claim.wait:
            await turn.remove(waiter)
        return answer


def counting(nodes: list[Node]) -> list[Node]:
    """Those that count a latch down."""
    return [node for node in nodes if LATCH < node.slots < BARRIER and node.take]


async def _forgotten(turn: Turn, waiter: Place, listed: Listed) -> bool:
    """Remove what has ended: of a latch all that counted, when the newest of it is over; of another
    kind whatever is over."""
    older = listed.nodes[: max(listed.at(waiter.name), 0)]
    last = counting(older)[-1:]
    mortal = last or [node for node in older if node.life != SESSION]
    over = [seen for seen in await turn.read(waiter.parent, mortal) if turn.rest(seen) <= 0]
    if not over:
        return False
    if last:
        await turn.ask(*(Delete(f"{waiter.parent}/{node.name}") for node in counting(older)))
        return True
    return await turn.bury(waiter.parent, over)


async def _count(turn: Turn, claim: Claim, waiter: Place, listed: Listed) -> Granted | Busy:
    needed = claim.slots - LATCH
    if waiter.name in [node.name for node in counting(listed.nodes)[:needed]]:
        turn.desk.drop(waiter)  # it belongs to nobody
        return Granted(waiter.fence, claim.lease)
    await turn.remove(waiter)  # nothing was left to count
    return BUSY


async def _pass_latch(
    turn: Turn, claim: Claim, waiter: Place, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - LATCH
    if len(counting(listed.nodes)) < needed and claim.wait:
        wake = waiter.watching(waiter.parent)
        (answer,) = await turn.ask(Children(waiter.parent, wake))
        listed = await turn.listed(waiter.parent, answer)
        if listed.at(waiter.name) < 0:
            return None
    if len(counting(listed.nodes)) >= needed:
        return Granted(waiter.fence, turn.desk.grantable(claim.lease))
    waiter.recheck_at = NEVER
    return BUSY


async def _pass_barrier(
    turn: Turn, claim: Claim, waiter: Place, listed: Listed
) -> Granted | Busy | None:
    needed = claim.slots - BARRIER
    size = needed * (len(waiter.path) + BYTES_PER_PARTY)
    if size > MOST_BYTES:
        raise Unsupported(
            f"a barrier of {needed} is too large for ZooKeeper, which would have to write {size} "
            f"bytes in one step, of {MOST_BYTES}: take a shorter name, or fewer parties"
        )
    wake = waiter.watching(waiter.path) if claim.wait else None
    own, answer = await turn.ask(Get(waiter.path, wake), Children(waiter.parent))
    if own is No.NODE:
        return None
    granted = Granted(waiter.fence, turn.desk.grantable(claim.lease))
    nodes = (await turn.listed(waiter.parent, answer)).nodes
    if len(nodes) >= needed:
        seen = await turn.read(waiter.parent, nodes)
        if any(one.node.name == waiter.name and one.facts.state == PASSED for one in seen):
            return granted
        waiting = [one for one in seen if one.facts.state != PASSED][:needed]
        if len(waiting) == needed:
            marks = tuple(
                Put(
                    f"{waiter.parent}/{one.node.name}",
                    one.facts._replace(state=PASSED).encoded(),
                    one.stat.version,
                )
                for one in waiting
            )
            (done,) = await turn.ask(Together(marks))
            if done is not True:
                return None  # one of them left, or somebody else did it: look again
            if any(one.node.name == waiter.name for one in waiting):
                return granted
            return None
    if (
        turn.seen(waiter.parent, [listed.nodes[listed.at(waiter.name)]], [own])[0].facts.state
        == PASSED
    ):
        return granted
    waiter.recheck_at = NEVER
    return BUSY


async def leave(turn: Turn, claim: Claim, waiter: Place) -> bool:
    """Give up waiting; whether we were let through before. A node that has passed a barrier was
    written on, so it is not deleted unless we know that."""
    if waiter.under_way or waiter.unsure:
        await turn.find(waiter)
    if not waiter.name or not turn.desk.is_ours(waiter):
        turn.desk.drop(waiter)
        return waiter.granted
    untouched = 0 if claim.slots >= BARRIER else -1
    answer, deleted = await turn.ask(Children(waiter.parent), Delete(waiter.path, untouched))
    listed = await turn.listed(waiter.parent, answer)
    if deleted is No.VERSION:
        await turn.ask(Delete(waiter.path))
        crossed = True
    else:
        opened = len(counting(listed.nodes)) >= claim.slots - LATCH
        crossed = waiter.granted or (claim.slots < BARRIER and opened)
    turn.desk.drop(waiter)
    return crossed

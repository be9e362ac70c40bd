"""What happens to a hold while it lasts: it changes hands, takes less, or its name gets another
size.

A node's name and life cannot be changed. So another is put in its place, with its number and its
fence (in the data, since its own czxid is younger), in one transaction: nobody sees it gone, nobody
sees it twice, and its place in the order stays. Who watches the old one is rung, and looks again.
"""

from __future__ import annotations

from lockfast.model import Claim, Gone, Granted
from lockfast.stores.zookeeper.nodes import (
    DETACHED,
    HOLDS,
    NEW,
    SESSION,
    TIMED,
    digest_of,
    facts_of,
    parsed,
)
from lockfast.stores.zookeeper.operation import Listed, Seen, Turn
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.registry import Place
from lockfast.stores.zookeeper.requests import Children, Create, Delete, Kind, No, Put, Together

GONE = Gone()
# The server's clock, seen so long ago, is as good as new.
LATELY = 60.0


async def detach(turn: Turn, claim: Claim) -> Granted | Gone:
    """From the session to nobody: a node that only its lease ends."""
    waiter = await _known(turn, claim)
    if waiter is None:
        # Done already, and the answer was lost?
        return await renew_detached(turn, claim)
    desk = turn.desk
    name = parsed(waiter.name).renamed(life=DETACHED)
    data = facts_of(claim, HOLDS, waiter.fence, waiter.since).encoded()
    create = Create(f"{waiter.parent}/{name}", data, Kind.PERSISTENT)
    waiter.unsure = True
    (answer,) = await turn.ask(Together((Delete(waiter.path), create)))
    desk.drop(waiter)
    if answer is not True:
        return GONE
    return Granted(waiter.fence, claim.lease)


async def attach(turn: Turn, claim: Claim) -> Granted | Gone:
    """From nobody to our session, if nobody else was faster."""
    seen = await _alive(turn, claim)
    if seen is None:
        return GONE
    desk = turn.desk
    parent = turn.parent(claim.name)
    life = TIMED if claim.lease < desk.session.timeout else SESSION
    name = seen.node.renamed(life=life)
    data = facts_of(claim, HOLDS, seen.fence, seen.since).encoded()
    delete = Delete(f"{parent}/{seen.node.name}", seen.stat.version)
    create = Create(f"{parent}/{name}", data, Kind.EPHEMERAL)
    (answer,) = await turn.ask(Together((delete, create)))
    if answer is not True:
        return GONE
    waiter = desk.waiter(claim.id, parent)
    waiter.adopt(name, seen.fence, desk.session.id)
    waiter.life, waiter.state, waiter.since = life, HOLDS, seen.since
    waiter.settled = waiter.granted = waiter.marked = True
    waiter.confirmed = desk.clock()
    return Granted(seen.fence, desk.grantable(claim.lease))


async def renew_detached(turn: Turn, claim: Claim) -> Granted | Gone:
    """A permit, or what else belongs to nobody."""
    seen = await _alive(turn, claim)
    return GONE if seen is None else Granted(seen.fence, claim.lease)


async def release_detached(turn: Turn, claim: Claim) -> bool:
    parent = turn.parent(claim.name)
    seen = await _alive(turn, claim)
    if seen is None:
        return False
    (answer,) = await turn.ask(Delete(f"{parent}/{seen.node.name}", seen.stat.version))
    turn.desk.use(parent)
    return answer not in (No.NODE, No.VERSION)


async def _alive(turn: Turn, claim: Claim) -> Seen | None:
    """The detached hold of this claim, renewed for the claim's lease, unless that comes too late.
    That is known when it is written: only then does the server tell the time. Too late is late:
    what ended is not brought back, but removed."""
    parent, digest = turn.parent(claim.name), digest_of(claim.id)
    while True:
        listed = await turn.look(parent)
        nodes = [one for one in listed.nodes if one.digest == digest and one.life == DETACHED]
        several = await turn.read(parent, nodes)
        if not several:
            return None
        seen = several[0]
        path = f"{parent}/{seen.node.name}"
        facts = seen.facts._replace(lease=claim.lease)
        (stat,) = await turn.ask(Put(path, facts.encoded(), seen.stat.version))
        if isinstance(stat, No):
            continue  # somebody was faster: look again
        if stat.mtime / 1e3 > seen.ends:
            await turn.ask(Delete(path, stat.version))
            turn.desk.use(parent)
            return None
        return seen._replace(stat=stat)


async def shrink(turn: Turn, claim: Claim) -> Granted | Gone:
    """The hold goes on with fewer slots."""
    waiter = await _known(turn, claim)
    if waiter is None:
        return GONE
    name = parsed(waiter.name).renamed(take=min(parsed(waiter.name).take, claim.take))
    if name != waiter.name:
        data = facts_of(claim, HOLDS, waiter.fence, waiter.since).encoded()
        create = Create(f"{waiter.parent}/{name}", data, Kind.EPHEMERAL)
        waiter.unsure = True
        (answer,) = await turn.ask(Together((Delete(waiter.path), create)))
        waiter.unsure = False
        if answer is not True:
            turn.desk.drop(waiter)
            return GONE
        waiter.name = name
    return Granted(waiter.fence, turn.desk.grantable(claim.lease))


async def _known(turn: Turn, claim: Claim) -> Place | None:
    """Our node, found again if an answer was lost."""
    waiter = turn.desk.waiters.get(claim.id)
    if waiter is not None and (waiter.unsure or waiter.under_way):
        await turn.find(waiter)
    if waiter is None or not waiter.name or not turn.desk.is_ours(waiter):
        return None
    return waiter


async def resize(turn: Turn, name: str, expected: int, slots: int) -> int:
    """Write the size on the parent. It is the size as long as any node is there that is older than
    that writing; the younger ones have said the same size, or they would not have been let in. So
    when the last of the older ones is gone, the names of the others tell it, and what is written on
    the parent means nothing any more.

    It is written in one step with a word on the first node: if that is gone, the name may be
    somebody's lock by now.

    Those who hold more than there is now go on. The order does not show them as holders any more,
    so that is written on their nodes before."""
    parent = turn.parent(name)
    await turn.know_the_time(LATELY)
    while True:
        (answer,) = await turn.ask(Children(parent))
        listed = await turn.listed(parent, answer)
        mortal = await turn.read(parent, [node for node in listed.nodes if node.life != SESSION])
        if await turn.bury(parent, mortal):
            continue
        if listed.size != expected or not listed.nodes:
            return listed.size
        if slots < expected:
            await _mark_holders(turn, parent, listed)
        several = await turn.read(parent, listed.nodes)
        if not several or several[0].node != listed.nodes[0]:
            continue
        size = Put(parent, str(slots).encode(), answer[1].version)
        (done,) = await turn.ask(Together((_touch(parent, several[0]), size)))
        if done is not True:
            continue
        if expected == 1 and len(several) > 1:
            # Who waits for one permit watches the node before it, as for a lock: it looks again.
            await turn.ask(*(_touch(parent, seen) for seen in several[1:]))
        return expected


async def _mark_holders(turn: Turn, parent: str, listed: Listed) -> None:
    holders = await turn.read(parent, listed.nodes[: holding(listed.nodes, listed.size)])
    marks = [
        Put(_at(parent, seen), seen.facts._replace(state=HOLDS).encoded(), seen.stat.version)
        for seen in holders
        if seen.facts.state == NEW
    ]
    if marks:
        await turn.ask(*marks)


def _touch(parent: str, seen: Seen) -> Put:
    """Whoever watches it is rung."""
    return Put(_at(parent, seen), seen.facts.encoded(), seen.stat.version)


def _at(parent: str, seen: Seen) -> str:
    return f"{parent}/{seen.node.name}"

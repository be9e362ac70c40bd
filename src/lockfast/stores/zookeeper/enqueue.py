"""How a claim comes to stand in the queue, whatever became of an earlier attempt with the same
id."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.model import Claim
from lockfast.stores.zookeeper.nodes import NEW, SESSION, TIMED, Node, facts_of, prefix_of
from lockfast.stores.zookeeper.operation import Listed, Turn
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.registry import Desk, Place
from lockfast.stores.zookeeper.requests import Children, Create, Kind, No, Request


async def arrive(
    turn: Turn, claim: Claim, waiter: Place, life: str = "", kind: Kind = Kind.PLACE
) -> tuple[Listed, bool]:
    """Stand in the queue, if we do not yet: the list with us in it, and whether we came just now.

    A list that comes after the making of our node, in the same session, has our node in it: if it
    has not, the node was taken away, and another is made."""
    desk = turn.desk
    while True:
        if waiter.unsure:
            await turn.find(waiter)
        if waiter.name or waiter.under_way:
            listed = await turn.look(waiter.parent)
            if waiter.name and listed.at(waiter.name) >= 0:
                return listed, False
            if waiter.name:
                waiter.forget()
            continue
        waiter.life = life or life_of(desk, claim)
        requests = _making(desk, claim, waiter, kind)
        answers = await turn.ask(*requests)
        if answers[-2] is not No.NODE:
            desk.use(waiter.parent)
            return await turn.listed(waiter.parent, answers[-1]), True
        desk.misses(waiter.parent)
        if len(requests) == 3 and answers[0] is No.NODE:
            await turn.make_root()


async def arrive_together(
    turn: Turn, claims: Sequence[Claim], waiters: Sequence[Place]
) -> list[Listed | None]:
    """The same for many that were never asked for, in one go; None where it must be tried again."""
    requests = []
    for claim, waiter in zip(claims, waiters, strict=True):
        waiter.life = life_of(turn.desk, claim)
        requests.append(_making(turn.desk, claim, waiter, Kind.PLACE))
    answers = await turn.ask(*(request for several in requests for request in several))
    listed: list[Listed | None] = []
    for several, waiter in zip(requests, waiters, strict=True):
        own, answers = answers[: len(several)], answers[len(several) :]
        if own[-2] is No.NODE:
            turn.desk.misses(waiter.parent)
            listed.append(None)
        else:
            turn.desk.use(waiter.parent)
            listed.append(await turn.listed(waiter.parent, own[-1]))
    return listed


async def is_taken(turn: Turn, claim: Claim) -> bool:
    """Look before we ask, where we asked in vain the last time. Else many who ask again and again
    for what is free would each find the node of another who asks in vain; and it writes less."""
    desk, parent = turn.desk, turn.parent(claim.name)
    if not desk.is_crowded(parent) or claim.id in desk.waiters:
        return False
    listed = await turn.look(parent)
    last = Node(2**63, "", SESSION, claim.take, claim.slots, "")
    count = holding([*listed.nodes, last], listed.size)
    mortal = any(node.life != SESSION for node in listed.nodes[:count])
    if listed.size == claim.slots and count <= len(listed.nodes) and not mortal:
        return True
    desk.crowds(parent, False)
    return False


def life_of(desk: Desk, claim: Claim) -> str:
    return TIMED if claim.lease < desk.session.timeout else SESSION


def _making(desk: Desk, claim: Claim, waiter: Place, kind: Kind) -> list[Request]:
    """Make our node, and list. Also the parent, unless it was there a moment ago: that it exists
    already is no error."""
    requests: list[Request] = []
    if not desk.knows(waiter.parent):
        requests.append(Create(waiter.parent, b"", Kind.CONTAINER))
    prefix = f"{waiter.parent}/{prefix_of(claim, waiter.life)}"
    data = facts_of(claim, NEW).encoded()
    return [*requests, Create(prefix, data, kind, waiter), Children(waiter.parent)]

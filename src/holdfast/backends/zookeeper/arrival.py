"""How a claim comes to stand in the queue, whatever became of an earlier attempt with the same
id."""

from __future__ import annotations

from typing import Any

from holdfast.backends.zookeeper.desk import Place
from holdfast.backends.zookeeper.nodes import NEW, SESSION, TIMED, facts_of, prefix_of
from holdfast.backends.zookeeper.requests import Children, Create, Kind, No, Request
from holdfast.backends.zookeeper.turn import Listed, Turn
from holdfast.model import Claim


async def arrive(
    turn: Turn, claim: Claim, place: Place, life: str = "", kind: Kind = Kind.PLACE
) -> tuple[Listed, bool]:
    """Stand in the queue, if we do not yet: the list with us in it, and whether we came just now.

    A list that comes after the making of our node, in the same session, has our node in it: if it
    has not, the node was taken away, and another is made."""
    desk = turn.desk
    while True:
        if place.unsure:
            await turn.find(place)
        if place.name or place.under_way:
            listed = await turn.look(place.parent)
            if place.name and listed.at(place.name) >= 0:
                return listed, False
            if place.name:
                place.forget()
            continue
        place.life = life or (TIMED if claim.lease < desk.session.timeout else SESSION)
        answer = await _make(turn, claim, place, kind)
        if answer is not None:
            desk.use(place.parent)
            return await turn.listed(place.parent, answer), True


async def _make(turn: Turn, claim: Claim, place: Place, kind: Kind) -> Any:
    """Make our node, and list; None: the parent was missing, and is made when we try again."""
    desk = turn.desk
    requests: list[Request] = []
    if not desk.knows(place.parent):
        requests.append(Create(place.parent, b"", Kind.CONTAINER))
    prefix = f"{place.parent}/{prefix_of(claim, place.life)}"
    data = facts_of(claim, NEW).encoded()
    requests += [Create(prefix, data, kind, place.made), Children(place.parent)]
    place.under_way = True
    answers = await turn.ask(*requests)
    if answers[-2] is not No.NODE:
        return answers[-1]
    desk.misses(place.parent)
    if len(requests) == 3 and answers[0] is No.NODE:
        await turn.make_root()
    return None

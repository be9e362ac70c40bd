"""The layout that others write: kazoo's Lock, and Curator's mutex, on one path.

The path is the lock's name itself. A child whose name ends in ten digits is a contender, and the
one with the lowest number holds. Ours is called as kazoo calls its own, `<32 hex
digits>__lock__0000000001`, so that kazoo sees it; Curator's are `_c_<guid>-lock-0000000001`. All
exclude each other. What others make ends with its session, and so does ours: nobody else would end
it by a lease. Its process does.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.backends.zookeeper.desk import Place
from holdfast.backends.zookeeper.nodes import Node, digest_of
from holdfast.backends.zookeeper.requests import (
    Children,
    Create,
    Get,
    Kind,
    No,
    Request,
    Sync,
)
from holdfast.backends.zookeeper.turn import MANY, Turn
from holdfast.core.law import REFRESH
from holdfast.errors import ConfigurationError
from holdfast.model import Busy, Capabilities, Claim, Granted, Holder, Snapshot, Waiter, Who

KAZOO = "kazoo"
CAPABILITIES = Capabilities(store="zookeeper", across="network", overtakes=False, wakes="ring")
NEVER = float("inf")

_CONTENDER = re.compile(r"(.*?)(-?\d{10})").fullmatch
_OURS = re.compile(r"([0-9a-f]{32})__lock__").fullmatch


def path_of(turn: Turn, full_name: str) -> str:
    """The name without our namespace, as a path under the chroot."""
    name = full_name.partition(":")[2].strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigurationError(f"{name!r} is not a path: write 'app/lock', as for kazoo")
    return f"{turn.desk.root.rpartition('/')[0]}/{name}"


def in_order(names: list[str]) -> list[Node]:
    found = []
    for name in names:
        match = _CONTENDER(name)
        if match is not None:
            ours = _OURS(match[1])
            found.append(Node(int(match[2]), name, "s", 1, 1, ours[1] if ours else ""))
    return sorted(found)


async def claim(turn: Turn, claim: Claim) -> Granted | Busy:
    desk = turn.desk
    asked_at = desk.clock()
    place = desk.place(claim.id, path_of(turn, claim.name))
    while True:
        nodes = await _arrive(turn, claim, place)
        at = next((at for at, node in enumerate(nodes) if node.name == place.name), -1)
        if at < 0:
            place.forget()
            continue
        if at == 0:
            place.granted, place.armed, place.confirmed = True, False, asked_at
            return Granted(place.fence, desk.grantable(claim.lease))
        if not claim.wait:
            await turn.remove(place)
            return Busy(REFRESH, 0)
        place.armed, place.recheck_at = True, NEVER
        (answer,) = await turn.ask(Get(f"{place.parent}/{nodes[at - 1].name}", place.ring))
        if answer is not No.NODE:
            return Busy(REFRESH, 0)


async def _arrive(turn: Turn, claim: Claim, place: Place) -> list[Node]:
    """Stand in the queue, if we do not yet; as `arrival.arrive`."""
    while True:
        if place.unsure:
            await _find(turn, place)
        if place.name or place.under_way:
            (answer,) = await turn.ask(Children(place.parent))
            if answer is No.NODE:
                place.forget()
            elif place.name:
                return in_order(answer[0])
            continue
        prefix = f"{place.parent}/{digest_of(claim.id)}__lock__"
        place.under_way = True
        made, answer = await turn.ask(
            Create(prefix, claim.who.encode(), Kind.PLACE, place.made), Children(place.parent)
        )
        if made is not No.NODE:
            return in_order(answer[0])
        await _make_parents(turn, place.parent)


async def _find(turn: Turn, place: Place) -> None:
    """As `Turn.find`."""
    _, answer = await turn.ask(Sync(place.parent), Children(place.parent))
    if not place.unsure:
        return
    nodes = [] if answer is No.NODE else in_order(answer[0])
    mine = digest_of(place.claim_id)
    place.forget()
    for node in nodes:
        if node.digest == mine:
            (got,) = await turn.ask(Get(f"{place.parent}/{node.name}"))
            if got is not No.NODE and got[1].ephemeralOwner == turn.desk.session.id:
                place.adopt(node.name, got[1].czxid, got[1].ephemeralOwner)
    place.unsure = False


async def _make_parents(turn: Turn, path: str) -> None:
    """The last as a container, which the server removes when nobody uses it."""
    parts = path.strip("/").split("/")
    requests: list[Request] = [
        Create("/" + "/".join(parts[: count + 1]), b"", Kind.PERSISTENT)
        for count in range(len(parts) - 1)
    ]
    await turn.ask(*requests, Create(path, b"", Kind.CONTAINER))


async def inspect(turn: Turn, name: str) -> Snapshot:
    parent = path_of(turn, name)
    (answer,) = await turn.ask(Children(parent))
    nodes = [] if answer is No.NODE else in_order(answer[0])[:MANY]
    answers = await turn.ask(*(Get(f"{parent}/{node.name}") for node in nodes)) if nodes else []
    seen = [got for got in answers if got is not No.NODE]
    holders = tuple(
        Holder(_who(got), got[1].czxid, 1, got[1].ctime / 1e3, turn.desk.session.timeout)
        for got in seen[:1]
    )
    waiters = tuple(Waiter(_who(got), 1, got[1].ctime / 1e3, True) for got in seen[1:])
    now = turn.desk.session.server_time() or 0.0
    return Snapshot(name, 1 if seen else 0, holders, waiters, now)


def _who(got: Any) -> Who:
    return Who.decoded(got[0].decode(errors="replace"))

"""The layout that others write: kazoo's Lock, and Curator's mutex, on one path.

The path is the lock's name itself. A child whose name ends in ten digits is a contender, and the
one with the lowest number holds. Ours is called as kazoo calls its own, `<32 hex
digits>__lock__0000000001`, so that kazoo sees it; Curator's are `_c_<guid>-lock-0000000001`. All
exclude each other. What others make ends with its session, and so does ours: nobody else would end
it by a lease. Its process does.
"""

from __future__ import annotations

from typing import Any

from lockfast.core.law import REFRESH
from lockfast.errors import ConfigurationError
from lockfast.model import Busy, Capabilities, Claim, Granted, Holder, Snapshot, Waiter, Who
from lockfast.stores.zookeeper.nodes import Node, contenders, digest_of
from lockfast.stores.zookeeper.operation import MANY, Turn
from lockfast.stores.zookeeper.registry import Place
from lockfast.stores.zookeeper.requests import (
    Children,
    Create,
    Get,
    Kind,
    No,
    Request,
)

KAZOO = "kazoo"
CAPABILITIES = Capabilities(store="zookeeper", across="network", overtakes=False, wakes="notify")
NEVER = float("inf")


def path_of(turn: Turn, full_name: str) -> str:
    """The name without our namespace, as a path under the chroot."""
    name = full_name.partition(":")[2].strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ConfigurationError(f"{name!r} is not a path: write 'app/lock', as for kazoo")
    return f"{turn.desk.root.rpartition('/')[0]}/{name}"


async def claim(turn: Turn, claim: Claim) -> Granted | Busy:
    desk = turn.desk
    asked_at = desk.clock()
    waiter = desk.waiter(claim.id, path_of(turn, claim.name))
    waiter.foreign = True
    while True:
        nodes = await _arrive(turn, claim, waiter)
        at = next((at for at, node in enumerate(nodes) if node.name == waiter.name), -1)
        if at < 0:
            waiter.forget()
            continue
        if at == 0:
            waiter.granted, waiter.armed, waiter.confirmed = True, False, asked_at
            return Granted(waiter.fence, desk.grantable(claim.lease))
        if not claim.wait:
            await turn.remove(waiter)
            return Busy(REFRESH, 0)
        waiter.recheck_at = NEVER
        ahead = f"{waiter.parent}/{nodes[at - 1].name}"
        (answer,) = await turn.ask(Get(ahead, waiter.watching(ahead)))
        if answer is not No.NODE:
            return Busy(REFRESH, 0)


async def _arrive(turn: Turn, claim: Claim, waiter: Place) -> list[Node]:
    """Stand in the queue, if we do not yet; as `arrival.arrive`."""
    while True:
        if waiter.unsure:
            await turn.find(waiter)
        if waiter.name or waiter.under_way:
            (answer,) = await turn.ask(Children(waiter.parent))
            if answer is No.NODE:
                waiter.forget()
            elif waiter.name:
                return contenders(answer[0])
            continue
        prefix = f"{waiter.parent}/{digest_of(claim.id)}__lock__"
        made, answer = await turn.ask(
            Create(prefix, claim.who.encode(), Kind.PLACE, waiter), Children(waiter.parent)
        )
        if made is not No.NODE:
            return contenders(answer[0])
        await _make_parents(turn, waiter.parent)


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
    nodes = [] if answer is No.NODE else contenders(answer[0])[:MANY]
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

"""What operators see and do: who holds a name and who waits, which names there are, break a
hold."""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.model import BARRIER, LATCH, Holder, Snapshot, Waiter, Who
from lockfast.stores.zookeeper.latches import counting
from lockfast.stores.zookeeper.nodes import DETACHED, HOLDS, PASSED, SESSION, unescaped
from lockfast.stores.zookeeper.operation import MANY, Listed, Seen, Turn
from lockfast.stores.zookeeper.order import holding
from lockfast.stores.zookeeper.requests import Children, Delete, No

# How long ago the server's clock may have been seen. It drifts less than matters for people.
LATELY = 5.0


async def inspect(turn: Turn, name: str) -> Snapshot:
    parent = turn.parent(name)
    listed = await turn.look(parent)
    now = await turn.know_the_time(LATELY)
    living = await _living(turn, parent, listed, now)
    size = listed.size if living else 0
    holders = _holders(living, size)
    # What counts a latch down is forgotten together, when the newest is.
    newest = max((seen.ends for seen in living), default=0.0) if LATCH < size < BARRIER else None
    held = {seen.node.name for seen in holders}
    return Snapshot(
        name,
        size,
        tuple(
            Holder(
                Who.decoded(seen.facts.who),
                seen.fence,
                seen.node.take,
                seen.since,
                _remaining(turn, parent, seen, newest or seen.ends, now),
            )
            for seen in sorted(holders, key=lambda seen: seen.fence)
        ),
        tuple(
            Waiter(Who.decoded(seen.facts.who), seen.node.take, seen.since, seen.facts.fair)
            for seen in living
            if seen.node.name not in held
        ),
        now,
    )


async def _living(turn: Turn, parent: str, listed: Listed, now: float) -> list[Seen]:
    """Without those whose lease is over; which are removed, if nobody else would do it."""
    everybody = await turn.read(parent, listed.nodes)
    counters = {node.name for node in counting(listed.nodes)}
    newest = max((seen.ends for seen in everybody if seen.node.name in counters), default=0.0)
    living: list[Seen] = []
    dead: list[Seen] = []
    for at, seen in enumerate(everybody):
        ends = newest if seen.node.name in counters else seen.ends
        held = at < holding(listed.nodes, listed.size) or seen.node.life == DETACHED
        over = seen.node.life != SESSION and held and ends <= now
        (dead if over else living).append(seen)
    if dead:
        deletes = [Delete(f"{parent}/{seen.node.name}", seen.stat.version) for seen in dead]
        await turn.ask(*deletes)
        turn.desk.use(parent)
    return living


def _holders(living: Sequence[Seen], size: int) -> list[Seen]:
    if size >= BARRIER:
        return [seen for seen in living if seen.facts.state == PASSED]
    if size >= LATCH:
        return [seen for seen in living if seen.node.take]
    count = holding([seen.node for seen in living], size)
    # A semaphore that became smaller has more.
    return [seen for at, seen in enumerate(living) if at < count or seen.facts.state == HOLDS]


def _remaining(turn: Turn, parent: str, seen: Seen, ends: float, now: float) -> float:
    """By its lease, or by its session: of our own we know when it was heard of last; another's may
    have been heard of just now."""
    desk = turn.desk
    lease = min(ends - now, seen.facts.lease)  # our knowledge of the server's clock is a bit late
    if seen.node.life == DETACHED:
        return lease
    rest = desk.session.timeout
    for waiter in list(desk.waiters.values()):
        if waiter.name == seen.node.name and waiter.parent == parent:
            rest += waiter.confirmed - desk.clock()
    return rest if seen.node.life == SESSION else min(rest, lease)


async def names(turn: Turn, prefix: str) -> list[str]:
    """Names that somebody holds or waits for. An empty parent is nobody's, and will be removed."""
    (answer,) = await turn.ask(Children(turn.desk.root))
    if answer is No.NODE:
        return []
    now = await turn.know_the_time(LATELY)
    wanted = sorted(name for part in answer[0] if (name := unescaped(part)).startswith(prefix))
    found = []
    for start in range(0, len(wanted), MANY):
        some = [name for name in wanted[start : start + MANY] if name]
        lists = await turn.ask(*(Children(turn.parent(name)) for name in some))
        for name, one in zip(some, lists, strict=True):
            listed = await turn.listed(turn.parent(name), one)
            lives = any(node.life == SESSION for node in listed.nodes)
            if lives or (listed.nodes and await _living(turn, turn.parent(name), listed, now)):
                found.append(name)
    return found


async def break_hold(turn: Turn, name: str, fence: int) -> bool:
    """Every later node has a greater czxid, and so a greater fence."""
    parent = turn.parent(name)
    listed = await turn.look(parent)
    now = await turn.know_the_time(LATELY)
    living = await _living(turn, parent, listed, now)
    for seen in _holders(living, listed.size):
        if seen.fence == fence:
            (answer,) = await turn.ask(Delete(f"{parent}/{seen.node.name}"))
            turn.desk.use(parent)
            return answer is not No.NODE
    return False

"""The queue of a name: list it, enter it, take the hold or watch the node that blocks it.

Each function is a part of a verb: it yields batches of requests, and receives their replies (see
`stores.steps`). `nodes` says which node holds and what each waiter watches.

**The layout of kazoo and Curator** is the same queue on another path, the lock's name itself. Each
child whose name ends in ten digits takes the only slot. Our nodes are named like kazoo's, `<32 hex
digits>__lock__0000000001`, so that kazoo sees them; Curator's are `_c_<guid>-lock-0000000001`.
Their nodes end with their session, and so do ours: no other client would enforce a lease. Our own
process enforces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.law import REFRESH
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.stores.steps import Steps
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.nodes import (
    DETACHED,
    HOLDS,
    NEW,
    SESSION,
    TIMED,
    WAITS,
    Listed,
    Node,
    Position,
    digest_of,
    facts_of,
    holding,
    position_of,
    prefix_of,
)
from lockfast.stores.zookeeper.registry import QueueEntry, Registry, make_path

NEVER = float("inf")


# ---- enter ---------------------------------------------------------------------------------------


def enqueue(
    registry: Registry,
    claims: Sequence[Claim],
    entries: Sequence[QueueEntry],
    lifetime: str = "",
    kind: zk.Kind = zk.Kind.EPHEMERAL_SEQUENTIAL,
) -> Steps[list[tuple[Listed, bool]]]:
    """Create the claims' nodes unless they exist, whatever became of an earlier attempt; for each
    the list with its node, and whether that is new. A list requested after the create, in the same
    session, contains our node, or it was deleted: then make another."""
    found: list[tuple[Listed, bool] | None] = [None] * len(claims)
    while True:
        uncertain = [entry for entry in entries if entry.uncertain]
        if uncertain:
            yield from find_own_nodes(registry, uncertain)
        requests: list[list[zk.Request]] = []
        for claim, entry, done in zip(claims, entries, found, strict=True):
            if done is not None:
                requests.append([])
            elif entry.name or entry.in_flight:
                requests.append([zk.Children(entry.parent)])
            else:
                entry.lifetime = lifetime or lifetime_of(registry, claim, entry.foreign)
                requests.append(_create_requests(registry, claim, entry, kind))
        answers = yield [request for own in requests for request in own]
        missing: list[zk.Request] = []
        start = 0
        for at, own in enumerate(requests):
            got, start = answers[start : start + len(own)], start + len(own)
            entry = entries[at]
            if len(own) > 1 and got[-2] is zk.Refusal.NO_NODE:
                registry.forget_parent(entry.parent)
                if entry.foreign or (len(own) == 3 and got[0] is zk.Refusal.NO_NODE):
                    missing += _parents_of(entry)
            elif own:
                listed = yield from registry.parse_list(entry.parent, got[-1], entry.foreign)
                if len(own) > 1:
                    if not entry.foreign:
                        registry.use_parent(entry.parent)
                    found[at] = (listed, True)
                elif entry.name and listed.at(entry.name) >= 0:
                    found[at] = (listed, False)
                elif entry.name:
                    entry.reset()
        if None not in found:
            return [one for one in found if one is not None]
        yield missing


def _create_requests(
    registry: Registry, claim: Claim, entry: QueueEntry, kind: zk.Kind
) -> list[zk.Request]:
    """Requests that create the parent, unless it existed a moment ago, create our node, and list
    the name. That the parent exists already is no error."""
    if entry.foreign:
        prefix, data = f"{digest_of(claim.id)}__lock__", claim.who.encode()
    else:
        prefix, data = prefix_of(claim, entry.lifetime), facts_of(claim, NEW).encoded()
    own = zk.Create(f"{entry.parent}/{prefix}", data, kind, entry)
    if entry.foreign or registry.knows_parent(entry.parent):
        return [own, zk.Children(entry.parent)]
    return [zk.Create(entry.parent, b"", zk.Kind.CONTAINER), own, zk.Children(entry.parent)]


def _parents_of(entry: QueueEntry) -> list[zk.Request]:
    """Requests that create the nodes above the parent, and the parent itself in kazoo's layout: a
    container, which the server removes when it is empty."""
    creates: list[zk.Request] = make_path(entry.parent.rpartition("/")[0])
    return [*creates, zk.Create(entry.parent, b"", zk.Kind.CONTAINER)] if entry.foreign else creates


def lifetime_of(registry: Registry, claim: Claim, foreign: bool = False) -> str:
    return TIMED if claim.lease < registry.session.timeout and not foreign else SESSION


def is_taken(registry: Registry, claim: Claim) -> Steps[bool]:
    """Is the name taken? Asked before a claim where the last was refused: otherwise clients that
    poll a free name would find each other's nodes, and none would get it. It also writes less."""
    parent = registry.parent(claim.name, claim.layout)
    if not registry.is_contended(parent) or claim.id in registry.entries:
        return False
    listed = yield from registry.list_nodes(parent, bool(claim.layout))
    last = Node(2**63, "", SESSION, claim.take, claim.slots, "")
    count = holding([*listed.nodes, last], listed.size)
    expiring = any(node.lifetime != SESSION for node in listed.nodes[:count])
    if listed.size == claim.slots and count <= len(listed.nodes) and not expiring:
        return True
    registry.mark_contended(parent, False)
    return False


# ---- take or watch -------------------------------------------------------------------------------


def answer_claim(
    registry: Registry, claim: Claim, entry: QueueEntry, listed: Listed, fresh: bool
) -> Steps[Granted | Busy | Differs]:
    """Take the hold, or watch what blocks it, until no newer list says otherwise."""
    while True:
        answer = yield from _take_or_watch(registry, claim, entry, listed, fresh)
        if answer is None:  # our node was deleted: others considered it expired
            entry.reset()
            ((listed, fresh),) = yield from enqueue(registry, [claim], [entry])
        elif isinstance(answer, Listed):
            listed, fresh = answer, False
        else:
            return answer


def _take_or_watch(
    registry: Registry, claim: Claim, entry: QueueEntry, listed: Listed, fresh: bool
) -> Steps[Granted | Busy | Differs | Listed | None]:
    """Answer the claim; a newer list to decide by; None: the claim's node is not in the list."""
    at = listed.at(entry.name)
    if at < 0:
        return None
    size = entry.size = listed.size
    entry.version = listed.version
    if not entry.granted:
        if claim.take > size or (not entry.size_checked and size != claim.slots):
            # The name has another kind or size, unless the nodes that define it have expired.
            before = [node for node in listed.nodes[:at] if node.lifetime != SESSION]
            seen = yield from registry.read_nodes(before)
            if (yield from registry.delete_expired(seen)):
                return (yield from registry.list_nodes(entry.parent))
            return Differs(size)
        entry.size_checked = True
    position = position_of(listed.nodes, at, size)
    if position.holds or entry.granted:
        return (yield from _take(registry, claim, entry, position, fresh))
    return (yield from _watch(registry, claim, entry, position))


def _take(
    registry: Registry, claim: Claim, entry: QueueEntry, position: Position, fresh: bool
) -> Steps[Granted | None]:
    """Take the hold. Its node is written to if the lease begins now and not when the node was
    created. A waiter of a semaphore writes as well: the next waiter watches for that."""
    restarts = entry.lifetime == TIMED and not fresh
    waited = entry.state == WAITS or position.followed
    if restarts or (position.shared and waited and not entry.marked):
        (answer,) = yield [rewrite(claim, entry, HOLDS)]
        if answer is zk.Refusal.NO_NODE:
            return None
        entry.marked, entry.state = True, HOLDS
    entry.granted, entry.armed = True, False
    return Granted(entry.fence, registry.valid_for(claim.lease))


def _watch(
    registry: Registry, claim: Claim, entry: QueueEntry, position: Position
) -> Steps[Busy | Listed]:
    """Watch the node ahead or, as the first waiter of a semaphore, the children and the size: it
    gets the next free slot. A newer list if what blocks us is gone or its lease is over."""
    ahead, expiring = position.ahead, position.expiring
    if ahead is not None and not (claim.wait or expiring):
        return Busy(REFRESH, 0)
    read = expiring if ahead is None else (ahead,)
    requests: list[zk.Request] = [
        zk.Get(node.path, entry.arm(node.path) if claim.wait and ahead is not None else None)
        for node in read
    ]
    requests += _mark_waiting(claim, entry)
    if position.shared:
        # The node ahead may have become a holder before the watch was set, and will not write
        # again. The size may change.
        wake = entry.arm(entry.parent) if claim.wait else None
        requests.append(zk.Exists(entry.parent, wake))
        requests.append(zk.Children(entry.parent, None if ahead is not None else wake))
    answers = yield requests
    waits = _is_waiting(claim, entry, answers[len(read) :])
    seen = registry.decode(expiring, answers[: len(expiring)])
    over = yield from registry.delete_expired(seen)
    if over or not waits or (ahead is not None and answers[0] is zk.Refusal.NO_NODE):
        return (yield from registry.list_nodes(entry.parent, entry.foreign))
    if position.shared:
        listed = yield from registry.parse_list(entry.parent, answers[-1])
        at = listed.at(entry.name)
        if at < 0 or position_of(listed.nodes, at, listed.size) != position:
            return listed
    left = min((registry.time_left(one) for one in seen), default=NEVER)
    entry.recheck_at = registry.clock() + left
    return Busy(min(left, REFRESH), 0)


def _mark_waiting(claim: Claim, entry: QueueEntry) -> list[zk.Request]:
    """Record on our node that its lease has not begun, where others would end it by its lease."""
    if not claim.wait or entry.state != NEW or entry.lifetime != TIMED:
        return []
    return [rewrite(claim, entry, WAITS)]


def _is_waiting(claim: Claim, entry: QueueEntry, answers: Sequence[Any]) -> bool:
    """Record the answer to `_mark_waiting`. False: our node is gone."""
    if claim.wait and entry.state == NEW:
        entry.state = WAITS
        return entry.lifetime != TIMED or zk.Refusal.NO_NODE not in answers
    return True


def rewrite(claim: Claim, entry: QueueEntry, state: str) -> zk.Put:
    """Write the data of our node again: its lease begins now."""
    return zk.Put(entry.path, facts_of(claim, state, entry.fence, entry.since).encoded())


# ---- our own nodes -------------------------------------------------------------------------------


def find_own_nodes(registry: Registry, entries: Sequence[QueueEntry]) -> Steps[list[list[str]]]:
    """Find the entries' nodes after a lost answer. The server may lag behind the one that took the
    request, so a `Sync` comes first. A node of another session is not ours. Returns for each the
    paths of the claim's detached nodes, which a `detach` with a lost answer may have left."""
    answers = yield [
        one for entry in entries for one in (zk.Sync(entry.parent), zk.Children(entry.parent))
    ]
    lists: list[Listed] = []
    for entry, answer in zip(entries, answers[1::2], strict=True):
        lists.append((yield from registry.parse_list(entry.parent, answer, entry.foreign)))
    ours = [
        [node for node in listed.nodes if node.digest == digest_of(entry.claim_id)]
        for entry, listed in zip(entries, lists, strict=True)
    ]
    got = iter((yield [zk.Get(node.path) for nodes in ours for node in nodes]))
    detached: list[list[str]] = []
    for entry, listed, nodes in zip(entries, lists, ours, strict=True):
        # If the create was in flight, and its answer arrived meanwhile, the entry is certain.
        detached.append(_adopt(registry, entry, listed, [(node, next(got)) for node in nodes]))
    return detached


def _adopt(
    registry: Registry, entry: QueueEntry, listed: Listed, found: list[tuple[Node, Any]]
) -> list[str]:
    """Record which of the claim's nodes is ours, unless that is certain; the detached ones."""
    if not entry.uncertain:
        return []
    lasts = entry.lifetime == DETACHED
    owner = 0 if lasts else registry.session.id
    granted, size_checked = entry.granted, entry.size_checked
    entry.reset()
    entry.size, entry.version = listed.size, listed.version
    detached: list[str] = []
    for node, answer in found:
        if answer is zk.Refusal.NO_NODE:
            continue
        if (node.lifetime == DETACHED) == lasts and answer[1].ephemeralOwner == owner:
            (seen,) = registry.decode([node], [answer], entry.foreign)
            entry.adopt(node.name, seen.fence, owner)
            entry.granted, entry.size_checked = granted, size_checked
            entry.lifetime, entry.since, entry.state = node.lifetime, seen.since, seen.facts.state
        elif node.lifetime == DETACHED:
            detached.append(node.path)
    entry.uncertain = False
    return detached


def remove(registry: Registry, entries: Sequence[QueueEntry]) -> Steps[list[bool]]:
    """Delete our nodes, in one batch; for each, whether there was one."""
    unsure = [entry for entry in entries if entry.in_flight or entry.uncertain]
    left = iter((yield from find_own_nodes(registry, unsure)) if unsure else ())
    paths: list[tuple[int, str]] = []
    for number, entry in enumerate(entries):
        if entry in unsure:
            paths += [(number, path) for path in next(left)]
        if entry.name and registry.is_ours(entry):
            paths.append((number, entry.path))
    answers = yield [zk.Delete(path) for _, path in paths]
    there = [False] * len(entries)
    for (number, _), answer in zip(paths, answers, strict=True):
        there[number] |= answer is not zk.Refusal.NO_NODE
    for entry in entries:
        registry.discard(entry)
    return there

"""What several nodes see of one name, put together for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.backends.redis.quorum.votes import majority_of
from holdfast.model import Holder, Snapshot


def together(name: str, views: Sequence[Snapshot], size: int) -> Snapshot:
    """Who holds it at a majority, or may, counting those that did not answer; until when a majority
    says so. Who waits, as the node tells that knows most of them: their lines may differ."""
    majority, silent = majority_of(size), size - len(views)
    seen: dict[tuple[object, int], list[Holder]] = {}
    for view in views:
        for holder in view.holders:
            seen.setdefault((holder.who, holder.fence), []).append(holder)
    holders = []
    told = set()
    for (who, _), rows in sorted(seen.items(), key=lambda item: -len(item[1])):
        # As long as its fence is not settled, one hold looks like two.
        if len(rows) + silent >= majority and not (silent and who in told):
            told.add(who)
            rests = sorted((row.remaining for row in rows), reverse=True)
            rest = rests[min(majority, len(rests)) - 1]
            holders.append(replace(rows[0], remaining=rest, since=min(row.since for row in rows)))
    holders.sort(key=lambda holder: holder.fence)
    longest = max(views, key=lambda view: len(view.waiters))
    slots = max((view.slots for view in views), default=0)
    crossed = sum(view.crossed for view in views) >= majority
    now = sorted(view.now for view in views)[len(views) // 2]
    return Snapshot(name, slots, tuple(holders), longest.waiters, now, crossed)

"""Merge the snapshots that several nodes return of one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockfast.model import Holder, Snapshot, Waiter
from lockfast.stores.redlock.votes import majority_of


def merge_snapshots(name: str, views: Sequence[Snapshot], size: int) -> Snapshot:
    """Merge the views of the nodes that answered, out of ``size``.

    A hold is shown if a majority has it, or may have it, counting nodes that did not answer; it
    lasts as long as it does at a majority. Waiters are shown by the same rule, in the order of the
    node with the longest queue: the queues of the nodes may differ.
    """
    majority = majority_of(size)
    holders = []
    for rows in _holds(views, majority, size - len(views)):
        remaining = sorted((row.remaining for row in rows), reverse=True)
        rest = remaining[min(majority, len(remaining)) - 1]
        fence, since = max(row.fence for row in rows), min(row.since for row in rows)
        holders.append(replace(rows[0], fence=fence, remaining=rest, since=since))
    holders.sort(key=lambda holder: holder.fence)
    waiters = tuple(_waiters(views, majority - (size - len(views))))
    slots = max((view.slots for view in views), default=0)
    crossed = sum(view.crossed for view in views) >= majority
    now = sorted(view.now for view in views)[len(views) // 2]
    return Snapshot(name, slots, tuple(holders), waiters, now, crossed)


def _waiters(views: Sequence[Snapshot], least: int) -> Iterator[Waiter]:
    """Yield the waiters that at least ``least`` nodes know. A new holder may still be in the queue
    of a node that its claim has not reached."""
    queues = [Counter(map(_request, view.waiters)) for view in views]
    rest = {
        request: sorted((queue[request] for queue in queues), reverse=True)[least - 1]
        for request in set().union(*queues)
    }
    for view in sorted(views, key=lambda view: -len(view.waiters)):
        for waiter in view.waiters:
            if rest[_request(waiter)] > 0:
                rest[_request(waiter)] -= 1
                yield waiter


def _request(waiter: Waiter) -> tuple[object, int, bool]:
    return waiter.who, waiter.take, waiter.fair


def _holds(views: Sequence[Snapshot], majority: int, silent: int) -> Iterator[list[Holder]]:
    """Yield the rows of each hold. Its rows have one fence at a majority once the fence is settled;
    until then they only have the owner in common."""
    fences: dict[tuple[object, int], list[Holder]] = {}
    for view in views:
        for row in view.holders:
            fences.setdefault((row.who, row.fence), []).append(row)
    unsettled: dict[object, list[Holder]] = {}
    settled = set()
    for (who, _), rows in sorted(fences.items(), key=lambda item: -len(item[1])):
        if len(rows) >= majority:
            settled.add(who)
            yield rows
        else:
            unsettled.setdefault(who, []).extend(rows)
    for who, rows in unsettled.items():
        if len(rows) + silent >= majority and who not in settled:
            yield rows

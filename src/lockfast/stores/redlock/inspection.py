"""What several nodes see of one name, put together for operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockfast.model import Holder, Snapshot, Waiter
from lockfast.stores.redlock.votes import majority_of


def together(name: str, views: Sequence[Snapshot], size: int) -> Snapshot:
    """Who holds it at a majority, or may, counting those that did not answer; until when a majority
    says so. Who waits at a majority, or may, in the line of the node that knows most of them: their
    lines may differ."""
    majority = majority_of(size)
    holders = []
    for rows in _holds(views, majority, size - len(views)):
        rests = sorted((row.remaining for row in rows), reverse=True)
        rest = rests[min(majority, len(rests)) - 1]
        fence, since = max(row.fence for row in rows), min(row.since for row in rows)
        holders.append(replace(rows[0], fence=fence, remaining=rest, since=since))
    holders.sort(key=lambda holder: holder.fence)
    waiters = tuple(_waiters(views, majority - (size - len(views))))
    slots = max((view.slots for view in views), default=0)
    crossed = sum(view.crossed for view in views) >= majority
    now = sorted(view.now for view in views)[len(views) // 2]
    return Snapshot(name, slots, tuple(holders), waiters, now, crossed)


def _waiters(views: Sequence[Snapshot], least: int) -> Iterator[Waiter]:
    """Those that at least so many nodes know. Who has just got it may still stand in the line of a
    node that has not heard of it."""
    lines = [Counter(map(_asks, view.waiters)) for view in views]
    rest = {
        asks: sorted((line[asks] for line in lines), reverse=True)[least - 1]
        for asks in set().union(*lines)
    }
    for view in sorted(views, key=lambda view: -len(view.waiters)):
        for waiter in view.waiters:
            if rest[_asks(waiter)] > 0:
                rest[_asks(waiter)] -= 1
                yield waiter


def _asks(waiter: Waiter) -> tuple[object, int, bool]:
    return waiter.who, waiter.take, waiter.fair


def _holds(views: Sequence[Snapshot], majority: int, silent: int) -> Iterator[list[Holder]]:
    """The rows of each hold. They have one fence at a majority, or will when it is settled: until
    then who has it is what they have in common."""
    fences: dict[tuple[object, int], list[Holder]] = {}
    for view in views:
        for row in view.holders:
            fences.setdefault((row.who, row.fence), []).append(row)
    loose: dict[object, list[Holder]] = {}
    told = set()
    for (who, _), rows in sorted(fences.items(), key=lambda item: -len(item[1])):
        if len(rows) >= majority:
            told.add(who)
            yield rows
        else:
            loose.setdefault(who, []).extend(rows)
    for who, rows in loose.items():
        if len(rows) + silent >= majority and who not in told:
            yield rows

"""`lockfast show NAME`: who holds it, since when, and who waits, in order."""

from __future__ import annotations

import argparse
import json

from lockfast.cli.admin import Address, Desk, Sight
from lockfast.cli.options import HELP, add_json, add_once, add_store, client_of, exits
from lockfast.cli.render import (
    document,
    held_for,
    kind_and_size,
    kind_cell,
    lease_left,
    mode,
    taken,
    waits_for,
    whose,
)
from lockfast.cli.sanitize import quoted, shown
from lockfast.cli.table import Column, room, table

HOLDERS = (
    Column("HOLDER", cuts=True),
    Column("TAKES", right=True),
    Column("FENCE", right=True),
    Column("HELD FOR", right=True),
    Column("LEASE", right=True),
)
WAITERS = (
    Column("PLACE", right=True),
    Column("WAITER", cuts=True),
    Column("TAKES", right=True),
    Column("ORDER"),
    Column("WAITS FOR", right=True),
)
EPILOG = f"""\
LEASE is what is left unless the holder renews it: one that is alive does so at a third of the
lease, so a rest that goes down to nothing is that of a holder that is dead, paused or cut off.
Those who wait are served from place 1 on; ORDER any asked to be served as soon as it fits.

examples:
  lockfast show nightly-report
  lockfast show nightly-report --json | jq .holders[0].fence
  lockfast show refresh-rates --once

{exits("done, also if nobody holds it")}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Who holds a name, since when, under which fence, and who waits, in order."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("-w", "--wide", action="store_true", help="cut nothing to fit the screen")
    add_once(parser)
    add_json(parser)
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    with client_of(given) as client:
        desk = Desk(client)
        sight = desk.look(desk.address(given.name, once=given.once))
    if given.json:
        print(json.dumps({"store": desk.store, **document(sight)}, indent=2))
        return 0
    print(headline(sight, desk))
    for lines in (holders(sight, given.wide), waiters(sight, given.wide)):
        if lines:
            print("", *lines, sep="\n")
    if sight.snapshot.holders:
        fence = sight.snapshot.holders[0].fence
        print(f"\nTo end a hold: {break_words(sight.address, desk, fence)}")
    return 0


def headline(sight: Sight, desk: Desk) -> str:
    """Name, kind, how much is taken, how many wait, and where."""
    address, snapshot = sight
    where = f"(namespace {address.namespace}, {shown(desk.store)})"
    if sight.is_free:
        return f"{shown(address.name)}: free, nobody holds it or waits {where}"
    kind, size = kind_and_size(snapshot)
    if address.once:
        said = "runs once per period"
    elif size is None:
        said = f"{kind}, {kind_cell(sight).removeprefix('rwlock').strip() or 'free'}"
    else:
        said = f"{kind}, {taken(snapshot)} of {size} {'came' if kind == 'barrier' else 'taken'}"
    count = len(snapshot.waiters)
    waits = f", {count} {'waits' if count == 1 else 'wait'}" if count else ""
    return f"{shown(address.name)}: {said}{waits} {where}"


def holders(sight: Sight, wide: bool) -> list[str]:
    snapshot = sight.snapshot
    rows = [
        [
            whose(holder.who),
            _takes(holder.take, snapshot.slots),
            str(holder.fence),
            held_for(holder, snapshot),
            lease_left(holder),
        ]
        for holder in snapshot.holders
    ]
    return table(HOLDERS, rows, room(wide=wide)) if rows else []


def waiters(sight: Sight, wide: bool) -> list[str]:
    snapshot = sight.snapshot
    hurried = any(not waiter.fair for waiter in snapshot.waiters)
    rows = [
        [
            str(position),
            whose(waiter.who),
            _takes(waiter.take, snapshot.slots),
            ("turn" if waiter.fair else "any") if hurried else "",
            waits_for(waiter, snapshot),
        ]
        for position, waiter in enumerate(snapshot.waiters, 1)
    ]
    return table(WAITERS, rows, room(wide=wide)) if rows else []


def break_words(address: Address, desk: Desk, fence: int) -> str:
    """What would end this hold. Without the URL, which may hold a password."""
    words = ["lockfast", "break", quoted(address.name), "--fence", str(fence)]
    if address.once:
        words.append("--once")
    if address.namespace != "default":
        words += ["--namespace", address.namespace]
    return " ".join(words)


def _takes(take: int, slots: int) -> str:
    return mode(take, slots) or ("" if slots == 1 else str(take))

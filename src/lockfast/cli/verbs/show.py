"""`lockfast show NAME`: show the holders of a name, and its waiters in order."""

from __future__ import annotations

import argparse
import json

from lockfast.cli.admin import Address, Admin, Inspection
from lockfast.cli.options import HELP, add_json, add_once, add_store, client_of, exits
from lockfast.cli.render import (
    describe,
    document,
    held_for,
    kind_and_size,
    kind_cell,
    lease_left,
    mode,
    taken,
    waiting_for,
)
from lockfast.cli.sanitize import escaped, shell_quoted
from lockfast.cli.table import Column, room, table

HOLDERS = (
    Column("HOLDER", shortens=True),
    Column("TAKES", right=True),
    Column("FENCE", right=True),
    Column("HELD FOR", right=True),
    Column("LEASE", right=True),
)
WAITERS = (
    Column("POSITION", right=True),
    Column("WAITER", shortens=True),
    Column("TAKES", right=True),
    Column("ORDER"),
    Column("WAITING", right=True),
)
EPILOG = f"""\
columns:
  TAKES     slots of a semaphore, or read or write
  FENCE     number that grows with every hold; lockfast break needs it
  LEASE     how long the hold still lasts if it is not renewed. A live holder renews after a third
            of its lease; if LEASE falls to zero, the holder is dead, paused or disconnected
  POSITION  in the queue; position 1 is served next
  ORDER     fair: in order of arrival; any: as soon as it fits, ahead of others if need be
  WAITING   how long it has waited

examples:
  lockfast show nightly-report
  lockfast show nightly-report --json | jq .holders[0].fence
  lockfast show refresh-rates --once

{exits("done, even if the name is free")}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the holders of a name, their fences and leases, and the waiters in order."
    )
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    parser.add_argument("name", metavar="NAME", help="name of the lock")
    parser.add_argument(
        "-w", "--wide", action="store_true", help="do not shorten columns to fit the screen"
    )
    add_once(parser)
    add_json(parser)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        admin = Admin(client)
        inspection = admin.inspect(admin.address(args.name, once=args.once))
    if args.json:
        print(json.dumps({"store": admin.store, **document(inspection)}, indent=2))
        return 0
    print(headline(inspection, admin))
    for lines in (holders(inspection, args.wide), waiters(inspection, args.wide)):
        if lines:
            print("", *lines, sep="\n")
    if inspection.snapshot.holders:
        fence = inspection.snapshot.holders[0].fence
        print(f"\nTo break a hold: {break_command(inspection.address, fence)}")
    return 0


def headline(inspection: Inspection, admin: Admin) -> str:
    """Format the name, its kind, slots taken, number of waiters, namespace and store."""
    address, snapshot = inspection
    where = f"(namespace {address.namespace}, {escaped(admin.store)})"
    if inspection.is_free:
        return f"{escaped(address.name)}: free, no holders, no waiters {where}"
    kind, size = kind_and_size(snapshot)
    if address.once:
        state = "runs once per period"
    elif size is None:
        state = f"{kind}, {kind_cell(inspection).removeprefix('rwlock').strip() or 'free'}"
    else:
        verb = "arrived" if kind == "barrier" else "taken"
        state = f"{kind}, {taken(snapshot)} of {size} {verb}"
    count = len(snapshot.waiters)
    waiting = f", {count} waiting" if count else ""
    return f"{escaped(address.name)}: {state}{waiting} {where}"


def holders(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    rows = [
        [
            describe(holder.who),
            _takes(holder.take, snapshot.slots),
            str(holder.fence),
            held_for(holder, snapshot),
            lease_left(holder),
        ]
        for holder in snapshot.holders
    ]
    return table(HOLDERS, rows, room(wide=wide)) if rows else []


def waiters(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    has_unfair = any(not waiter.fair for waiter in snapshot.waiters)
    rows = [
        [
            str(position),
            describe(waiter.who),
            _takes(waiter.take, snapshot.slots),
            ("fair" if waiter.fair else "any") if has_unfair else "",
            waiting_for(waiter, snapshot),
        ]
        for position, waiter in enumerate(snapshot.waiters, 1)
    ]
    return table(WAITERS, rows, room(wide=wide)) if rows else []


def break_command(address: Address, fence: int) -> str:
    """Command line that breaks this hold, without the URL, which may contain a password."""
    command = ["lockfast", "break", shell_quoted(address.name), "--fence", str(fence)]
    if address.once:
        command.append("--once")
    if address.namespace != "default":
        command += ["--namespace", address.namespace]
    return " ".join(command)


def _takes(take: int, slots: int) -> str:
    return mode(take, slots) or ("" if slots == 1 else str(take))

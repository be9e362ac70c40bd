"""`lockfast show NAME`: show the holders of a name, and its waiters in order."""

from __future__ import annotations

import argparse
import json

from lockfast.cli import render
from lockfast.cli.admin import Address, Admin, Inspection
from lockfast.cli.options import add_json, add_once, add_store, add_wide, client_of, exits, explain
from lockfast.cli.sanitize import escaped, shell_quoted
from lockfast.cli.table import Column, right_aligned, room, table

HOLDERS = (Column("HOLDER", shortens=True), *right_aligned("TAKES", "FENCE", "HELD FOR", "LEASE"))
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
    what = "Show the holders of a name, their fences and leases, and the waiters in order."
    explain(parser, what, EPILOG)
    parser.add_argument("name", metavar="NAME", help="name of the lock")
    add_wide(parser)
    add_once(parser)
    add_json(parser)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        admin = Admin(client)
        inspection = admin.inspect(admin.address(args.name, once=args.once))
    if args.json:
        print(json.dumps({"store": admin.store, **render.document(inspection)}, indent=2))
        return 0
    print(headline(inspection, admin))
    for lines in (holders(inspection, args.wide), waiters(inspection, args.wide)):
        if lines:
            print("", *lines, sep="\n")
    if inspection.snapshot.holders:
        command = break_command(inspection.address, inspection.snapshot.holders[0].fence)
        print(f"\nTo break a hold: {command}")
    return 0


def headline(inspection: Inspection, admin: Admin) -> str:
    """Format the name, its kind, slots taken, number of waiters, namespace and store."""
    address, snapshot = inspection
    where = f"(namespace {address.namespace}, {escaped(admin.store)})"
    if inspection.is_free:
        return f"{escaped(address.name)}: free, no holders, no waiters {where}"
    kind, size = render.kind_and_size(snapshot)
    if address.once:
        state = "runs once per period"
    elif size is None:
        state = f"{kind}, {render.kind_cell(inspection).removeprefix('rwlock').strip() or 'free'}"
    else:
        verb = "arrived" if kind == "barrier" else "taken"
        state = f"{kind}, {render.taken(snapshot)} of {size} {verb}"
    waiting = f", {len(snapshot.waiters)} waiting" if snapshot.waiters else ""
    return f"{escaped(address.name)}: {state}{waiting} {where}"


def holders(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    rows = []
    for holder in snapshot.holders:
        takes, held = _takes(holder.take, snapshot.slots), render.held_for(holder, snapshot)
        left = render.lease_left(holder)
        rows.append([render.describe(holder.who), takes, str(holder.fence), held, left])
    return table(HOLDERS, rows, room(wide=wide)) if rows else []


def waiters(inspection: Inspection, wide: bool) -> list[str]:
    snapshot = inspection.snapshot
    has_unfair = any(not waiter.fair for waiter in snapshot.waiters)
    rows = []
    for position, waiter in enumerate(snapshot.waiters, 1):
        takes = _takes(waiter.take, snapshot.slots)
        order = ("fair" if waiter.fair else "any") if has_unfair else ""
        waiting = render.waiting_for(waiter, snapshot)
        rows.append([str(position), render.describe(waiter.who), takes, order, waiting])
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
    return render.mode(take, slots) or ("" if slots == 1 else str(take))

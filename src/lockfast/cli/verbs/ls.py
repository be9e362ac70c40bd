"""`lockfast ls [PREFIX]`: list the names that are held or waited for, one line each."""

from __future__ import annotations

import argparse
import json
import time

from lockfast.cli.admin import Admin, Inspection
from lockfast.cli.exit_codes import print_stderr
from lockfast.cli.options import add_json, add_names, add_store, add_wide, client_of, exits, explain
from lockfast.cli.render import describe_short, document, held_for, kind_cell, lease_left, moment
from lockfast.cli.sanitize import escaped
from lockfast.cli.table import Column, right_aligned, room, table
from lockfast.errors import ConfigurationError

LIMIT = 1000
COLUMNS = (
    Column("NAMESPACE", shortens=True),
    Column("NAME", shortens=True),
    Column("KIND"),
    Column("HOLDER", shortens=True),
    *right_aligned("HELD FOR", "LEASE", "WAITERS"),
)
EPILOG = f"""\
columns:
  KIND      kind, and how much of it is taken: lock, semaphore 3/5, rwlock 2 read, rwlock write,
            latch 1/3, barrier 2/3; once for a periodic job of @once_every
  HOLDER    host:pid and label, or thread or task if there is no label; +2 means two more holders;
            for once: the process that ran the job last
  HELD FOR  how long the first holder has held it
  LEASE     how long the hold still lasts if it is not renewed; for once: until the next run
  WAITERS   number of waiters in the queue

examples:
  lockfast ls
  lockfast ls orders: --url redis://localhost:6379/0
  lockfast ls --all-namespaces --json | jq -r '.names[] | select(.waiters != []) | .name'

{exits("done, even if nothing is held")}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "List the names that are held or waited for, with their holders."
    explain(parser, what, EPILOG)
    add_names(parser, "list")
    what = f"list at most N names (default: {LIMIT})"
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=what)
    add_wide(parser)
    add_json(parser)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise ConfigurationError(f"--limit {args.limit}: must be at least 1")
    with client_of(args) as client:
        admin = Admin(client)
        addresses = admin.addresses(args.prefix, everywhere=args.all_namespaces)
        inspections = [admin.inspect(address) for address in addresses[: args.limit]]
    left_out = max(len(addresses) - args.limit, 0)
    # A name may have been released since the listing.
    inspections = [inspection for inspection in inspections if not inspection.is_free]
    if args.json:
        print(json.dumps(_document(admin, inspections, left_out), indent=2))
    elif inspections:
        rows = [_row(inspection, everywhere=args.all_namespaces) for inspection in inspections]
        print(*table(COLUMNS, rows, room(wide=args.wide)), sep="\n")
    if left_out:
        print_stderr(f"{left_out} more are not shown: pass a PREFIX, or a greater --limit")
    if not inspections and not args.json:
        print_stderr(f"nothing is held or waited for {_where(admin, args)}")
    return 0


def _where(admin: Admin, args: argparse.Namespace) -> str:
    prefix = f" whose name begins with {args.prefix!r}" if args.prefix else ""
    namespace = "" if args.all_namespaces else f" in namespace {admin.namespace}"
    return f"on {admin.store}{namespace}{prefix}"


def _row(inspection: Inspection, *, everywhere: bool) -> list[str]:
    address, snapshot = inspection
    first = snapshot.holders[0] if snapshot.holders else None
    more = f" +{len(snapshot.holders) - 1}" if len(snapshot.holders) > 1 else ""
    return [
        address.namespace if everywhere else "",
        escaped(address.name),
        kind_cell(inspection),
        describe_short(first.who) + more if first else "-",
        held_for(first, snapshot) if first else "-",
        lease_left(first) if first else "-",
        str(len(snapshot.waiters)),
    ]


def _document(admin: Admin, inspections: list[Inspection], left_out: int) -> dict[str, object]:
    names = [document(inspection) for inspection in inspections]
    return {"store": admin.store, "at": moment(time.time()), "left_out": left_out, "names": names}

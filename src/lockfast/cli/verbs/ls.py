"""`lockfast ls [PREFIX]`: what is held or waited for now, a line each."""

from __future__ import annotations

import argparse
import json
import time

from lockfast.cli.admin import Desk, Sight
from lockfast.cli.exit_codes import say
from lockfast.cli.options import HELP, add_json, add_store, client_of, exits
from lockfast.cli.render import (
    document,
    held_for,
    kind_cell,
    lease_left,
    moment,
    tersely,
)
from lockfast.cli.sanitize import shown
from lockfast.cli.table import Column, room, table
from lockfast.errors import ConfigurationError

LIMIT = 1000
COLUMNS = (
    Column("NAMESPACE", cuts=True),
    Column("NAME", cuts=True),
    Column("KIND"),
    Column("HOLDER", cuts=True),
    Column("HELD FOR", right=True),
    Column("LEASE", right=True),
    Column("WAIT", right=True),
)
EPILOG = f"""\
KIND tells what the name is, and how much of it is taken: lock, semaphore 3/5, rwlock 2 read, rwlock
write, latch 1/3, barrier 2/3, and once for what @once_every runs (its holder ran it last, and
its lease ends when it may run again). HOLDER is host:pid and the label, or else the thread or
task; +2 stands for two more. LEASE is what is left of it unless it is renewed, WAIT how many wait.

examples:
  lockfast ls
  lockfast ls orders: --url redis://localhost:6379/0
  lockfast ls --all-namespaces --json | jq -r '.names[] | select(.waiters != []) | .name'

{exits("done, also if nothing is held")}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "The names that are held or waited for now, with holders."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("prefix", nargs="?", default="", metavar="PREFIX", help="only names that begin so")
    add("-A", "--all-namespaces", action="store_true", help="not only those of --namespace")
    add("--limit", type=int, default=LIMIT, metavar="N", help=f"at most so many ({LIMIT})")
    add("-w", "--wide", action="store_true", help="cut nothing to fit the screen")
    add_json(parser)
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    if given.limit < 1:
        raise ConfigurationError(f"--limit {given.limit}: at least 1")
    with client_of(given) as client:
        desk = Desk(client)
        addresses = desk.addresses(given.prefix, everywhere=given.all_namespaces)
        sights = [desk.look(address) for address in addresses[: given.limit]]
    left_out = max(len(addresses) - given.limit, 0)
    sights = [sight for sight in sights if not sight.is_free]  # ended since it was found
    if given.json:
        print(json.dumps(_document(desk, sights, left_out), indent=2))
    elif sights:
        rows = [_row(sight, everywhere=given.all_namespaces) for sight in sights]
        print(*table(COLUMNS, rows, room(wide=given.wide)), sep="\n")
    if left_out:
        say(f"{left_out} more are not shown: give a PREFIX, or a greater --limit")
    if not sights and not given.json:
        say(f"nothing is held or waited for {_where(desk, given)}")
    return 0


def _where(desk: Desk, given: argparse.Namespace) -> str:
    prefix = f" whose name begins with {given.prefix!r}" if given.prefix else ""
    inside = "" if given.all_namespaces else f" in the namespace {desk.namespace}"
    return f"on {desk.store}{inside}{prefix}"


def _row(sight: Sight, *, everywhere: bool) -> list[str]:
    address, snapshot = sight
    first = snapshot.holders[0] if snapshot.holders else None
    more = f" +{len(snapshot.holders) - 1}" if len(snapshot.holders) > 1 else ""
    return [
        address.namespace if everywhere else "",
        shown(address.name),
        kind_cell(sight),
        tersely(first.who) + more if first else "-",
        held_for(first, snapshot) if first else "-",
        lease_left(first) if first else "-",
        str(len(snapshot.waiters)),
    ]


def _document(desk: Desk, sights: list[Sight], left_out: int) -> dict[str, object]:
    return {
        "store": desk.store,
        "at": moment(time.time()),
        "left_out": left_out,
        "names": [document(sight) for sight in sights],
    }

"""`lockfast break NAME --fence N`: break a hold, if it still has the fence that you saw.

Compare and break: between looking and breaking, the lock may have passed to another holder, which
must not be broken. So the request carries the fence that was seen, and the store compares and
breaks in one step. --fence may be omitted only on a terminal and with exactly one holder: then the
holder and its fence are shown, and "yes" refers to that hold. A script must pass the fence.
"""

from __future__ import annotations

import argparse
import select
import sys

from lockfast.cli.admin import Address, Admin, Inspection
from lockfast.cli.exit_codes import NO, UNREACHABLE, USAGE, fail, print_stderr
from lockfast.cli.options import add_once, add_store, client_of, exits, explain
from lockfast.cli.render import describe, held_for, lease_left
from lockfast.cli.sanitize import escaped, shell_quoted
from lockfast.cli.verbs.show import headline, holders
from lockfast.errors import BackendError
from lockfast.model import Holder

POLL = 0.2
NOTHING = "  1    nothing was broken: the lock is free or has another fence, or you answered no\n"
EPILOG = f"""\
The holder is not asked. If it is alive, it continues until its next renewal, a third of its lease
later, reports the loss. Until then two processes may be at work, and only the fence protects what
they write to: the next holder has a greater one. So stop the holder first if you can, and break
holds of dead or hanging processes.

`lockfast show NAME` prints the fence. If another hold has replaced it by now, nothing is
broken. On a terminal you are shown the holder and asked; with a single holder --fence may be
omitted. Without a terminal, pass --fence and --yes.

examples:
  lockfast break nightly-report --fence 1763282507123456
  lockfast break nightly-report --fence 1763282507123456 --yes
  lockfast break refresh-rates --once        let the job run again in this period

{exits("broken", NOTHING)}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(parser, "Break a hold on a name, if it still has this fence.", EPILOG)
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the lock")
    add("--fence", type=int, metavar="N", help="fence of the hold to break (see lockfast show)")
    add("--yes", action="store_true", help="break without asking")
    add_once(parser)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    asks = not args.yes
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return fail("there is no terminal to ask on: add --yes to break without asking", USAGE)
    if not asks and args.fence is None:
        return fail("--yes needs --fence: the fence that lockfast show prints", USAGE)
    with client_of(args) as client:
        admin = Admin(client)
        address = admin.address(args.name, once=args.once)
        inspection = admin.inspect(address)
        holder = _holder(inspection, args.fence)
        if holder is None:
            return _no_such_hold(inspection, args.fence)
        if asks and not _confirmed(inspection, admin, holder):
            return fail("nothing was broken", NO)
        return _break(admin, address, holder)


def _holder(inspection: Inspection, fence: int | None) -> Holder | None:
    found = [holder for holder in inspection.snapshot.holders if fence in (None, holder.fence)]
    return found[0] if len(found) == 1 else None


def _no_such_hold(inspection: Inspection, fence: int | None) -> int:
    name = escaped(inspection.address.name)
    current = inspection.snapshot.holders
    if not current:
        return fail(f"{name}: not held, nothing was broken", NO)
    fences = ", ".join(f"{holder.fence} ({holder.who})" for holder in current[:5])
    if fence is None:
        return fail(f"{name}: {len(current)} holders, choose one with --fence: {fences}", USAGE)
    why = f"no hold has fence {fence}, nothing was broken; current fence: {fences}"
    return fail(f"{name}: {why}", NO)


def _confirmed(inspection: Inspection, admin: Admin, holder: Holder) -> bool:
    print(headline(inspection, admin), "", *holders(inspection, wide=False), "", sep="\n")
    print(
        f"{describe(holder.who)}\nhas held it for {held_for(holder, inspection.snapshot)}; "
        f"its lease ends in {lease_left(holder)} unless it is renewed.\n"
        f"Breaking makes fence {holder.fence} stale, and grants the lock to the next waiter at "
        "once.\nThe holder, if alive, continues until its next renewal reports the loss."
    )
    return _answer("Break it? [y/N] ").strip().lower() in ("y", "yes")


def _answer(question: str) -> str:
    """Read a line; empty at end of file. Not `input`: a Ctrl-C that arrives just before it starts
    to read would take effect only after the next line."""
    print(question, end="", flush=True)
    while not select.select([sys.stdin], [], [], POLL)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        print()
    return line


def _break(admin: Admin, address: Address, holder: Holder) -> int:
    name = escaped(address.name)
    try:
        broken = admin.break_hold(address, holder.fence)
    except BackendError as error:
        show = f"lockfast show {shell_quoted(address.name)}"
        return fail(f"{error}; whether it was broken is unknown: {show}", UNREACHABLE)
    if not broken:
        why = f"the hold with fence {holder.fence} has ended meanwhile, nothing was broken"
        return fail(f"{name}: {why}", NO)
    print(f"{name}: broken, fence {holder.fence} of {describe(holder.who)}")
    try:
        print(_new_holders(admin.inspect(address)))
    except BackendError as error:
        print_stderr(f"the new holder could not be determined: {error}")
    return 0


def _new_holders(after: Inspection) -> str:
    current = after.snapshot.holders
    if not current:
        return "not held now"
    return "\n".join(f"held now by {describe(one.who)}, fence {one.fence}" for one in current[:5])

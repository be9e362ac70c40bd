"""`lockfast break NAME --fence N`: end somebody's hold, if it is still the one that you saw.

Compare and break: whoever looked, thought about it and came back may find another holder there, and
must not break that one. So the fence that was seen is part of the question, and the store compares
and breaks in one step. It may be left out only on a terminal where exactly one holds: there the
holder is shown, the fence with it, and the answer "yes" is for that one. A script has to say what
it saw.
"""

from __future__ import annotations

import argparse
import select
import sys

from lockfast.cli.admin import Address, Desk, Sight
from lockfast.cli.exit_codes import NO, UNREACHABLE, USAGE, refuse, say
from lockfast.cli.options import HELP, add_once, add_store, client_of, exits
from lockfast.cli.render import held_for, lease_left, whose
from lockfast.cli.sanitize import quoted, shown
from lockfast.cli.verbs.show import headline, holders
from lockfast.errors import BackendError
from lockfast.model import Holder

LOOK = 0.2
NOTHING = """\
  1    nothing was broken: another fence holds it by now, nobody does, or you said no
"""
EPILOG = f"""\
The holder is not asked, and if it lives it goes on until it hears of it: at its next renewal, at a
third of its lease, it is told that it has lost the lock. Until then two may be at work, and only
the fence protects what they write to: whoever gets the lock next has a greater one. So stop the
holder first if you can, and break what a dead or hanging one left behind.

--fence is what `lockfast show NAME` told you: if somebody else holds it by now, nothing is broken.
It may be left out on a terminal if one alone holds it; you are shown who, and asked. Where there is
no terminal, say --yes.

examples:
  lockfast break nightly-report --fence 1763282507123456
  lockfast break nightly-report --fence 1763282507123456 --yes
  lockfast break refresh-rates --once        let it run again in this period

{exits("broken", NOTHING)}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "End somebody's hold on a name, if it still has this fence."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("name", metavar="NAME")
    add("--fence", type=int, metavar="N", help="of the hold that is meant: see lockfast show")
    add("--yes", action="store_true", help="do not ask")
    add_once(parser)
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    asks = not given.yes
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        return refuse("there is no terminal to ask on: add --yes to break without asking", USAGE)
    if not asks and given.fence is None:
        return refuse("--yes needs --fence, of the hold that you saw (lockfast show)", USAGE)
    with client_of(given) as client:
        desk = Desk(client)
        address = desk.address(given.name, once=given.once)
        sight = desk.look(address)
        meant = _meant(sight, given.fence)
        if meant is None:
            return _not_meant(sight, given.fence)
        if asks and not _confirmed(sight, desk, meant):
            return refuse("nothing was broken", NO)
        return _break(desk, address, meant)


def _meant(sight: Sight, fence: int | None) -> Holder | None:
    found = [holder for holder in sight.snapshot.holders if fence in (None, holder.fence)]
    return found[0] if len(found) == 1 else None


def _not_meant(sight: Sight, fence: int | None) -> int:
    name = shown(sight.address.name)
    now = sight.snapshot.holders
    if not now:
        return refuse(f"{name}: nobody holds it, nothing was broken", NO)
    held = ", ".join(f"{holder.fence} ({holder.who})" for holder in now[:5])
    if fence is None:
        return refuse(f"{name}: {len(now)} hold it, say which with --fence: {held}", USAGE)
    return refuse(
        f"{name}: nobody holds it with fence {fence}, nothing was broken; it is held with {held}",
        NO,
    )


def _confirmed(sight: Sight, desk: Desk, meant: Holder) -> bool:
    print(headline(sight, desk), "", *holders(sight, wide=False), "", sep="\n")
    print(
        f"{whose(meant.who)}\nhas held it for {held_for(meant, sight.snapshot)}; its lease ends in "
        f"{lease_left(meant)} unless it is renewed.\nBroken, its fence {meant.fence} is overtaken "
        "and the next in the queue gets the lock at once.\nThe holder, if it lives, goes on until "
        "its next renewal tells it that the lock is lost."
    )
    return _answer("Break it? [y/N] ").strip().lower() in ("y", "yes")


def _answer(question: str) -> str:
    """A line; empty at the end of the input. Not `input`: a Ctrl-C that comes just before it begins
    to read would be heard only after the next line."""
    print(question, end="", flush=True)
    while not select.select([sys.stdin], [], [], LOOK)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        print()
    return line


def _break(desk: Desk, address: Address, meant: Holder) -> int:
    name = shown(address.name)
    try:
        broken = desk.break_hold(address, meant.fence)
    except BackendError as error:
        return refuse(
            f"{error}; whether it was broken is unknown: lockfast show {quoted(address.name)}",
            UNREACHABLE,
        )
    if not broken:
        return refuse(
            f"{name}: the hold with fence {meant.fence} has ended meanwhile, nothing was broken", NO
        )
    print(f"{name}: broken, fence {meant.fence} of {whose(meant.who)}")
    try:
        print(_heirs(desk.look(address)))
    except BackendError as error:
        say(f"who holds it now could not be asked: {error}")
    return 0


def _heirs(after: Sight) -> str:
    heirs = after.snapshot.holders
    if not heirs:
        return "nobody holds it now"
    return "\n".join(f"held now by {whose(heir.who)}, fence {heir.fence}" for heir in heirs[:5])

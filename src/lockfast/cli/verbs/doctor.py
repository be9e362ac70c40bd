"""`lockfast doctor [URL]`: is this store fit for locks, and what can be done about it?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap

from lockfast.cli import doctor
from lockfast.cli.exit_codes import NO, UNREACHABLE
from lockfast.cli.options import HELP, add_json, add_store, client_of, exits
from lockfast.cli.sanitize import legible
from lockfast.cli.table import room
from lockfast.stores.health_checks import HealthCheck, Level

APIS = {Level.OK: "32", Level.NOTE: "36", Level.WARN: "33", Level.BAD: "31"}
EXAMPLES = """\
bad   locks are not safe there, or do not work
warn  they may be lost, or work badly, in a case that will come: a restart, a failover, a full disk
note  good to know

It connects, asks the server what it is and how it is set up, takes a lock of its own through every
verb, and measures. Nothing of others is touched. What a user may not ask (INFO, CONFIG) is said and
not judged: an administrator's URL tells more, the application's own tells whether it has its
rights.

examples:
  lockfast doctor
  lockfast doctor redis://localhost:6379/0
  lockfast doctor --strict --json postgresql://app@db/app     in CI: warnings count too

"""
BAD = """\
  1    something is bad, or with --strict a warning
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Is this store fit for locks? What was found, and what to do."
    parser.epilog = EXAMPLES + exits("fit: nothing is bad; with --strict no warning either", BAD)
    parser.formatter_class = HELP
    add = parser.add_argument
    add("store", nargs="?", metavar="URL", help="the store (default: --url)")
    add("--strict", action="store_true", help="a warning counts as bad")
    add_json(parser)
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    given.url = given.store or given.url
    given.namespace = given.namespace or doctor.NAMESPACE
    with client_of(given) as client:
        if given.json:
            health_checks = list(doctor.examine(client))
            print(json.dumps(doctor.document(client, health_checks), indent=2))
        else:
            health_checks = []
            for health_check in doctor.examine(client):
                health_checks.append(health_check)
                print("\n".join(_lines(health_check)), flush=True)
            print(f"\n{_verdict(health_checks)}")
    if doctor.is_away(health_checks):
        return UNREACHABLE
    least = Level.WARN if given.strict else Level.BAD
    return NO if doctor.worst(health_checks) >= least else 0


def _lines(health_check: HealthCheck) -> list[str]:
    head = f"{health_check.level.name.lower():<6}{health_check.about:<13}"
    width = (room() or 80) - len(head) - 1
    text = textwrap.wrap(legible(health_check.found), width, break_on_hyphens=False)
    if health_check.do:
        text += textwrap.wrap(
            legible(f"-> {health_check.do}"), width, subsequent_indent="   ", break_on_hyphens=False
        )
    first, *rest = text
    painted = _painted(health_check.level, head[:6]) + head[6:]
    return [painted + first, *(" " * len(head) + line for line in rest)]


def _painted(level: Level, text: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{APIS[level]}m{text}\x1b[0m"


def _verdict(health_checks: list[HealthCheck]) -> str:
    counts = {
        level: sum(health_check.level is level for health_check in health_checks) for level in Level
    }
    if not counts[Level.BAD] and not counts[Level.WARN]:
        return "fit for locks"
    parts = [
        f"{counts[Level.BAD]} bad" * bool(counts[Level.BAD]),
        f"{counts[Level.WARN]} to be warned of" * bool(counts[Level.WARN]),
    ]
    return ", ".join(filter(None, parts))

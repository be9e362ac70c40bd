"""`lockfast doctor [URL]`: check whether a store is fit for locks, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from functools import partial

from lockfast.cli import doctor
from lockfast.cli.exit_codes import NO, UNREACHABLE
from lockfast.cli.options import add_json, add_store, client_of, exits, explain
from lockfast.cli.sanitize import printable
from lockfast.cli.table import room
from lockfast.stores.health_checks import HealthCheck, Level

COLORS = {Level.OK: "32", Level.NOTE: "36", Level.WARN: "33", Level.BAD: "31"}
EXAMPLES = """\
ok    nothing to do
note  good to know
warn  locks may be lost, or work badly, in a foreseeable case: a restart, a failover, a full disk
bad   locks are not safe on this store, or do not work

The doctor connects, reads the server's version and settings, tries every operation on a lock of
its own, and measures latency. It touches no other locks. Settings that the user may not read (INFO,
CONFIG) are noted and not judged: use an administrator's URL to check the server, and the
application's URL to check its permissions.

examples:
  lockfast doctor
  lockfast doctor redis://localhost:6379/0
  lockfast doctor --strict --json postgresql://app@db/app     for CI: fail on warnings too

"""
BAD = "  1    a check is bad; with --strict also a warning\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    fit = "fit for locks: no check is bad; with --strict no warning either"
    what = "Check whether a store is fit for locks, and say what to do."
    explain(parser, what, EXAMPLES + exits(fit, BAD))
    add = parser.add_argument
    add("store", nargs="?", metavar="URL", help="URL of the store (default: --url)")
    add("--strict", action="store_true", help="exit with 1 on warnings too")
    add_json(parser)
    add_store(parser, namespace=doctor.NAMESPACE)


def execute(args: argparse.Namespace) -> int:
    args.url = args.store or args.url
    args.namespace = args.namespace or doctor.NAMESPACE
    with client_of(args) as client:
        if args.json:
            health_checks = list(doctor.examine(client))
            print(json.dumps(doctor.document(client, health_checks), indent=2))
        else:
            health_checks = []
            for health_check in doctor.examine(client):
                health_checks.append(health_check)
                print("\n".join(_lines(health_check)), flush=True)
            print(f"\n{_summary(health_checks)}")
    if doctor.is_unreachable(health_checks):
        return UNREACHABLE
    least = Level.WARN if args.strict else Level.BAD
    return NO if doctor.worst(health_checks) >= least else 0


def _lines(health_check: HealthCheck) -> list[str]:
    head = f"{health_check.level.name.lower():<6}{health_check.about:<13}"
    width = (room() or 80) - len(head) - 1
    wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    text = wrap(printable(health_check.found))
    if health_check.do:
        text += wrap(printable(f"-> {health_check.do}"), subsequent_indent="   ")
    first, *rest = text
    painted = _painted(health_check.level, head[:6]) + head[6:]
    return [painted + first, *(" " * len(head) + line for line in rest)]


def _painted(level: Level, text: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{COLORS[level]}m{text}\x1b[0m"


def _summary(health_checks: list[HealthCheck]) -> str:
    if doctor.is_unreachable(health_checks):
        return "not checked: the store cannot be reached"
    problems = _count(health_checks, Level.BAD, "problem")
    warnings = _count(health_checks, Level.WARN, "warning")
    if problems:
        return f"not fit for locks: {', '.join(filter(None, (problems, warnings)))}"
    return f"fit for locks, with {warnings}" if warnings else "fit for locks"


def _count(health_checks: list[HealthCheck], level: Level, noun: str) -> str:
    """Format ``1 warning`` or ``2 warnings``; empty if there are none."""
    count = sum(health_check.level is level for health_check in health_checks)
    return f"{count} {noun}{'s' if count > 1 else ''}" if count else ""

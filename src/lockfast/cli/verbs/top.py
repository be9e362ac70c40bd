"""`lockfast top [PREFIX]`: a live full-screen view of the names that are held or waited for."""

from __future__ import annotations

import argparse
import os
import sys
import time

from lockfast.cli.admin import Admin
from lockfast.cli.exit_codes import USAGE, fail
from lockfast.cli.options import add_names, add_number, add_store, client_of, exits, explain
from lockfast.cli.top.keys import Break, Mode, Operator, Quit
from lockfast.cli.top.model import Seen
from lockfast.cli.top.poller import Poller
from lockfast.cli.top.terminal import Ended, Terminal
from lockfast.cli.top.view import Scene, frame, page, window
from lockfast.errors import ConfigurationError

INTERVAL, LEAST_INTERVAL = 1.0, 0.2
EPILOG = f"""\
keys:
  arrows, j k   select a name
  Enter         show all holders and waiters of the name
  b             break a hold, after a confirmation that shows its fence
  /             filter names, holders and labels
  s             change the sort order (at first: longest wait)
  ?             explain the columns
  q             quit

Needs a terminal of at least 40 × 8; works over ssh. Figures come from inspecting the store, which
keeps no statistics: hand-overs are a lower bound. With very many names, each round inspects the
names on the screen, names with waiters, and some of the others in rotation. For scripts, use
lockfast ls --json.

examples:
  lockfast top
  lockfast top orders: --url redis://localhost:6379/0
  lockfast top --all-namespaces --interval 5

{exits("quit with q")}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(parser, "Watch the names that are held or waited for, live.", EPILOG)
    add_names(parser, "show")
    what = f"seconds between two rounds (default: {INTERVAL:g})"
    add_number(parser, "--interval", float, "S", what, INTERVAL)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    if not LEAST_INTERVAL <= args.interval <= 3600:
        allowed = f"must be between {LEAST_INTERVAL} and 3600"
        raise ConfigurationError(f"--interval {args.interval:g}: {allowed}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        return fail("top needs a terminal; for scripts use lockfast ls --json", USAGE)
    with client_of(args) as client, Terminal() as terminal:
        admin, everywhere, wake = Admin(client), args.all_namespaces, terminal.wake
        poller = Poller(
            admin, args.prefix, everywhere=everywhere, interval=args.interval, on_update=wake
        )
        where = f"{admin.store} ({'all' if everywhere else admin.namespace})"
        poller.start()
        try:
            return _loop(terminal, poller, Operator(), where, args.interval)
        except Ended as end:
            return 128 + end.number if end.number else 0
        finally:
            poller.stop()


def _loop(
    terminal: Terminal, poller: Poller, operator: Operator, where: str, interval: float
) -> int:
    while True:
        width, height = terminal.size()
        rows, name = _current(poller, operator)
        _prioritize(poller, operator, rows, page(height))
        while poller.messages:
            operator.message = poller.messages.popleft()
        with poller.mutex:
            totals = poller.model.totals()
        scene = Scene(where, time.strftime("%H:%M:%S"), totals, rows, name, poller.problem())
        terminal.draw(frame(scene, operator, width, height))
        for key in terminal.keys(interval):
            match operator.press(key, *_current(poller, operator), page(height)):
                case Quit():
                    return 0
                case Break() as request:
                    operator.message = "breaking…"
                    poller.request_break(request)
            if operator.mode is Mode.BREAK:
                # Keys typed before the question was on the screen must not answer it.
                terminal.discard_typed()
                break


def _current(poller: Poller, operator: Operator) -> tuple[list[Seen], Seen | None]:
    """The rows of the list, and the name whose details are open, as of now."""
    with poller.mutex:
        rows = poller.model.rows(operator.order, operator.filter)
        return rows, poller.model.get(operator.name) if operator.name else None


def _prioritize(poller: Poller, operator: Operator, rows: list[Seen], lines: int) -> None:
    """Make the poller inspect the names on the screen first."""
    if operator.name and operator.mode in (Mode.NAME, Mode.BREAK):
        poller.visible = [operator.name]
    else:
        first = window(operator.line_of(rows), len(rows), lines)
        poller.visible = [seen.inspection.address for seen in rows[first : first + lines]]

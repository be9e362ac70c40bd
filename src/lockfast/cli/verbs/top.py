"""`lockfast top [PREFIX]`: a live view of what is held and waited for, on a full screen."""

from __future__ import annotations

import argparse
import os
import sys
import time

from lockfast.cli.admin import Desk
from lockfast.cli.exit_codes import USAGE, refuse
from lockfast.cli.options import HELP, add_store, client_of, exits
from lockfast.cli.top.keys import Break, Mode, Operator, Quit
from lockfast.cli.top.model import Seen
from lockfast.cli.top.poller import Looker
from lockfast.cli.top.terminal import Ended, Terminal
from lockfast.cli.top.view import Scene, frame, page, window
from lockfast.errors import ConfigurationError

INTERVAL, LEAST_INTERVAL = 1.0, 0.2
EPILOG = f"""\
Sorted by who waits longest. Keys: arrows or j k choose, Enter shows all holders and waiters of a
name, b breaks a hold after a question that shows its fence, / filters, s sorts otherwise, ?
explains the columns, q ends. Works over ssh, from 40 columns and 8 lines on.

What is shown was seen, not measured by the store: hand-overs are at least so many, and of a store
with very many names some are looked at in each round: those shown, those waited for, and the
others in turn. For scripts there is lockfast ls --json.

examples:
  lockfast top
  lockfast top orders: --url redis://localhost:6379/0
  lockfast top --all-namespaces --interval 5

{exits("seen enough")}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "A live view of what is held and waited for."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("prefix", nargs="?", default="", metavar="PREFIX", help="only names that begin so")
    add("-A", "--all-namespaces", action="store_true", help="not only those of --namespace")
    add(
        "--interval",
        type=float,
        default=INTERVAL,
        metavar="S",
        help=f"seconds between two looks ({INTERVAL:g})",
    )
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    if not LEAST_INTERVAL <= given.interval <= 3600:
        raise ConfigurationError(f"--interval {given.interval:g}: from {LEAST_INTERVAL} to 3600")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        return refuse("top needs a terminal: lockfast ls --json is for scripts", USAGE)
    with client_of(given) as client, Terminal() as terminal:
        looker = Looker(
            desk := Desk(client),
            given.prefix,
            everywhere=given.all_namespaces,
            interval=given.interval,
            news=terminal.wake,
        )
        where = f"{desk.store} ({'all' if given.all_namespaces else desk.namespace})"
        looker.start()
        try:
            return _loop(terminal, looker, Operator(), where, given.interval)
        except Ended as end:
            return 128 + end.number if end.number else 0
        finally:
            looker.stop()


def _loop(
    terminal: Terminal, looker: Looker, operator: Operator, where: str, interval: float
) -> int:
    while True:
        width, height = terminal.size()
        rows, name = _known(looker, operator)
        _choose(looker, operator, rows, page(height))
        while looker.told:
            operator.message = looker.told.popleft()
        with looker.mutex:
            totals = looker.model.totals()
        clock = time.strftime("%H:%M:%S")
        scene = Scene(where, clock, totals, rows, name, looker.trouble())
        terminal.draw(frame(scene, operator, width, height))
        for key in terminal.keys(interval):
            match operator.press(key, *_known(looker, operator), page(height)):
                case Quit():
                    return 0
                case Break() as what:
                    operator.message = "breaking…"
                    looker.ask(what)
            if operator.mode is Mode.BREAK:
                # What was typed before the question was on the screen is no answer to it.
                terminal.forget_typed()
                break


def _known(looker: Looker, operator: Operator) -> tuple[list[Seen], Seen | None]:
    """What the next key is about: the list as it is now, and the name that is looked at."""
    with looker.mutex:
        rows = looker.model.rows(operator.order, operator.filter)
        return rows, looker.model.get(operator.name) if operator.name else None


def _choose(looker: Looker, operator: Operator, rows: list[Seen], lines: int) -> None:
    """Look at what is on the screen first."""
    if operator.name and operator.mode in (Mode.NAME, Mode.BREAK):
        looker.shown = [operator.name]
    else:
        first = window(operator.line_of(rows), len(rows), lines)
        looker.shown = [seen.sight.address for seen in rows[first : first + lines]]

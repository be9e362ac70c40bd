"""`lockfast run NAME -- command …`: what can be said."""

from __future__ import annotations

import argparse

from lockfast.cli import run
from lockfast.cli.exit_codes import USAGE, refuse
from lockfast.cli.options import HELP, add_store

EPILOG = """\
The lock is renewed while the command runs and given back when it has ended. The command finds the
lock's name in $LOCKFAST_NAME and its fence in $LOCKFAST_FENCE: pass the fence to the database that
the command writes to, and let it refuse a lower one. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
SIGUSR2 are forwarded. If the lock cannot be renewed, the command is stopped (SIGTERM, then SIGKILL)
before the lease can run out; so it is before --max-hold is over.

A name is one thing to all who use it: all of them say --semaphore with the same N, or --read and
--write, or none of these. While it waits on a terminal, a line says who holds the lock and which
place in the queue is ours.

examples:
  lockfast run report -- ./report.sh                    wait for the lock, then run
  lockfast run report --timeout 60 -- ./report.sh       give up after a minute, with 75
  lockfast run report --skip -- ./report.sh             from cron: run, or leave it to who runs it
  lockfast run encode --semaphore 4 -- ffmpeg …         four at a time, on all hosts together
  lockfast run config --read -- ./use-it                many of these, …
  lockfast run config --write -- ./change-it            … or one of these
  lockfast run import --max-hold 3600 --label nightly -- make import

exit codes:
  the command's own, or 128 + n if signal n ended it (or ended us while we waited for the lock)
  0    with --skip also: busy, the command did not run
  2    wrong usage, a wrong name or a wrong URL
  69   the store cannot be reached
  71   the system has no process for us
  75   busy: not acquired within --timeout; the command did not run
  76   lost, not renewed in time, or held for --max-hold: the command was stopped
  126  the command cannot be executed
  127  the command was not found
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lockfast run NAME [options] -- command …"
    parser.description = "Hold the lock NAME while a command runs."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("name", metavar="NAME", help="what is locked")
    add("--timeout", type=float, metavar="S", help="wait so long; 0 asks once (default: no end)")
    add(
        "--skip",
        action="store_true",
        help="exit 0 without running if it is busy, at once or after --timeout",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--semaphore", type=int, metavar="N", help="so many at a time, not one")
    kinds.add_argument(
        "--read", dest="half", action="store_const", const="read", help="beside others who read"
    )
    kinds.add_argument(
        "--write", dest="half", action="store_const", const="write", help="alone: no one reads"
    )
    add(
        "--lease",
        type=float,
        metavar="S",
        help="how long a hold outlives us where the store cannot see that we died (default: 30)",
    )
    add("--max-hold", type=float, metavar="S", help="stop the command before so long is over")
    add("--label", metavar="TEXT", help="what operators see of us (default: run COMMAND)")
    add_store(parser)


def do(given: argparse.Namespace) -> int:
    if not given.command:
        return refuse(
            f"the command comes after --: lockfast run {given.name} -- command arguments… "
            "(see lockfast run --help)",
            USAGE,
        )
    return run.run(
        given.name,
        given.command,
        run.Terms(
            url=given.url,
            namespace=given.namespace,
            timeout=0.0 if given.skip and given.timeout is None else given.timeout,
            lease=given.lease,
            max_hold=given.max_hold,
            semaphore=given.semaphore,
            half=given.half,
            label=given.label,
            skip=given.skip,
        ),
    )

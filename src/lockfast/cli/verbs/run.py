"""`lockfast run NAME -- command …`: options and help."""

from __future__ import annotations

import argparse

from lockfast.cli import run
from lockfast.cli.exit_codes import USAGE, fail
from lockfast.cli.options import HELP, add_store

EPILOG = """\
The lock is renewed while the command runs, and released when it ends. The command finds the name
in $LOCKFAST_NAME and the fence in $LOCKFAST_FENCE: pass the fence to the database that the command
writes to, and let it refuse lower ones. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
forwarded. If the lock cannot be renewed, the command is stopped (SIGTERM, then SIGKILL) before the
lease expires; likewise before --max-hold is over.

All users of a name must agree on its kind: a lock, or --semaphore with the same N, or --read and
--write. On a terminal, a status line shows the holder and the queue position while waiting.

examples:
  lockfast run report -- ./report.sh                    wait for the lock, then run
  lockfast run report --timeout 60 -- ./report.sh       exit 75 if not acquired within a minute
  lockfast run report --skip -- ./report.sh             for cron: exit 0 if it runs already
  lockfast run encode --semaphore 4 -- ffmpeg …         at most four at a time, on all hosts
  lockfast run config --read -- ./use-it                together with other readers
  lockfast run config --write -- ./change-it            excludes readers and writers
  lockfast run import --max-hold 3600 --label nightly -- make import

exit codes:
  the command's own; 128 + n if signal n ended the command, or ended lockfast while it waited
  0    with --skip also: the lock is held, the command did not run
  2    wrong usage, invalid name or invalid URL
  69   the store cannot be reached
  71   the system cannot start a process
  75   not acquired within --timeout; the command did not run
  76   the lock was lost, not renewed in time, or held for --max-hold; the command was stopped
  126  the command cannot be executed
  127  the command was not found
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lockfast run NAME [options] -- command …"
    parser.description = "Hold the lock NAME while a command runs."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the lock")
    add(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds to wait; 0: do not wait (default: forever)",
    )
    add(
        "--skip",
        action="store_true",
        help="exit 0 without running if the lock is held, at once or after --timeout",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--semaphore", type=int, metavar="N", help="let N commands run at a time")
    kinds.add_argument(
        "--read", dest="mode", action="store_const", const="read", help="share with other readers"
    )
    kinds.add_argument(
        "--write",
        dest="mode",
        action="store_const",
        const="write",
        help="exclude readers and writers",
    )
    add(
        "--lease",
        type=float,
        metavar="S",
        help="seconds until the lock is free if lockfast dies unnoticed (default: 30)",
    )
    add("--max-hold", type=float, metavar="S", help="stop the command before S seconds are over")
    add("--label", metavar="TEXT", help="label shown to operators (default: run COMMAND)")
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.command:
        return fail(
            f"the command must come after --: lockfast run {args.name} -- command arguments… "
            "(see lockfast run --help)",
            USAGE,
        )
    return run.run(
        args.name,
        args.command,
        run.Terms(
            url=args.url,
            namespace=args.namespace,
            timeout=0.0 if args.skip and args.timeout is None else args.timeout,
            lease=args.lease,
            max_hold=args.max_hold,
            semaphore=args.semaphore,
            mode=args.mode,
            label=args.label,
            skip=args.skip,
        ),
    )

"""`lockfast run NAME -- command …`: options and help."""

from __future__ import annotations

import argparse
from dataclasses import fields

from lockfast.cli import run
from lockfast.cli.exit_codes import USAGE, fail
from lockfast.cli.options import add_number, add_store, explain

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
MODES = {"read": "share with other readers", "write": "exclude readers and writers"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lockfast run NAME [options] -- command …"
    explain(parser, "Hold the lock NAME while a command runs.", EPILOG)
    add = parser.add_argument
    add("name", metavar="NAME", help="name of the lock")
    what = "seconds to wait; 0: do not wait (default: forever)"
    add_number(parser, "--timeout", float, "S", what)
    what = "exit 0 without running if the lock is held, at once or after --timeout"
    add("--skip", action="store_true", help=what)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--semaphore", type=int, metavar="N", help="let N commands run at a time")
    for mode, what in MODES.items():
        kinds.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, help=what)
    what = "seconds until the lock is free if lockfast dies unnoticed (default: 30)"
    add_number(parser, "--lease", float, "S", what)
    add("--max-hold", type=float, metavar="S", help="stop the command before S seconds are over")
    add("--label", metavar="TEXT", help="label shown to operators (default: run COMMAND)")
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.command:
        usage = f"lockfast run {args.name} -- command arguments… (see lockfast run --help)"
        return fail(f"the command must come after --: {usage}", USAGE)
    if args.skip and args.timeout is None:
        args.timeout = 0.0
    terms = run.Terms(**{field.name: getattr(args, field.name) for field in fields(run.Terms)})
    return run.run(args.name, args.command, terms)

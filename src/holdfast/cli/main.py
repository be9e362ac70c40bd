"""The command line: what can be said, and how errors look: one line, never a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Never

import holdfast
from holdfast.cli import demo, run
from holdfast.errors import ConfigurationError, HoldfastError, Unsupported

DESCRIPTION = "One thing at a time, across threads, processes and machines."

EXAMPLES = """\
examples:
  holdfast run report -- ./report.sh               wait for the lock, then run
  holdfast run report --timeout 0 -- ./report.sh   run, or exit 75 if it runs already
  holdfast run orders --url sqlite:///srv/app/locks.db -- make import
  holdfast demo                                    fifteen seconds that show it all
  holdfast bench --compare redis://localhost:6379/0 sqlite:///var/tmp/bench.db

The store is --url, or $HOLDFAST_URL, or else the embedded one of this user on this host.
"""

RUN_EPILOG = """\
The lock is renewed while the command runs and given back when it has ended. The command finds the
lock's name in $HOLDFAST_NAME and its fence in $HOLDFAST_FENCE: pass the fence to the database that
the command writes to, and let it refuse a lower one. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and
SIGUSR2 are forwarded. If the lock cannot be renewed, the command is stopped (SIGTERM, then SIGKILL)
before the lease can run out.

exit codes:
  the command's own, or 128 + n if signal n ended it (or ended us while we waited for the lock)
  2    wrong usage, a wrong name or a wrong URL
  69   the store cannot be reached
  71   the system has no process for us
  75   busy: not acquired within --timeout; the command did not run
  76   lost, or not renewed in time: the command was stopped
  126  the command cannot be executed
  127  the command was not found
"""

BENCH_EPILOG = """\
Everybody acquires and releases one random name in a namespace of its own: nobody else's locks are
touched, and nothing is left behind. A server is kept busy meanwhile: do not do it to one in use.
Without a URL: an embedded store in a new file, and memory (threads of one process).

examples:
  holdfast bench
  holdfast bench --compare redis://localhost:6379/0 sqlite:///var/tmp/bench.db
  holdfast bench --compare --svg chart.svg --json figures.json redis://:secret@localhost/0
  holdfast bench --contenders 1,200 --seconds 1 --rounds 1 redis://localhost:6379/0

exit codes:
  0    measured
  1    two contenders were inside at once: the lock is broken
  2    wrong usage, or a store that cannot be reached; nothing was measured
  69   a store went away while it was measured
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say; the exit code. ``run`` takes over the signals of this process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except SystemExit as end:  # argparse: --help, --version, a wrong usage
        return end.code if isinstance(end.code, int) else 0
    except (ConfigurationError, Unsupported) as error:
        return run.refuse(str(error), run.USAGE)
    except HoldfastError as error:
        return run.refuse(str(error), run.UNREACHABLE)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # demo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(arguments: list[str]) -> int:
    # Everything after the first "--" is the command, options and all: argparse must not see it.
    command: list[str] | None = None
    if arguments[:1] == ["run"] and "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.verb == "demo":
        return demo.show(seconds=given.seconds)
    if given.verb == "bench":
        return _bench(given)
    if not command:
        parser.error(f"the command comes after --: holdfast run {given.name} -- command arguments…")
    return run.run(
        given.name,
        command,
        url=given.url,
        namespace=given.namespace,
        timeout=given.timeout,
        lease=given.lease,
    )


def _bench(given: argparse.Namespace) -> int:
    from holdfast.cli import bench  # what the others need not load

    return bench.bench(
        bench.Plan(
            urls=given.urls,
            sizes=given.contenders,
            seconds=given.seconds,
            rounds=given.rounds,
            processes=given.processes,
            svg=given.svg,
            json=given.json,
            draw=given.compare,
        )
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Never:
        self.exit(run.USAGE, f"holdfast: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="run | demo | bench", required=True)
    runs = verbs.add_parser(
        "run",
        help="hold a lock while a command runs",
        usage="holdfast run NAME [--timeout S] [--lease S] [--url U] [--namespace N] -- command …",
        description="Hold the lock NAME while a command runs.",
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runs.add_argument("name", metavar="NAME", help="what is locked")
    runs.add_argument(
        "--timeout", type=float, metavar="S", help="wait so long; 0 asks once (default: no end)"
    )
    runs.add_argument(
        "--lease",
        type=float,
        metavar="S",
        help="how long a hold outlives us where the store cannot see that we died (default: 30)",
    )
    runs.add_argument("--url", metavar="U", help="the store (default: $HOLDFAST_URL, or embedded)")
    runs.add_argument("--namespace", metavar="N", help="names of another namespace are other names")
    shows = verbs.add_parser(
        "demo",
        help="a show of fifteen seconds, in this terminal",
        description="Eight processes, one counter, with and without the lock; a killed holder; "
        "a stale writer. Exits with 0 only if everything went as claimed.",
    )
    shows.add_argument(
        "--seconds", type=float, default=15.0, metavar="N", help="about how long (default: 15)"
    )
    _add_bench(
        verbs.add_parser(
            "bench",
            help="how fast, how fairly and at what cost a lock goes round, store by store",
            usage="holdfast bench [--compare] [URL …] [--contenders N,N,…] [--seconds S]"
            "\n                      [--rounds N] [--processes N] [--svg FILE] [--json FILE]",
            description="Measure one lock on each store, under 1, 10 and 50 contenders.",
            epilog=BENCH_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    return parser


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="a store, as holdfast.connect() takes it")
    add("--compare", action="store_true", help="draw the stores against each other here too")
    add(
        "--contenders",
        type=_numbers,
        default=[1, 10, 50],
        metavar="N,N,…",
        help="how many want the lock (default: 1,10,50)",
    )
    add("--seconds", type=float, default=3.0, metavar="S", help="of one round (default: 3)")
    add("--rounds", type=int, default=3, metavar="N", help="whose median is shown (default: 3)")
    add(
        "--processes",
        type=int,
        default=4,
        metavar="N",
        help="over which the contenders are spread, as threads (default: 4)",
    )
    add("--svg", metavar="FILE", help="draw a chart")
    add("--json", metavar="FILE", help="write the figures for scripts")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers and commas, as 1,10,50") from None


if __name__ == "__main__":
    sys.exit(main())

"""`lockfast bench`: options and help."""

from __future__ import annotations

import argparse

from lockfast.cli import bench
from lockfast.cli.options import add_number, explain

EPILOG = """\
All contenders acquire and release one random name in a namespace of the benchmark's own: other
locks are not touched, and nothing is left behind. The benchmark puts full load on the server: do
not run it against one in production.
Without a URL it measures SQLite in a new file, and memory (threads of one process).

examples:
  lockfast bench
  lockfast bench --compare redis://localhost:6379/0 sqlite:///var/tmp/bench.db
  lockfast bench --compare --svg chart.svg --json figures.json redis://:secret@localhost/0
  lockfast bench --contenders 1,200 --seconds 1 --rounds 1 redis://localhost:6379/0

exit codes:
  0    measured
  1    two contenders held the lock at once: mutual exclusion is broken
  2    wrong usage, or a store cannot be reached; nothing was measured
  69   a store became unreachable while it was measured
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "lockfast bench [--compare] [URL …] [--contenders N,N,…] [--seconds S]"
        "\n                      [--rounds N] [--processes N] [--svg FILE] [--json FILE]"
    )
    what = "Measure hand-overs, fairness and cost of one lock on each store."
    explain(parser, what, EPILOG)
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="URL of a store, as for lockfast.connect()")
    add("--compare", action="store_true", help="also draw bars that compare the stores")
    what = "numbers of contenders to measure (default: 1,10,50)"
    add_number(parser, "--contenders", _numbers, "N,N,…", what, [1, 10, 50])
    what = "length of a round in seconds (default: 3)"
    add_number(parser, "--seconds", float, "S", what, 3.0)
    add_number(parser, "--rounds", int, "N", "number of rounds; medians are shown (default: 3)", 3)
    what = "processes that run the contenders, as threads (default: 4)"
    add_number(parser, "--processes", int, "N", what, 4)
    add("--svg", metavar="FILE", help="write a chart to FILE")
    add("--json", metavar="FILE", help="write the figures to FILE, for scripts")


def execute(args: argparse.Namespace) -> int:
    rounds = (args.seconds, args.rounds, args.processes)
    plan = bench.Plan(args.urls, args.contenders, *rounds, args.svg, args.json, args.compare)
    return bench.bench(plan)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        problem = f"{text!r}: expected numbers and commas, as in 1,10,50"
        raise argparse.ArgumentTypeError(problem) from None

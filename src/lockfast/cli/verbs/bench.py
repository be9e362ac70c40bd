"""`lockfast bench`: options and help."""

from __future__ import annotations

import argparse

from lockfast.cli import bench
from lockfast.cli.options import HELP

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
    parser.description = "Measure hand-overs, fairness and cost of one lock on each store."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="URL of a store, as for lockfast.connect()")
    add("--compare", action="store_true", help="also draw bars that compare the stores")
    add(
        "--contenders",
        type=_numbers,
        default=[1, 10, 50],
        metavar="N,N,…",
        help="numbers of contenders to measure (default: 1,10,50)",
    )
    add(
        "--seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="length of a round in seconds (default: 3)",
    )
    add(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="number of rounds; medians are shown (default: 3)",
    )
    add(
        "--processes",
        type=int,
        default=4,
        metavar="N",
        help="processes that run the contenders, as threads (default: 4)",
    )
    add("--svg", metavar="FILE", help="write a chart to FILE")
    add("--json", metavar="FILE", help="write the figures to FILE, for scripts")


def execute(args: argparse.Namespace) -> int:
    return bench.bench(
        bench.Plan(
            urls=args.urls,
            sizes=args.contenders,
            seconds=args.seconds,
            rounds=args.rounds,
            processes=args.processes,
            svg=args.svg,
            json=args.json,
            draw=args.compare,
        )
    )


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected numbers and commas, as in 1,10,50"
        ) from None

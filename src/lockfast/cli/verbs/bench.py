"""`lockfast bench`: what can be said."""

from __future__ import annotations

import argparse

from lockfast.cli import bench
from lockfast.cli.options import HELP

EPILOG = """\
Everybody acquires and releases one random name in a namespace of its own: nobody else's locks are
touched, and nothing is left behind. A server is kept busy meanwhile: do not do it to one in use.
Without a URL: an embedded store in a new file, and memory (threads of one process).

examples:
  lockfast bench
  lockfast bench --compare redis://localhost:6379/0 sqlite:///var/tmp/bench.db
  lockfast bench --compare --svg chart.svg --json figures.json redis://:secret@localhost/0
  lockfast bench --contenders 1,200 --seconds 1 --rounds 1 redis://localhost:6379/0

exit codes:
  0    measured
  1    two contenders were inside at once: the lock is broken
  2    wrong usage, or a store that cannot be reached; nothing was measured
  69   a store went away while it was measured
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "lockfast bench [--compare] [URL …] [--contenders N,N,…] [--seconds S]"
        "\n                      [--rounds N] [--processes N] [--svg FILE] [--json FILE]"
    )
    parser.description = "Measure one lock on each store, under 1, 10 and 50 contenders."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="a store, as lockfast.connect() takes it")
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


def do(given: argparse.Namespace) -> int:
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


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers and commas, as 1,10,50") from None

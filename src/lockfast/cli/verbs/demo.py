"""`lockfast demo`: what can be said."""

from __future__ import annotations

import argparse

from lockfast.cli import demo


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Eight processes, one counter, with and without the lock; a killed holder; "
        "a stale writer. Exits with 0 only if everything went as claimed."
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, metavar="N", help="about how long (default: 15)"
    )


def do(given: argparse.Namespace) -> int:
    return demo.show(seconds=given.seconds)

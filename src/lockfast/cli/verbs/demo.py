"""`lockfast demo`: options and help."""

from __future__ import annotations

import argparse

from lockfast.cli import demo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show eight processes that increment one counter, with and without the lock; holders that "
        "are killed; a stale writer that is refused. Exits with 0 only if every claim held."
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=15.0,
        metavar="N",
        help="approximate duration in seconds (default: 15)",
    )


def execute(args: argparse.Namespace) -> int:
    return demo.show(seconds=args.seconds)

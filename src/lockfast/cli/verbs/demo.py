"""`lockfast demo`: options and help."""

from __future__ import annotations

import argparse

from lockfast.cli import demo
from lockfast.cli.options import add_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show eight processes that increment one counter, with and without the lock; holders that "
        "are killed; a stale writer that is refused. Exits with 0 only if every claim held."
    )
    what = "approximate duration in seconds (default: 15)"
    add_number(parser, "--seconds", float, "N", what, 15.0)


def execute(args: argparse.Namespace) -> int:
    return demo.show(seconds=args.seconds)

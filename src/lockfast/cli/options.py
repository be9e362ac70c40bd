"""What several verbs take: which store, which namespace; and the client that they speak of."""

from __future__ import annotations

import argparse

from lockfast.sync import Client, connect

HELP = argparse.RawDescriptionHelpFormatter

EXITS = """\
exit codes:
  0    {done}
{more}  2    wrong usage, a wrong name or a wrong URL
  69   the store cannot be reached, or refuses us
  130, 141, 143   ended by Ctrl-C, by a pipe that nobody reads, by SIGTERM
"""


def exits(done: str, more: str = "") -> str:
    """The end of a verb's help."""
    return EXITS.format(done=done, more=more)


def add_store(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", metavar="U", help="the store (default: $LOCKFAST_URL, or embedded)")
    add("--namespace", metavar="N", help="names of another namespace are other names")


def add_once(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once",
        action="store_true",
        help="NAME is what @once_every runs once per period, not a lock",
    )


def add_json(parser: argparse.ArgumentParser, what: str = "one JSON document, for scripts") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def client_of(given: argparse.Namespace) -> Client:
    """No I/O yet."""
    if given.namespace is None:
        return connect(given.url)
    return connect(given.url, namespace=given.namespace)

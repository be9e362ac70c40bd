"""Options that several verbs share (the store, the namespace, JSON), and the client they select."""

from __future__ import annotations

import argparse

from lockfast.sync import Client, connect

HELP = argparse.RawDescriptionHelpFormatter

EXITS = """\
exit codes:
  0    {done}
{more}  2    wrong usage, invalid name or invalid URL
  69   the store cannot be reached, or refuses access
  130, 141, 143   ended by Ctrl-C, by a closed pipe, by SIGTERM
"""


def exits(done: str, more: str = "") -> str:
    """Format the exit codes at the end of a verb's help."""
    return EXITS.format(done=done, more=more)


def add_store(parser: argparse.ArgumentParser, *, namespace: str = "default") -> None:
    add = parser.add_argument
    add(
        "--url",
        metavar="U",
        help="URL of the store (default: $LOCKFAST_URL, else this user's embedded store)",
    )
    add("--namespace", metavar="N", help=f"namespace of the names (default: {namespace})")


def add_once(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once",
        action="store_true",
        help="NAME is a periodic job of @once_every, not a lock",
    )


def add_json(
    parser: argparse.ArgumentParser, what: str = "print one JSON document, for scripts"
) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def client_of(args: argparse.Namespace) -> Client:
    """Create the client. Nothing is sent to the store yet."""
    if args.namespace is None:
        return connect(args.url)
    return connect(args.url, namespace=args.namespace)

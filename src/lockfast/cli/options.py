"""Options that several verbs share (the store, the namespace, JSON), and the client they select."""

from __future__ import annotations

import argparse
from collections.abc import Callable

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


def explain(parser: argparse.ArgumentParser, description: str, epilog: str) -> None:
    parser.description, parser.epilog, parser.formatter_class = description, epilog, HELP


def add_number(
    parser: argparse.ArgumentParser,
    option: str,
    convert: Callable[[str], object],
    metavar: str,
    text: str,
    default: object = None,
) -> None:
    parser.add_argument(option, type=convert, metavar=metavar, help=text, default=default)


def add_names(parser: argparse.ArgumentParser, verb: str) -> None:
    what = f"{verb} only names that begin with PREFIX"
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help=what)
    what = f"{verb} the names of all namespaces"
    parser.add_argument("-A", "--all-namespaces", action="store_true", help=what)


def add_wide(parser: argparse.ArgumentParser) -> None:
    what = "do not shorten columns to fit the screen"
    parser.add_argument("-w", "--wide", action="store_true", help=what)


def add_store(parser: argparse.ArgumentParser, *, namespace: str = "default") -> None:
    what = "URL of the store (default: $LOCKFAST_URL, else this user's embedded store)"
    parser.add_argument("--url", metavar="U", help=what)
    what = f"namespace of the names (default: {namespace})"
    parser.add_argument("--namespace", metavar="N", help=what)


def add_once(parser: argparse.ArgumentParser) -> None:
    what = "NAME is a periodic job of @once_every, not a lock"
    parser.add_argument("--once", action="store_true", help=what)


def add_json(parser: argparse.ArgumentParser, prints: str = "one JSON document") -> None:
    what = f"print {prints}, for scripts"
    parser.add_argument("--json", action="store_true", help=what)


def client_of(args: argparse.Namespace) -> Client:
    """Create the client. Nothing is sent to the store yet."""
    if args.namespace is None:
        return connect(args.url)
    return connect(args.url, namespace=args.namespace)

"""The command line: its verbs, the options and exit codes they share, and errors in one line.

A verb is a function with the decorator `verb`, and a line in `VERBS`. Its module is imported only
when the verb is used, so that `lockfast run` starts fast.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Never

import lockfast
from lockfast.cli.screen import printable
from lockfast.errors import ConfigurationError, LockfastError, Unsupported

DESCRIPTION = "One thing at a time, across threads, processes and machines."

EXAMPLES = """\
examples:
  lockfast run report -- ./report.sh               wait for the lock, then run
  lockfast run report --timeout 0 -- ./report.sh   run, or exit 75 if the lock is held
  lockfast ls                                      list what is held, and by whom
  lockfast show report                             show its holders and waiters
  lockfast doctor redis://localhost:6379/0         check a store
  lockfast demo                                    watch a 15-second demonstration

The store is --url, or $LOCKFAST_URL, or else this user's embedded store (SQLite) on this host.
Other users of this host can read a password in --url (ps); put it into $LOCKFAST_URL instead.
`lockfast VERB --help` shows the options, examples and exit codes of a verb.
"""

# Verb: its module and the name in it, and its one-line help.
VERBS = {
    "run": ("run.run", "hold a lock while a command runs"),
    "ls": ("holds.ls", "list the names that are held or waited for"),
    "show": ("holds.show", "show the holders and waiters of a name"),
    "break": ("holds.break_hold", "break a hold, identified by its fence"),
    "top": ("top.top", "watch all names live, on a full screen"),
    "watch": ("watch.watch", "print hand-overs and losses of a name as they happen"),
    "doctor": ("doctor.doctor", "check whether a store is fit for locks"),
    "schema": ("scripts.schema", "print the tables of a SQL store, for your migrations"),
    "completion": ("scripts.completion", "print a completion script for your shell"),
    "demo": ("demo.demo", "demonstrate the lock in 15 seconds"),
    "bench": ("bench.bench", "measure speed, fairness and cost of a lock"),
}

# The exit codes follow sysexits.h (unavailable, OS error, temporary failure); 76 is our own.
NO, USAGE, UNREACHABLE, NO_PROCESS, BUSY, LOST = 1, 2, 69, 71, 75, 76
NOT_EXECUTABLE, NOT_FOUND = 126, 127
INTERRUPTED, TERMINATED, BROKEN_PIPE = 130, 143, 141

HELP = argparse.RawDescriptionHelpFormatter
Declare = Callable[[argparse.ArgumentParser], object]  # adds options to a parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code. ``run`` takes over the signals of this process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse: --help, --version, wrong usage
        return end.code if isinstance(end.code, int) else 0
    except (ConfigurationError, Unsupported) as error:
        return fail(str(error), USAGE)
    except LockfastError as error:
        return fail(str(error), UNREACHABLE)
    except UnicodeError as error:  # an argument that is not valid UTF-8
        return fail(f"an argument is not valid text: {error}", USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # ls | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _dispatch(arguments: list[str]) -> int:
    # Everything after the first "--" belongs to the command: argparse must not parse it.
    command: list[str] | None = None
    if arguments[:1] == ["run"] and "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    parser = Parser(prog="lockfast", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=HELP)
    parser.add_argument("--version", action="version", version=f"lockfast {lockfast.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (_, summary) in VERBS.items():
        options = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if arguments[:1] == [name]:
            declare(name, options)
    args = parser.parse_args(arguments)
    args.command = command
    if "execute" not in args:  # an option before the verb, or an abbreviation argparse accepted
        parser.error("the verb must come first")
    return int(args.execute(args))


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line."""

    def error(self, message: str) -> Never:
        self.exit(USAGE, f"lockfast: {printable(message)} (see {self.prog} --help)\n")


def declare(name: str, parser: argparse.ArgumentParser) -> None:
    """Import the verb, and declare its options."""
    module, _, attribute = VERBS[name][0].rpartition(".")
    getattr(importlib.import_module(f"lockfast.cli.{module}"), attribute)(parser)


def verb(
    description: str, epilog: str, options: Sequence[Declare], *, usage: str | None = None
) -> Callable[[Callable[[argparse.Namespace], int]], Declare]:
    """Make a verb of the function that executes it."""

    def verb_of(execute: Callable[[argparse.Namespace], int]) -> Declare:
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.description, parser.epilog, parser.usage = description, epilog, usage
            parser.formatter_class = HELP
            parser.set_defaults(execute=execute)
            for add in options:
                add(parser)

        return add_arguments

    return verb_of


def option(*flags: str, **keywords: Any) -> Declare:
    """Make an option, with the arguments of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*flags, **keywords)


def switch(*flags: str, help: str) -> Declare:
    return option(*flags, action="store_true", help=help)


NAME = option("name", metavar="NAME", help="name of the lock")
ONCE = switch("--once", help="NAME is a periodic job of @once_every, not a lock")
WIDE = switch("-w", "--wide", help="do not shorten columns to fit the screen")
JSON = switch("--json", help="print one JSON document, for scripts")


def names(does: str) -> tuple[Declare, Declare]:
    what = f"{does} only names that begin with PREFIX"
    prefix = option("prefix", nargs="?", default="", metavar="PREFIX", help=what)
    return prefix, switch("-A", "--all-namespaces", help=f"{does} the names of all namespaces")


def store(namespace: str = "default") -> tuple[Declare, Declare]:
    what = "URL of the store (default: $LOCKFAST_URL, else this user's embedded store)"
    url = option("--url", metavar="U", help=what)
    what = f"namespace of the names (default: {namespace})"
    return url, option("--namespace", metavar="N", default=namespace, help=what)


def exits(done: str, more: str = "") -> str:
    """Format the exit codes at the end of a verb's help."""
    return f"""\
exit codes:
  0    {done}
{more}  2    wrong usage, invalid name or invalid URL
  69   the store cannot be reached, or refuses access
  130, 141, 143   ended by Ctrl-C, by a closed pipe, by SIGTERM
"""


def fail(message: str, code: int) -> int:
    """Print the message and return the exit code."""
    print_stderr(message)
    return code


def print_stderr(message: str) -> None:
    """Print one line on stderr. A stderr that is closed at the other end must not stop us."""
    with contextlib.suppress(OSError):
        print(f"lockfast: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

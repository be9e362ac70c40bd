"""Command line: find the verb, run it, and report errors in one line instead of a traceback.

A verb is a module of `lockfast.cli.verbs`, imported only when it is used.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Never

import lockfast
from lockfast.cli.exit_codes import BROKEN_PIPE, INTERRUPTED, UNREACHABLE, USAGE, fail
from lockfast.cli.options import HELP
from lockfast.cli.sanitize import printable
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

# Verb: its module, and its one-line help.
VERBS = {
    "run": ("run", "hold a lock while a command runs"),
    "ls": ("ls", "list the names that are held or waited for"),
    "show": ("show", "show the holders and waiters of a name"),
    "break": ("break_hold", "break a hold, identified by its fence"),
    "top": ("top", "watch all names live, on a full screen"),
    "watch": ("watch", "print hand-overs and losses of a name as they happen"),
    "doctor": ("doctor", "check whether a store is fit for locks"),
    "schema": ("schema", "print the tables of a SQL store, for your migrations"),
    "completion": ("completion", "print a completion script for your shell"),
    "demo": ("demo", "demonstrate the lock in 15 seconds"),
    "bench": ("bench", "measure speed, fairness and cost of a lock"),
}


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
    parser, verb = _parser(arguments[0] if arguments else "")
    args = parser.parse_args(arguments)
    args.command = command
    if verb is None:  # an option before the verb, or an abbreviation that argparse accepted
        parser.error("the verb must come first")
    return int(verb.execute(args))


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line."""

    def error(self, message: str) -> Never:
        self.exit(USAGE, f"lockfast: {printable(message)} (see {self.prog} --help)\n")


def _parser(requested: str) -> tuple[argparse.ArgumentParser, Any]:
    """Build the parser, with the options of the requested verb; return it and the verb's module."""
    parser = Parser(prog="lockfast", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=HELP)
    parser.add_argument("--version", action="version", version=f"lockfast {lockfast.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    module: Any = None
    for name, (module_name, summary) in VERBS.items():
        options = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if name == requested:
            module = importlib.import_module(f"lockfast.cli.verbs.{module_name}")
            module.add_arguments(options)
    return parser, module


if __name__ == "__main__":
    sys.exit(main())

"""The command line: which verb is meant, and how errors look: one line, never a traceback.

A verb is a module of `lockfast.cli.verbs`, loaded when it is asked for.
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
from lockfast.cli.exit_codes import BROKEN_PIPE, INTERRUPTED, UNREACHABLE, USAGE, refuse
from lockfast.cli.options import HELP
from lockfast.cli.sanitize import legible
from lockfast.errors import ConfigurationError, LockfastError, Unsupported

DESCRIPTION = "One thing at a time, across threads, processes and machines."

EXAMPLES = """\
examples:
  lockfast run report -- ./report.sh               wait for the lock, then run
  lockfast run report --timeout 0 -- ./report.sh   run, or exit 75 if it runs already
  lockfast ls                                      what is held now, and by whom
  lockfast show report                             who holds it, since when, and who waits
  lockfast doctor redis://localhost:6379/0         is this store fit for locks?
  lockfast demo                                    fifteen seconds that show it all

The store is --url, or $LOCKFAST_URL, or else the embedded one of this user on this host. A password
in $LOCKFAST_URL is not seen by others on this host; one in --url is.
`lockfast VERB --help` has the options, examples and exit codes of each.
"""

# The verb, its module, and what it does.
VERBS = {
    "run": ("run", "hold a lock while a command runs"),
    "ls": ("ls", "what is held or waited for now"),
    "show": ("show", "who holds a name, since when, and who waits"),
    "break": ("break_hold", "end somebody's hold, if it is still the one that you saw"),
    "top": ("top", "a live view of what is held and waited for, on a full screen"),
    "watch": ("watch", "hand-overs and losses of a name, as they are seen"),
    "doctor": ("doctor", "is this store fit for locks, and what can be done about it"),
    "schema": ("schema", "the tables of a SQL store, as a script for your migrations"),
    "completion": ("completion", "a script that makes your shell complete all this"),
    "demo": ("demo", "a show of fifteen seconds, in this terminal"),
    "bench": ("bench", "how fast, how fairly and at what cost a lock goes round"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say; the exit code. ``run`` takes over the signals of this process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that the encoding lacks are shown too
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse: --help, --version, a wrong usage
        return end.code if isinstance(end.code, int) else 0
    except (ConfigurationError, Unsupported) as error:
        return refuse(str(error), USAGE)
    except LockfastError as error:
        return refuse(str(error), UNREACHABLE)
    except UnicodeError as error:  # letters that no terminal, host or file can have
        return refuse(f"that cannot be meant: {error}", USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # ls | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _dispatch(arguments: list[str]) -> int:
    # Everything after the first "--" is the command, options and all: argparse must not see it.
    command: list[str] | None = None
    if arguments[:1] == ["run"] and "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    parser, verb = _parser(arguments[0] if arguments else "")
    given = parser.parse_args(arguments)
    given.command = command
    if verb is None:  # an abbreviation that argparse understood, and we did not
        parser.error("the verb comes first")
    return int(verb.do(given))


class Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> Never:
        self.exit(USAGE, f"lockfast: {legible(message)} (see {self.prog} --help)\n")


def _parser(word: str) -> tuple[argparse.ArgumentParser, Any]:
    """What can be said, of the verb that is meant; and its module."""
    parser = Parser(prog="lockfast", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=HELP)
    parser.add_argument("--version", action="version", version=f"lockfast {lockfast.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    meant: Any = None
    for name, (module, summary) in VERBS.items():
        words = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if name == word:
            meant = importlib.import_module(f"lockfast.cli.verbs.{module}")
            meant.arguments(words)
    return parser, meant


if __name__ == "__main__":
    sys.exit(main())

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
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never

import lockfast
from lockfast.cli import printable
from lockfast.errors import ConfigurationError, LockfastError, Unsupported

DESCRIPTION = "One thing at a time, across threads, processes and machines."

EXAMPLES = """\
examples:
  lockfast run report ./report.sh                  wait for the lock, then run
  lockfast run report --timeout 0 ./report.sh      run, or exit 75 if the lock is held
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
    "watch": ("holds.watch", "print hand-overs and losses of a name as they happen"),
    "doctor": ("doctor.doctor", "check whether a store is fit for locks"),
    "schema": ("doctor.schema", "print the tables of a SQL store, for your migrations"),
    "completion": ("main.completion", "print a completion script for your shell"),
    "demo": ("demo.demo", "demonstrate the lock in 15 seconds"),
    "bench": ("bench.bench", "measure speed, fairness and cost of a lock"),
}

# The exit codes follow sysexits.h (unavailable, OS error, temporary failure); 76 is our own.
NO, USAGE, UNREACHABLE, NO_PROCESS, BUSY, LOST = 1, 2, 69, 71, 75, 76
NOT_EXECUTABLE, NOT_FOUND = 126, 127
INTERRUPTED, BROKEN_PIPE = 130, 141

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
    parser = Parser(prog="lockfast", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=HELP)
    parser.add_argument("--version", action="version", version=f"lockfast {lockfast.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (_, summary) in VERBS.items():
        options = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if arguments[:1] == [name]:
            declare(name, chosen := options)
    verb = arguments[0] if arguments else ""
    if verb and verb not in VERBS and not verb.startswith("-"):
        parser.error(f"there is no verb {verb!r}{_meant(verb, VERBS)}")
    command: list[str] = []
    if verb == "run":  # what belongs to the command, argparse must not parse
        arguments, command = _split(arguments, chosen)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = chosen._option_string_actions if verb in VERBS else ()
        wrong = unknown[0].partition("=")[0]
        chosen.error(f"unknown argument {wrong}{_meant(wrong, flags)}")
    args.command = command
    if "execute" not in args:  # an option before the verb, or an abbreviation argparse accepted
        parser.error("the verb must come first")
    return int(args.execute(args))


def _split(arguments: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Split the arguments of ``run`` before the command: after ``--``, or after the name."""
    named = False
    rest = enumerate(arguments[1:], 1)
    for at, argument in rest:
        if argument == "--":
            return arguments[:at], arguments[at + 1 :]
        if argument.startswith("-") and argument != "-":
            action = parser._option_string_actions.get(argument)
            if action is not None and action.nargs is None:
                next(rest, None)  # its value
        elif named:
            return arguments[:at], arguments[at:]
        else:
            named = True
    return arguments, []


def _meant(typed: str, known: Iterable[str]) -> str:
    import difflib

    found = difflib.get_close_matches(typed, known, 1)
    return f": did you mean {found[0]}?" if found else ""


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
JSON_LINES = switch("--json", help="print a JSON document per line, for scripts")


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


def end(signum: int, frame: object) -> Never:
    """Handle a signal that ends the process: unwind, and exit as a shell reports it."""
    sys.exit(128 + signum)


def fail(message: str, code: int) -> int:
    """Print the message and return the exit code."""
    print_stderr(message)
    return code


def print_stderr(message: str) -> None:
    """Print one line on stderr. A stderr that is closed at the other end must not stop us."""
    with contextlib.suppress(OSError):
        print(f"lockfast: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


# ---- lockfast completion ---------------------------------------------------------------------

# A completion script is generated from the options of the verbs, so it is always complete. Names of
# locks are read from the store, if it answers within half a second. Anybody can choose a name, and
# shells expand what they complete, so only names of harmless characters are offered.
Options = dict[str, dict[str, str]]  # by verb, the help of each long option

SHELLS = ("bash", "zsh", "fish")
NAMED = ("run", "ls", "show", "break", "watch", "top")  # verbs whose first argument is a name
PATIENCE = 0.5
MOST = 200
HARMLESS = re.compile(r"(?!-)[A-Za-z0-9_.,:/@%+=-]+").fullmatch
COMPLETION_EPILOG = f"""\
Names of locks are read from the store while you type: from $LOCKFAST_URL, or from a --url earlier
on the line. A store that does not answer within half a second yields none.

examples:
  source <(lockfast completion bash)                                  in ~/.bashrc
  source <(lockfast completion zsh)                                   in ~/.zshrc, after compinit
  lockfast completion fish > ~/.config/fish/completions/lockfast.fish

{exits("the script was printed")}"""


@verb(
    "Print a script that makes a shell complete verbs, options and names.",
    COMPLETION_EPILOG,
    [
        option("shell", choices=(*SHELLS, "names"), metavar="bash | zsh | fish"),
        # The scripts call `lockfast completion names --prefix=…`.
        option("--prefix", default="", help=argparse.SUPPRESS),
        *store(),
    ],
)
def completion(args: argparse.Namespace) -> int:
    if args.shell != "names":
        print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](_options()), end="")
        return 0
    from lockfast.cli.admin import administer, log_silenced

    # Nothing is held, and the user must not wait for a store.
    signal.signal(signal.SIGALRM, lambda signum, frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    with contextlib.suppress(LockfastError, OSError), log_silenced(), administer(args) as admin:
        found = {address.name for address in admin.addresses(args.prefix, everywhere=False)}
        harmless = sorted(name for name in found if HARMLESS(name))
        print(*harmless[:MOST], sep="\n", end="", flush=True)
    # Else the alarm could strike after the handler is gone.
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _options() -> Options:
    found = {}
    for name in VERBS:
        parser = argparse.ArgumentParser(name)
        declare(name, parser)
        found[name] = {
            option: (action.help or "").replace("%%", "%")
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--") and action.help != argparse.SUPPRESS
        }
    return found


def _cases(verbs: Options, value: str) -> str:
    """Lines of a ``case`` statement, with the options of each verb in place of the ``*``."""
    return "\n".join(
        f"        {name}) options={value.replace('*', ' '.join(options))} ;;"
        for name, options in verbs.items()
    )


def _bash(verbs: Options) -> str:
    return f"""\
# lockfast completion bash
_lockfast() {{
    local line=${{COMP_LINE:0:COMP_POINT}} word='' options='' store=() words=() at
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] || word=${{words[-1]}}
    [[ $line == *[[:space:]] ]] && words+=('')
    if (( ${{#words[@]}} == 2 )); then
        COMPREPLY=($(compgen -W '{" ".join(verbs)} --help --version' -- "$word"))
        return
    fi
    for (( at = 2; at < ${{#words[@]}} - 1; at++ )); do
        case ${{words[at]}} in
        --) COMPREPLY=($(compgen -c -- "$word")); return ;;
        --url | --namespace) store+=("${{words[at]}}" "${{words[at + 1]}}") ;;
        esac
    done
    case ${{words[1]}} in
{_cases(verbs, "'*'")}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    elif [[ ${{words[1]}} == completion ]]; then
        COMPREPLY=($(compgen -W '{" ".join(SHELLS)}' -- "$word"))
    elif [[ ' {" ".join(NAMED)} ' == *" ${{words[1]}} "* ]]; then
        COMPREPLY=($(compgen -W "$(lockfast completion names --prefix="$word" \\
            "${{store[@]}}" 2>/dev/null)" -- "$word"))
        # To bash a colon ends a word: the part before the last colon is on the line already.
        if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
            local there=${{word%"${{word##*:}}"}}
            COMPREPLY=("${{COMPREPLY[@]#"$there"}}")
        fi
    fi
}}
complete -o default -F _lockfast lockfast
"""


def _zsh(verbs: Options) -> str:
    described = "\n".join(f"        {_single(f'{verb}:{VERBS[verb][1]}')}" for verb in verbs)
    return f"""\
#compdef lockfast
_lockfast() {{
    local -a verbs options store names
    local at
    verbs=(
{described}
    )
    if (( CURRENT == 2 )); then
        _describe 'verb' verbs
        return
    fi
    for (( at = 3; at < CURRENT; at++ )); do
        case $words[at] in
        --) shift $at words; (( CURRENT -= at )); _normal; return ;;
        --url|--namespace) store+=("$words[at]" "$words[at+1]") ;;
        esac
    done
    case $words[2] in
{_cases(verbs, "(*)")}
    esac
    if [[ $words[CURRENT] == -* ]]; then
        compadd -- $options
    elif [[ $words[2] == completion ]]; then
        compadd -- {" ".join(SHELLS)}
    elif [[ ' {" ".join(NAMED)} ' == *" $words[2] "* ]]; then
        names=(${{(f)"$(lockfast completion names --prefix=$words[CURRENT] $store 2>/dev/null)"}})
        compadd -- $names
    fi
}}
compdef _lockfast lockfast
"""


def _fish(verbs: Options) -> str:
    lines = ["# lockfast completion fish", "complete -c lockfast -f"]
    for name, options in verbs.items():
        described = f"-a {name} -d {_single(VERBS[name][1])}"
        lines.append(f"complete -c lockfast -n __fish_use_subcommand {described}")
        for flag, help_text in options.items():
            described = f"-l {flag.removeprefix('--')} -d {_single(help_text)}"
            seen = f"'__fish_seen_subcommand_from {name}'"
            lines.append(f"complete -c lockfast -n {seen} {described}")
    named = f"'__fish_seen_subcommand_from {' '.join(NAMED)}'"
    names = "'(lockfast completion names --prefix=(commandline -ct) 2>/dev/null)'"
    lines.append(f"complete -c lockfast -n {named} -a {names}")
    in_verb, shells = "'__fish_seen_subcommand_from completion'", _single(" ".join(SHELLS))
    lines.append(f"complete -c lockfast -n {in_verb} -a {shells}")
    return "\n".join(lines) + "\n"


def _single(text: str) -> str:
    """Quote one of our own texts, which contain nothing special to fish or zsh but the quote."""
    return "'" + text.replace("'", "’") + "'"


if __name__ == "__main__":
    sys.exit(main())

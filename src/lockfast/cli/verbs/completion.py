"""`lockfast completion bash|zsh|fish`: print a completion script.

The script is generated from the options of the verbs, so it is always complete. Names of locks are
read from the store, if it answers within half a second. Anybody can choose a name, and shells
expand what they complete, so only names of harmless characters are offered.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
from types import FrameType

from lockfast.cli.admin import Admin, log_silenced
from lockfast.cli.options import add_store, client_of, exits, explain
from lockfast.errors import LockfastError

SHELLS = ("bash", "zsh", "fish")
NAMED = ("run", "ls", "show", "break", "watch", "top")  # verbs whose first argument is a name
PATIENCE = 0.5
MOST = 200
HARMLESS = re.compile(r"[A-Za-z0-9_.,:/@%+=-]+").fullmatch
EPILOG = f"""\
Names of locks are read from the store while you type: from $LOCKFAST_URL, or from a --url earlier
on the line. A store that does not answer within half a second yields none.

examples:
  source <(lockfast completion bash)                                  in ~/.bashrc
  source <(lockfast completion zsh)                                   in ~/.zshrc, after compinit
  lockfast completion fish > ~/.config/fish/completions/lockfast.fish

{exits("the script was printed")}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "Print a script that makes a shell complete verbs, options and names."
    explain(parser, what, EPILOG)
    parser.add_argument("shell", choices=(*SHELLS, "names"), metavar="bash | zsh | fish")
    # The scripts call `lockfast completion names --prefix=…`.
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)
    add_store(parser)


def execute(args: argparse.Namespace) -> int:
    if args.shell == "names":
        signal.signal(signal.SIGALRM, _time_over)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        with contextlib.suppress(LockfastError, OSError), log_silenced():
            print(*_names(args), sep="\n", end="", flush=True)
        # Else the alarm could strike after the handler is gone.
        signal.setitimer(signal.ITIMER_REAL, 0)
        return 0
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](), end="")
    return 0


def _names(args: argparse.Namespace) -> list[str]:
    with client_of(args) as client:
        found = {
            address.name
            for address in Admin(client).addresses(args.prefix, everywhere=False)
            if HARMLESS(address.name) and not address.name.startswith("-")
        }
    return sorted(found)[:MOST]


def _time_over(signum: int, frame: FrameType | None) -> None:
    os._exit(0)  # nothing is held, and the user must not wait for a store


def _verbs() -> dict[str, tuple[str, dict[str, str]]]:
    """Summary of each verb, and its long options with their help."""
    from lockfast.cli.main import VERBS

    found = {}
    for verb, (module, summary) in VERBS.items():
        parser = argparse.ArgumentParser(verb)
        importlib.import_module(f"lockfast.cli.verbs.{module}").add_arguments(parser)
        options = {
            option: (action.help or "").replace("%%", "%")
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--") and action.help != argparse.SUPPRESS
        }
        found[verb] = (summary, options)
    return found


def _bash() -> str:
    verbs = _verbs()
    cases = "\n".join(
        f"        {verb}) options='{' '.join(options)}' ;;" for verb, (_, options) in verbs.items()
    )
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
{cases}
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


def _zsh() -> str:
    verbs = _verbs()
    described = "\n".join(
        f"        {_single(f'{verb}:{summary}')}" for verb, (summary, _) in verbs.items()
    )
    cases = "\n".join(
        f"        {verb}) options=({' '.join(options)}) ;;" for verb, (_, options) in verbs.items()
    )
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
{cases}
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


def _fish() -> str:
    verbs = _verbs()
    lines = ["# lockfast completion fish", "complete -c lockfast -f"]
    for verb, (summary, options) in verbs.items():
        in_verb = f"'__fish_seen_subcommand_from {verb}'"
        described = f"-a {verb} -d {_single(summary)}"
        lines.append(f"complete -c lockfast -n __fish_use_subcommand {described}")
        for option, help_text in options.items():
            name = option.removeprefix("--")
            lines.append(f"complete -c lockfast -n {in_verb} -l {name} -d {_single(help_text)}")
    named = f"'__fish_seen_subcommand_from {' '.join(NAMED)}'"
    names = "'(lockfast completion names --prefix=(commandline -ct) 2>/dev/null)'"
    lines.append(f"complete -c lockfast -n {named} -a {names}")
    in_verb, shells = "'__fish_seen_subcommand_from completion'", _single(" ".join(SHELLS))
    lines.append(f"complete -c lockfast -n {in_verb} -a {shells}")
    return "\n".join(lines) + "\n"


def _single(text: str) -> str:
    """Quote one of our own texts, which contain nothing special to fish or zsh but the quote."""
    return "'" + text.replace("'", "’") + "'"

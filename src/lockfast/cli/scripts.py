"""`lockfast completion bash|zsh|fish` and `lockfast schema URL`: print a script.

A completion script is generated from the options of the verbs, so it is always complete. Names of
locks are read from the store, if it answers within half a second. Anybody can choose a name, and
shells expand what they complete, so only names of harmless characters are offered.

The schema is for deployments where migrations create tables, with another user than the
application's. The server is not contacted: the script contains the very statements that the first
use would run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal

from lockfast.cli.admin import administer, log_silenced
from lockfast.cli.main import VERBS, declare, exits, option, store, verb
from lockfast.errors import ConfigurationError, LockfastError
from lockfast.stores import DEFAULT_URL_VARIABLE

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


SCHEMA_EPILOG = f"""\
Only the scheme of the URL matters: postgresql:// is enough. The server is not contacted.

examples:
  lockfast schema postgresql://db/app > migrations/0042_lockfast.sql
  lockfast schema postgresql:// | psql --set ON_ERROR_STOP=1 postgresql://admin@db/app
  lockfast schema mysql:// | mariadb --host db --user admin --password app

{exits("the script was printed")}"""

TABLES = ["lockfast_names", "lockfast_rows", "lockfast_transactions"]
HEAD = """\
-- The tables of lockfast, for {server}. Its first use creates them, if permitted.
-- Existing tables are left as they are.
--
--   lockfast_names         a row for each name that is in use, with its first holder
--   lockfast_rows          further holders of a name, and its waiters
--   lockfast_transactions  the rows that transaction locks lock
--
-- A user that does not own the tables needs:
{grants}
"""
GRANT = "--   GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO app;"


@verb(
    "Print the tables that a SQL store needs, as a SQL script. Connects to nothing.",
    SCHEMA_EPILOG,
    [option("store", nargs="?", metavar="URL", help="URL of the store (default: $LOCKFAST_URL)")],
)
def schema(args: argparse.Namespace) -> int:
    from lockfast.stores.sql.mysql import schema as mysql  # not while a shell waits for names
    from lockfast.stores.sql.postgres import schema as postgres

    url = args.store or os.environ.get(DEFAULT_URL_VARIABLE) or ""
    match re.split(r"[^a-z+]", url, maxsplit=1)[0]:
        case "postgresql" | "postgres":
            server, grants = "PostgreSQL 12 or later", [", ".join(TABLES)]
            tables = postgres.TABLES
        case "mysql" | "mariadb":
            server, grants = "MariaDB 10.6 or later, or MySQL 8", TABLES
            tables = "".join(f"{table.rstrip()};\n" for table in mysql.TABLES)
        case "":
            raise ConfigurationError("no URL: use lockfast schema postgresql://… (or mysql://…)")
        case other:
            needing = "postgresql://, mysql:// and mariadb:// do"
            raise ConfigurationError(f"{other}:// needs no tables; {needing}")
    print(HEAD.format(server=server, grants="\n".join(map(GRANT.format, grants))) + tables, end="")
    return 0

"""`lockfast schema URL`: print the tables that a SQL store creates on its first use.

For deployments where migrations create tables, with another user than the application's. The server
is not contacted: the script contains the very statements that the first use would run.
"""

from __future__ import annotations

import argparse
import os
import re

from lockfast.cli.options import exits, explain
from lockfast.errors import ConfigurationError
from lockfast.stores import DEFAULT_URL_VARIABLE
from lockfast.stores.sql.mysql.schema import TABLES as MYSQL_TABLES
from lockfast.stores.sql.postgres.schema import TABLES as POSTGRES_TABLES

EPILOG = f"""\
Only the scheme of the URL matters: postgresql:// is enough. The server is not contacted.

examples:
  lockfast schema postgresql://db/app > migrations/0042_lockfast.sql
  lockfast schema postgresql:// | psql --set ON_ERROR_STOP=1 postgresql://admin@db/app
  lockfast schema mysql:// | mariadb --host db --user admin --password app

{exits("the script was printed")}"""

TABLES = ("lockfast_names", "lockfast_rows", "lockfast_transactions")
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
POSTGRES_GRANTS = f"--   GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(TABLES)} TO app;"
MYSQL_GRANTS = "\n".join(
    f"--   GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO app;" for table in TABLES
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "Print the tables that a SQL store needs, as a SQL script. Connects to nothing."
    explain(parser, what, EPILOG)
    what = "URL of the store (default: $LOCKFAST_URL)"
    parser.add_argument("store", nargs="?", metavar="URL", help=what)


def execute(args: argparse.Namespace) -> int:
    print(script(args.store or os.environ.get(DEFAULT_URL_VARIABLE) or ""), end="")
    return 0


def script(url: str) -> str:
    """Script in the dialect of this URL."""
    known = re.match(r"[a-z+]*", url)
    match known[0] if known else "":
        case "postgresql" | "postgres":
            head = HEAD.format(server="PostgreSQL 12 or later", grants=POSTGRES_GRANTS)
            return head + POSTGRES_TABLES
        case "mysql" | "mariadb":
            server = "MariaDB 10.6 or later, or MySQL 8"
            head = HEAD.format(server=server, grants=MYSQL_GRANTS)
            return head + "".join(f"{table.rstrip()};\n" for table in MYSQL_TABLES)
        case "":
            raise ConfigurationError("no URL: use lockfast schema postgresql://… (or mysql://…)")
        case other:
            needing = "postgresql://, mysql:// and mariadb:// do"
            raise ConfigurationError(f"{other}:// needs no tables; {needing}")

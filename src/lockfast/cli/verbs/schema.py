"""`lockfast schema URL`: the tables that a SQL store would make on its first use, as a script.

For those who make tables by migrations, with a user that the application is not. Nothing is asked
of the server: what is printed are the very statements that first use would run.
"""

from __future__ import annotations

import argparse
import os
import re

from lockfast.cli.options import HELP, exits
from lockfast.errors import ConfigurationError
from lockfast.stores import DEFAULT_URL_VARIABLE
from lockfast.stores.sql.mysql.schema import TABLES as MYSQL_TABLES
from lockfast.stores.sql.postgres.schema import TABLES as POSTGRES_TABLES

EPILOG = f"""\
Only the URL's beginning counts, and the server is not asked: postgresql:// is as good as the whole.

examples:
  lockfast schema postgresql://db/app > migrations/0042_lockfast.sql
  lockfast schema postgresql:// | psql --set ON_ERROR_STOP=1 postgresql://admin@db/app
  lockfast schema mysql:// | mariadb --host db --user admin --password app

{exits("printed")}"""

TABLES = ("lockfast_names", "lockfast_rows", "lockfast_transactions")
HEAD = """\
-- The tables of lockfast, for {server}: what its first use would make, if it may.
-- Tables that are there already stay as they are.
--
--   lockfast_names         a row for each name that is in use, with its first holder
--   lockfast_rows          who else holds a name, and who waits for it
--   lockfast_transactions  the rows that transaction locks lock
--
-- A user that owns none of it needs:
{grants}
"""
POSTGRES_GRANTS = f"--   GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(TABLES)} TO app;"
MYSQL_GRANTS = "\n".join(
    f"--   GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO app;" for table in TABLES
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "The tables that a SQL store needs, as a script. It connects to nothing."
    parser.epilog = EPILOG
    parser.formatter_class = HELP
    parser.add_argument("store", nargs="?", metavar="URL", help="default: $LOCKFAST_URL")


def do(given: argparse.Namespace) -> int:
    url = given.store or os.environ.get(DEFAULT_URL_VARIABLE) or ""
    print(script(url), end="")
    return 0


def script(url: str) -> str:
    """For the dialect of this URL."""
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
            raise ConfigurationError(
                "lockfast schema postgresql://… (or mysql://…): no URL is given"
            )
        case other:
            raise ConfigurationError(
                f"{other}:// has no tables to make: postgresql://, mysql:// and mariadb:// have"
            )

"""Differences between MySQL and MariaDB. These tests also run without a MySQL server
(LOCKFAST_MYSQLD): the statements must not use what MySQL lacks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.errors import BackendError
from lockfast.stores.sql.mysql import schema, transactions
from lockfast.stores.sql.mysql.dialect import refuse_unfit

# Syntax that MariaDB has and MySQL 8 has not.
MARIADB_ONLY = (
    r"\bRETURNING\b",
    r"\bSET\s+STATEMENT\b",
    r"\bFOR\s+UPDATE\s+WAIT\b",
    r"\bNEXT(\s+VALUE\s+FOR|VAL)\b",
    r"\bCREATE\s+OR\s+REPLACE\b",
    r"\bEXECUTE\s+IMMEDIATE\b",
    r"@@in_transaction\b",
    r"\bPERSISTENT\b",
    r"\b(INET6|UUID)\s+NOT\s+NULL\b",
)
# Words that only MySQL 8 reserves.
RESERVED = {
    "cube", "cume_dist", "dense_rank", "empty", "except", "first_value", "function", "grouping",
    "groups", "intersect", "json_table", "lag", "last_value", "lateral", "lead", "nth_value",
    "ntile", "of", "over", "percent_rank", "rank", "recursive", "row_number", "rows", "system",
    "window",
}  # fmt: skip


def statements() -> Iterator[tuple[str, str]]:
    for module in (schema, transactions):
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, str | tuple):
                for text in (value,) if isinstance(value, str) else value:
                    yield f"{module.__name__}.{name}", text


def test_no_statement_uses_syntax_that_only_mariadb_has():
    found = list(statements())
    assert len(found) > 30
    for name, text in found:
        for pattern in MARIADB_ONLY:
            assert not re.search(pattern, text, re.IGNORECASE), f"{name}: {pattern}"


def test_no_column_or_alias_is_reserved_in_mysql():
    for table in schema.TABLES:
        columns = re.findall(r"^    ([a-z_]+) ", table, re.MULTILINE)
        assert len(columns) >= 4
        assert not set(columns) & RESERVED
    for name, text in statements():
        aliases = re.findall(r"\bAS ([a-z_]+)", text)
        assert not set(aliases) & RESERVED, name


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"read_only": "ON"}, "read_only"),
        ({"super_read_only": "1"}, "super_read_only"),
        ({"transaction_read_only": "ON"}, "transaction_read_only"),
        ({"wsrep_on": "ON"}, "Galera"),
        ({"group_replication_single_primary_mode": "OFF"}, "several primaries"),
    ],
)
def test_servers_that_cannot_keep_a_lock_are_refused_with_the_reason(variables, message):
    with pytest.raises(BackendError, match=message) as caught:
        refuse_unfit({"read_only": "OFF"} | variables, "mysql at h:3306/app")
    assert not caught.value.transient


def test_a_single_primary_is_fit():
    refuse_unfit({"read_only": "OFF", "wsrep_on": "OFF"}, "here")
    refuse_unfit({"group_replication_single_primary_mode": "ON"}, "here")


def test_the_process_list_shows_our_statements_as_text(mariadb_server):
    """MySQL shows statements with their values; binary values among them break the list for all."""
    name = "a \U0001f600"
    client = lockfast.connect(mariadb_server.url)
    client.lock(name).acquire().release()
    claiming = threading.Thread(target=lambda: client.lock(name).acquire(timeout=9).release())
    with mariadb_server.connect() as other, other.cursor() as cursor:
        cursor.execute("SELECT 1 FROM lockfast_names FOR UPDATE")
        claiming.start()
        until = time.monotonic() + 9
        while True:
            rows = mariadb_server.call(
                "SELECT trx_state, trx_query FROM information_schema.innodb_trx"
            )
            if seen := [query for state, query in rows if state == "LOCK WAIT"]:
                break
            assert time.monotonic() < until
            time.sleep(0.01)
        shown = str(mariadb_server.call("SHOW FULL PROCESSLIST"))
        listed = str(mariadb_server.call("SELECT info FROM information_schema.processlist"))
        other.rollback()
    claiming.join()
    client.close()
    assert "lockfast_names" in seen[0] and "lockfast_names" in shown and "lockfast_names" in listed

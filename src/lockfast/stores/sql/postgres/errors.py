"""What PostgreSQL says when it will not: which of it passes by itself, and what to do."""

from __future__ import annotations

import re

from lockfast.errors import BackendError
from lockfast.stores.sql.errors import Again, NoTables

AGAIN = {
    "40001": "another transaction was faster",
    "40P01": "a deadlock",
    "55P03": "a row stayed locked",
    "26000": "a prepared statement is gone: a pooler gave us another connection",
    "42P05": "a prepared statement is there already: a pooler gave us another connection",
    "0A000": "a prepared statement is of older tables",
}
LEAST_RIGHTS = "who may not create tables needs those that `lockfast schema` prints;"
# Whether it is worth asking again, and what an operator can do.
_CONDITIONS = {
    "25006": (False, "it is read-only, a standby perhaps: give the address of the primary"),
    "42501": (False, f"{LEAST_RIGHTS} docs/postgresql.md lists the least rights"),
    "28P01": (False, "the user name or the password is wrong"),
    "28000": (False, "it does not let this user in: see its pg_hba.conf"),
    "3D000": (False, "there is no such database"),
    "53300": (True, "it has no free connection: raise its max_connections"),
    "57P01": (True, "an administrator ended the connection, or it is shutting down"),
    "57P02": (True, "it has crashed and is coming back"),
    "57P03": (True, "it is starting up, or shutting down"),
    "57014": (True, "it was cancelled, or took longer than its statement_timeout"),
    "57P05": (True, "the connection was idle for too long"),
    "53100": (True, "its disk is full"),
    "53200": (True, "it is out of memory"),
    "23505": (True, "others were faster"),
}


def explained(code: str, said: str, where: str) -> Exception:
    """An error with this SQLSTATE, as an exception."""
    if code == "42P01":
        return NoTables()
    if code in AGAIN:
        return Again(AGAIN[code])
    transient, hint = _CONDITIONS.get(code, (code[:2] in ("08", "53", "57", "58"), ""))
    if code.startswith("42") and not hint:
        hint = "its tables were made by another version of lockfast, or by somebody else"
    said = said.strip().splitlines()[0] if said.strip() else "an error without words"
    return BackendError(f"{where} said: {said}{f' ({hint})' if hint else ''}", transient=transient)


def not_connected(said: str, where: str) -> BackendError:
    """libpq gives no code for this; what the server said stands in its words."""
    text = re.sub(r"\s+", " ", said).strip()
    final = (
        "password authentication failed",
        "no password supplied",
        "no pg_hba.conf entry",
        "does not exist",
        "certificate",
        "does not support SSL",
        "authentication method",
        "session is read-only",
        "not permitted to log in",
    )
    passing = "starting up" in text or "shutting down" in text
    transient = passing or not any(word in text for word in final)
    if "session is read-only" in text:
        text += " (a standby: give the address of the primary)"
    if "too many clients" in text or "too many connections" in text:
        text += " (raise its max_connections)"
    return BackendError(f"{where} is out of reach: {text}", transient=transient)

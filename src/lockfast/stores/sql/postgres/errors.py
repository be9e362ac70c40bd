"""Error mapping of PostgreSQL: which errors are transient, and what an operator can do."""

from __future__ import annotations

import re

from lockfast.errors import BackendError
from lockfast.stores.sql.errors import NoTables, Retry

AGAIN = {
    "40001": "a serialization failure",
    "40P01": "a deadlock",
    "55P03": "a row stayed locked",
    "26000": "a prepared statement is missing: a pooler switched the session",
    "42P05": "a prepared statement exists already: a pooler switched the session",
    "0A000": "a prepared statement is older than the tables",
}
LEAST_RIGHTS = "a user without CREATE needs the tables that `lockfast schema` prints;"
# By SQLSTATE: whether the error is transient, and what an operator can do.
_ERRORS = {
    "25006": (False, "it is read-only, perhaps a standby: use the address of the primary"),
    "42501": (False, f"{LEAST_RIGHTS} docs/postgresql.md lists the least rights"),
    "28P01": (False, "the user name or the password is wrong"),
    "28000": (False, "it rejects this user: see its pg_hba.conf"),
    "3D000": (False, "there is no such database"),
    "53300": (True, "it has no free connection: raise its max_connections"),
    "57P01": (True, "an administrator ended the connection, or it is shutting down"),
    "57P02": (True, "it has crashed and is recovering"),
    "57P03": (True, "it is starting up, or shutting down"),
    "57014": (True, "it was cancelled, or took longer than its statement_timeout"),
    "57P05": (True, "the connection was idle for too long"),
    "53100": (True, "its disk is full"),
    "53200": (True, "it is out of memory"),
    "23505": (True, "another client inserted the row first"),
}


def exception_for(code: str, message: str, where: str) -> Exception:
    """Map a server error to an exception."""
    if code == "42P01":
        return NoTables()
    if code in AGAIN:
        return Retry(AGAIN[code])
    transient, hint = _ERRORS.get(code, (code[:2] in ("08", "53", "57", "58"), ""))
    if code.startswith("42") and not hint:
        hint = "its tables were created by another version of lockfast, or by another program"
    message = message.strip().splitlines()[0] if message.strip() else f"SQLSTATE {code}"
    hint = f" ({hint})" if hint else ""
    return BackendError(f"{where} reported: {message}{hint}", transient=transient)


def not_connected(message: str, where: str) -> BackendError:
    """Map a failure to connect. libpq has no code for it; the server's reason is in the message."""
    text = re.sub(r"\s+", " ", message).strip()
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
    transient = passing or not any(phrase in text for phrase in final)
    if "session is read-only" in text:
        text += " (a standby: use the address of the primary)"
    if "too many clients" in text or "too many connections" in text:
        text += " (raise its max_connections)"
    return BackendError(f"{where} is out of reach: {text}", transient=transient)

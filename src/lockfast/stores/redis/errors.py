"""Map a Redis server's errors to exceptions: which are transient, and what an operator can do."""

from __future__ import annotations

import re

from lockfast.errors import BackendError

# The code of an error, whether a retry may succeed, and what an operator can do.
_ERRORS: dict[str, tuple[bool, str]] = {
    "LOADING": (True, "the server is loading its data from disk"),
    "BUSY": (True, "another client's script is running for too long; SCRIPT KILL ends it"),
    "READONLY": (True, "this is a replica; connect to the master"),
    "UNBLOCKED": (True, "the server has just become a replica"),
    "MASTERDOWN": (True, "this is a replica that has lost its master"),
    "NOREPLICAS": (True, "min-replicas-to-write is not met"),
    "OOM": (True, "maxmemory is used up: raise it, or keep locks on a server of their own"),
    "MISCONF": (True, "the server cannot save to disk and refuses writes: look at its log"),
    "TRYAGAIN": (True, "a slot is migrating"),
    "CLUSTERDOWN": (True, "the cluster is down"),
    "NOAUTH": (
        False,
        "authentication failed: a password is required, as in redis://user:password@host",
    ),
    "WRONGPASS": (False, "authentication failed: the user name or the password is wrong"),
    "NOPERM": (False, ""),
    "WRONGTYPE": (False, ""),
    "NOPROTO": (False, "lockfast needs Redis 6.2 or later, or Valkey"),
}

# Codes of a server that is not the master (any more): the master has to be found anew.
_MOVED = ("READONLY", "MASTERDOWN", "UNBLOCKED")


class ServerError(Exception):
    """An error reply as received. A value, not raised; `explained` makes an exception of it."""


class Unreachable(BackendError):
    """The connection failed; the server did not reply."""


class Redirected(BackendError):
    """A cluster's node names another node: from now on (MOVED), or for this command (ASK), while a
    slot migrates. Without cluster support a retry cannot help."""

    def __init__(self, message: str, *, slot: int, endpoint: str, temporary: bool) -> None:
        super().__init__(message, transient=False)
        self.slot = slot
        self.endpoint = endpoint  # 'host:port'; no host: the node that replied
        self.temporary = temporary


class Unsettled(BackendError):
    """A state that ends soon by itself: a slot migrates, or a failover is under way."""


_UNSETTLED = ("TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "LOADING")
_redirected = re.compile(r"(MOVED|ASK) (\d{1,5}) (\S*:\d+)").fullmatch


def explained(error: ServerError, where: str, key: str = "", source: str = "") -> BackendError:
    """An exception with a hint. ``key`` is the lock's first key, ``source`` the script's source."""
    message = str(error)
    code = _code_of(message)
    if "max number of clients" in message:
        return BackendError(f"{where} has no free connection: {message} (raise its maxclients)")
    if elsewhere := _redirected(message):
        return Redirected(
            f"{where} replied: {message} (it is a node of a cluster: use redis+cluster://)",
            slot=int(elsewhere[2]),
            endpoint=elsewhere[3],
            temporary=elsewhere[1] == "ASK",
        )
    if "non local key" in message:  # the slot began to migrate while a script ran
        code = "TRYAGAIN"
    transient, hint = _ERRORS.get(code, (False, ""))
    if code == "WRONGTYPE" or "FOREIGN data" in message:
        hint = f"{key or 'a key'} holds data that lockfast did not write; it was left unchanged"
    elif (
        code == "NOPERM"
        or "ACL failure in script" in message
        or "user executing the script" in message
    ):
        hint = f"{_missing_right(message, key, source)}: docs/redis.md lists the rights needed"
    kind = Unsettled if code in _UNSETTLED else BackendError
    return kind(f"{where} replied: {message}{f' ({hint})' if hint else ''}", transient=transient)


def is_elsewhere(error: ServerError) -> bool:
    """Is the master elsewhere, so that this connection is of no use?"""
    return _code_of(str(error)) in _MOVED or "cannot be used with replica" in str(error)


def _code_of(message: str) -> str:
    code = message.split(" ", 1)[0].lstrip("-")
    if code in _ERRORS:
        return code
    # Before Redis 7 the code of an error in a script is inside the message.
    return next((known for known in _ERRORS if re.search(f"[ -]{known} ", message)), code)


def _missing_right(message: str, key: str, source: str) -> str:
    """The right that the user lacks. For commands of a script the server reports just the line."""
    if "key" in message:
        return f"the user lacks the right to keys such as {key or 'lf:…'}, ~lf:*"
    if "channel" in message:
        return "the user lacks the right to channels, &lf:wake:*"
    command = re.search(r"run the '([\w|]+)' command", message)
    line = re.search(r"user_script:(\d+)", message)
    if command is None and line is not None:
        lines = source.splitlines()[int(line[1]) - 1 : int(line[1])]
        command = re.search(r"\bp?call\('(\w+)'", "".join(lines))
        part = re.search(r"\bcall\('(PUBSUB|CLUSTER)', '(\w+)'", "".join(lines))
        if part is not None:
            right = f"+{part[1]}|{part[2]}".lower()
            return f"the user lacks the right to {part[1]} {part[2]}, {right}"
    if command is None:
        return "the user lacks a right"
    return f"the user lacks the right to {command[1].upper()}, +{command[1].lower()}"

"""What a Redis server says when it will not: which of it passes by itself, and what to do."""

from __future__ import annotations

import re

from lockfast.errors import BackendError

# The first word of an error, whether it is worth asking again, and what an operator can do.
_CONDITIONS: dict[str, tuple[bool, str]] = {
    "LOADING": (True, "it is reading its data from disk"),
    "BUSY": (True, "a script of somebody is running for too long (SCRIPT KILL ends it)"),
    "READONLY": (True, "this is a replica: connect to the master"),
    "UNBLOCKED": (True, "it has just become a replica"),
    "MASTERDOWN": (True, "this is a replica that has lost its master"),
    "NOREPLICAS": (True, "min-replicas-to-write is not met"),
    "OOM": (True, "its maxmemory is used up: give it more, or keep locks on a server of their own"),
    "MISCONF": (True, "it cannot save to disk and so refuses to write: look at its log"),
    "TRYAGAIN": (True, "a slot is being moved"),
    "CLUSTERDOWN": (True, "the cluster is down"),
    "NOAUTH": (False, "it asks for a password: redis://user:password@host"),
    "WRONGPASS": (False, "the user name or the password is wrong"),
    "NOPERM": (False, ""),
    "WRONGTYPE": (False, ""),
    "NOPROTO": (False, "lockfast needs Redis 6.2 or later, or Valkey"),
}

# It is no master (any more): look for the master anew.
_MOVED = ("READONLY", "MASTERDOWN", "UNBLOCKED")


class ServerError(Exception):
    """An error reply, as it came. A value, not raised, until somebody explains it."""


class Unreachable(BackendError):
    """The connection, not the server's answer, is the problem."""


class Redirected(BackendError):
    """A node of a cluster says which one to ask: from now on (MOVED), or just now (ASK), while a
    slot is on its way. For who does not know of clusters, asking again cannot help."""

    def __init__(self, message: str, *, slot: int, endpoint: str, just_now: bool) -> None:
        super().__init__(message, transient=False)
        self.slot = slot
        self.endpoint = endpoint  # 'host:port'; no host: the one that was asked
        self.just_now = just_now


class Unsettled(BackendError):
    """It will pass by itself, and soon: a slot is on its way, a failover under way."""


_UNSETTLED = ("TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "LOADING")
_redirected = re.compile(r"(MOVED|ASK) (\d{1,5}) (\S*:\d+)").fullmatch


def explained(error: ServerError, where: str, key: str = "", source: str = "") -> BackendError:
    """The same, for people. ``key`` is the first of the lock's, ``source`` the script's."""
    said = str(error)
    word = _word_of(said)
    if "max number of clients" in said:
        return BackendError(f"{where} has no free connection: {said} (raise its maxclients)")
    if elsewhere := _redirected(said):
        return Redirected(
            f"{where} said: {said} (it is a node of a cluster: redis+cluster://)",
            slot=int(elsewhere[2]),
            endpoint=elsewhere[3],
            just_now=elsewhere[1] == "ASK",
        )
    if "non local key" in said:  # the slot began to move while a script was at it
        word = "TRYAGAIN"
    transient, hint = _CONDITIONS.get(word, (False, ""))
    if word == "WRONGTYPE" or "FOREIGN data" in said:
        hint = f"data that lockfast did not write is under {key or 'a key'}: it was left as it is"
    elif word == "NOPERM" or "ACL failure in script" in said or "user executing the script" in said:
        hint = f"{_lacking(said, key, source)}: docs/redis.md lists the least that is needed"
    kind = Unsettled if word in _UNSETTLED else BackendError
    return kind(f"{where} said: {said}{f' ({hint})' if hint else ''}", transient=transient)


def is_elsewhere(error: ServerError) -> bool:
    """Whether the server says that it is not the one to ask, so that its connection is no good."""
    return _word_of(str(error)) in _MOVED or "cannot be used with replica" in str(error)


def _word_of(said: str) -> str:
    word = said.split(" ", 1)[0].lstrip("-")
    if word in _CONDITIONS:
        return word
    # Before Redis 7 what a script ran into stands inside.
    return next((known for known in _CONDITIONS if re.search(f"[ -]{known} ", said)), word)


def _lacking(said: str, key: str, source: str) -> str:
    """Which right it is. Of what a script calls, the server tells only the line."""
    if "key" in said:
        return f"the user lacks the right to keys such as {key or 'ours'}, ~lf:*"
    if "channel" in said:
        return "the user lacks the right to channels, &lf:wake:*"
    command = re.search(r"run the '([\w|]+)' command", said)
    line = re.search(r"user_script:(\d+)", said)
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

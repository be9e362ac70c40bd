"""What a Redis server says when it will not: which of it passes by itself, and what to do."""

from __future__ import annotations

from holdfast.errors import BackendError

# The first word of an error, whether it is worth asking again, and what an operator can do.
_CONDITIONS: dict[str, tuple[bool, str]] = {
    "LOADING": (True, "it is reading its data from disk"),
    "BUSY": (True, "a script of somebody is running for too long (SCRIPT KILL ends it)"),
    "READONLY": (True, "this is a replica: connect to the master"),
    "MASTERDOWN": (True, "this is a replica that has lost its master"),
    "NOREPLICAS": (True, "min-replicas-to-write is not met"),
    "OOM": (True, "its maxmemory is used up: give it more, or keep locks on a server of their own"),
    "MISCONF": (True, "it cannot save to disk and so refuses to write: look at its log"),
    "TRYAGAIN": (True, "a slot is being moved"),
    "CLUSTERDOWN": (True, "the cluster is down"),
    "NOAUTH": (False, "it asks for a password: redis://user:password@host"),
    "WRONGPASS": (False, "the user name or the password is wrong"),
    "NOPERM": (False, "the user lacks this right: docs/redis.md lists the least that is needed"),
    "WRONGTYPE": (False, "something else keeps its data under this key: it was left as it is"),
    "NOPROTO": (False, "holdfast needs Redis 6.2 or later, or Valkey"),
}


class ServerError(Exception):
    """An error reply, as it came. A value, not raised, until somebody explains it."""


class Unreachable(BackendError):
    """The connection, not the server's answer, is the problem."""


def explained(error: ServerError, where: str) -> BackendError:
    """The same, for people."""
    said = str(error)
    word = said.split(" ", 1)[0].lstrip("-")
    if "FOREIGN data" in said:
        word, said = "WRONGTYPE", "data that holdfast did not write is in the place of a lock"
    elif "ACL failure in script" in said or "can't run this command" in said:
        word = "NOPERM"
    elif "max number of clients" in said:
        return BackendError(f"{where} has no free connection: {said} (raise its maxclients)")
    transient, hint = _CONDITIONS.get(word, (False, ""))
    return BackendError(f"{where} said: {said}{f' ({hint})' if hint else ''}", transient=transient)

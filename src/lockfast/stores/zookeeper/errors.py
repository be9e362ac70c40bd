"""What ZooKeeper, or kazoo for it, says when it will not: which of it passes, and what to do."""

from __future__ import annotations

from typing import Any

from kazoo import exceptions as said

from lockfast.errors import BackendError
from lockfast.stores.zookeeper.requests import No

REFUSALS: dict[type[Exception], No] = {
    said.NoNodeError: No.NODE,
    said.NodeExistsError: No.EXISTS,
    said.NotEmptyError: No.EMPTY,
    said.BadVersionError: No.VERSION,
    said.RolledBackError: No.ROLLED_BACK,
    said.RuntimeInconsistency: No.ROLLED_BACK,
}

# Whether it is worth asking again, and what an operator can do.
_CONDITIONS: tuple[tuple[type[Exception], bool, str], ...] = (
    (said.AuthFailedError, False, "it refused who we say we are: look at the credentials"),
    (
        said.NoAuthError,
        False,
        "this user has no right to it: others made it under another user or ACL. Give the user in "
        "the URL, zookeeper://user:password@host, or a chroot of its own",
    ),
    (said.InvalidACLError, False, "the ACL names nobody: acl=creator needs a user in the URL"),
    (
        said.UnimplementedError,
        False,
        "it does not know what was asked: lockfast needs ZooKeeper 3.5.3 or later",
    ),
    (said.QuotaExceededError, False, "a quota is used up"),
    (said.BadArgumentsError, False, "it does not take this path or these words"),
    (said.NotReadOnlyCallError, True, "the server is cut off from the others and only reads"),
    (said.ThrottledOpError, True, "it is overloaded"),
    (said.ConnectionClosedError, True, "the session was closed"),
    (said.SessionExpiredError, True, "the session is over: all that was held in it is lost"),
    (said.ConnectionLoss, True, "the connection is lost, and whether it was done is unknown"),
)


class Unreachable(BackendError):
    """The connection, not the server's answer, is the problem."""


def explained(error: BaseException, where: str, path: str) -> BackendError:
    """The same, for people."""
    for kind, transient, hint in _CONDITIONS:
        if isinstance(error, kind):
            if transient:
                return Unreachable(f"{where}: {hint}")
            return BackendError(f"{where} refused {path}: {hint}", transient=False)
    kind_of_error: Any = type(error)
    return BackendError(f"{where}, asked for {path}, said {kind_of_error.__name__}: {error}")

"""Error mapping: ZooKeeper's and kazoo's exceptions to refusals and `BackendError`."""

from __future__ import annotations

from kazoo import exceptions as kazoo_errors

from lockfast.errors import BackendError
from lockfast.stores.zookeeper.requests import Refusal

REFUSALS: dict[type[Exception], Refusal] = {
    kazoo_errors.NoNodeError: Refusal.NO_NODE,
    kazoo_errors.NodeExistsError: Refusal.NODE_EXISTS,
    kazoo_errors.NotEmptyError: Refusal.NOT_EMPTY,
    kazoo_errors.BadVersionError: Refusal.BAD_VERSION,
    kazoo_errors.RolledBackError: Refusal.ROLLED_BACK,
    kazoo_errors.RuntimeInconsistency: Refusal.ROLLED_BACK,
}

# By the exception's name, since older versions of kazoo lack some: whether the error is transient,
# and the message for operators.
_MESSAGES = {
    "AuthFailedError": (False, "authentication failed: check the credentials"),
    "NoAuthError": (
        False,
        "this user has no right to the node: it was created by another user or with another ACL. "
        "Name the user in the URL, zookeeper://user:password@host, or use a separate chroot",
    ),
    "InvalidACLError": (False, "acl=creator needs a user in the URL: it names none"),
    "UnimplementedError": (
        False,
        "the server does not know this request: lockfast needs ZooKeeper 3.5.3 or later",
    ),
    "QuotaExceededError": (False, "a quota is exceeded"),
    "BadArgumentsError": (False, "the server rejects the path or the arguments"),
    "NotReadOnlyCallError": (True, "the server has no quorum and is read-only"),
    "ThrottledOpError": (True, "the server is overloaded"),
    "ConnectionClosedError": (True, "the session was closed"),
    "SessionExpiredError": (True, "the session has expired: all its holds are lost"),
    "ConnectionLoss": (True, "the connection is lost, and the outcome is unknown"),
}


class Unreachable(BackendError):
    """The connection failed; the server did not answer."""


def store_error(error: BaseException, where: str, path: str) -> BackendError:
    """Translate a driver's error on ``path`` into a `BackendError` with advice."""
    for kind in type(error).__mro__:
        transient, hint = _MESSAGES.get(kind.__name__, (False, ""))
        if transient:
            return Unreachable(f"{where}: {hint}")
        if hint:
            return BackendError(f"{where} refused {path}: {hint}", transient=False)
    return BackendError(f"{where} failed on {path}: {type(error).__name__}: {error}")

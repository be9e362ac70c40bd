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

# The exception, whether the error is transient, and the message for operators.
_MESSAGES: tuple[tuple[type[Exception], bool, str], ...] = (
    (kazoo_errors.AuthFailedError, False, "authentication failed: check the credentials"),
    (
        kazoo_errors.NoAuthError,
        False,
        "this user has no right to the node: it was created by another user or with another ACL. "
        "Name the user in the URL, zookeeper://user:password@host, or use a separate chroot",
    ),
    (kazoo_errors.InvalidACLError, False, "acl=creator needs a user in the URL: it names none"),
    (
        kazoo_errors.UnimplementedError,
        False,
        "the server does not know this request: lockfast needs ZooKeeper 3.5.3 or later",
    ),
    (kazoo_errors.QuotaExceededError, False, "a quota is exceeded"),
    (kazoo_errors.BadArgumentsError, False, "the server rejects the path or the arguments"),
    (kazoo_errors.NotReadOnlyCallError, True, "the server has no quorum and is read-only"),
    (kazoo_errors.ThrottledOpError, True, "the server is overloaded"),
    (kazoo_errors.ConnectionClosedError, True, "the session was closed"),
    (kazoo_errors.SessionExpiredError, True, "the session has expired: all its holds are lost"),
    (kazoo_errors.ConnectionLoss, True, "the connection is lost, and the outcome is unknown"),
)


class Unreachable(BackendError):
    """The connection failed; the server did not answer."""


def backend_error(error: BaseException, where: str, path: str) -> BackendError:
    """Translate a driver's error on ``path`` into a `BackendError` with advice."""
    for kind, transient, hint in _MESSAGES:
        if isinstance(error, kind):
            if transient:
                return Unreachable(f"{where}: {hint}")
            return BackendError(f"{where} refused {path}: {hint}", transient=False)
    return BackendError(f"{where} failed on {path}: {type(error).__name__}: {error}")

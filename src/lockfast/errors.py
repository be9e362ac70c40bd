"""Every exception of lockfast, in one family.

A message names the lock, the holder and the offending value, and says what to do. A message never
shows a password or a whole claim id. ``None`` as a return value means "not acquired"; everything
that goes wrong raises one of these exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockfast.model import Snapshot


class LockfastError(Exception):
    """Base class of every exception that lockfast raises. Picklable, as process pools require."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[LockfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class AcquireTimeout(LockfastError, TimeoutError):
    """The lock was not acquired within ``timeout`` seconds; the body did not run.

    ``snapshot`` shows the holders and waiters at the moment the caller gave up (``None`` if the
    store could not be queried any more).
    """

    def __init__(self, message: str, *, name: str, timeout: float, snapshot: Snapshot | None):
        super().__init__(message)
        self.name = name
        self.timeout = timeout
        self.snapshot = snapshot


class HoldLost(LockfastError):
    """The hold ended before it was released: its lease ran out, or the store no longer knows it.

    Another owner may hold the lock already. Stop writing; the resource must refuse every further
    write under ``fence``.
    """

    def __init__(self, message: str, *, name: str, fence: int):
        super().__init__(message)
        self.name = name
        self.fence = fence


class StaleFence(LockfastError):
    """The resource refused a write: it has seen a higher fence, so another holder took over.

    Nothing was written, and retrying with the same hold cannot succeed. ``seen`` is the highest
    fence that the resource knows, or ``None`` if the row that records it is gone.
    """

    def __init__(self, message: str, *, name: str, fence: int, seen: int | None):
        super().__init__(message)
        self.name = name
        self.fence = fence
        self.seen = seen


class NotHeld(LockfastError, RuntimeError):
    """A release or a take-over of a hold that this owner does not have."""


class WouldDeadlock(LockfastError, RuntimeError):
    """The owner already holds what it would have to wait for, so it would wait for itself forever;
    or another task of its event loop does, which a blocking call keeps from running.

    In a database: two transactions wait for each other, and the database chose this one as the
    victim. Roll back and run the transaction again.
    """


class StaleSnapshot(LockfastError):
    """The transaction read data before it asked for the lock, and would keep seeing that old data.

    Another holder has changed the data since, so the lock was not granted. Roll back, and take the
    lock before the first read, or use READ COMMITTED.
    """


class BackendError(LockfastError, ConnectionError):
    """The store could not be reached, or did not answer in time: the outcome is unknown.

    ``transient`` is False when a retry cannot help (a wrong password, a corrupt file).
    """

    def __init__(self, message: str, *, transient: bool = True):
        super().__init__(message)
        self.transient = transient


class NotReplicated(LockfastError):
    """Too few replicas acknowledged the claim in time; the claim was undone and nothing is held.

    ``acknowledged`` of ``wanted`` replicas answered. A retry may succeed once replicas are back.
    """

    def __init__(self, message: str, *, name: str, acknowledged: int, wanted: int):
        super().__init__(message)
        self.name = name
        self.acknowledged = acknowledged
        self.wanted = wanted


class QuorumError(BackendError):
    """Too few nodes of a quorum answered; the message lists the missing nodes and their errors.

    Partial grants were withdrawn from every node that could be reached.
    """


class Unsupported(LockfastError):
    """The store does not offer the requested feature; the message says why."""


class ConfigurationError(LockfastError, ValueError):
    """An invalid name, number, URL, option or key expression; raised before any I/O."""

"""Every exception of lockfast, in one family.

A message names the lock, the holder and the offending value, and says what to do. It never shows
a password or a whole claim id. ``None`` as a return value means "not acquired"; anything that went
wrong is one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockfast.model import Snapshot


class LockfastError(Exception):
    """The base of everything that lockfast raises. Can be pickled, as pools of processes need."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[LockfastError], said: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *said)
    error.args = said
    error.__dict__.update(facts)
    return error


class AcquireTimeout(LockfastError, TimeoutError):
    """The lock was not acquired within ``timeout`` seconds; the body did not run.

    ``snapshot`` tells who held it and who waited when we gave up (``None`` if the store could not
    be asked any more).
    """

    def __init__(self, message: str, *, name: str, timeout: float, snapshot: Snapshot | None):
        super().__init__(message)
        self.name = name
        self.timeout = timeout
        self.snapshot = snapshot


class HoldLost(LockfastError):
    """The hold ended without us: its lease ran out, or the store no longer knows it.

    Somebody else may hold the lock already. What was written under ``fence`` must be refused by
    the resource from now on; do not write more.
    """

    def __init__(self, message: str, *, name: str, fence: int):
        super().__init__(message)
        self.name = name
        self.fence = fence


class StaleFence(LockfastError):
    """The resource refused a write: it has seen a higher fence, so another holder took over.

    Nothing was written. ``seen`` is the fence that the resource knows (``None`` if it could not
    tell: the row is gone). To try again with the same hold cannot help.
    """

    def __init__(self, message: str, *, name: str, fence: int, seen: int | None):
        super().__init__(message)
        self.name = name
        self.fence = fence
        self.seen = seen


class NotHeld(LockfastError, RuntimeError):
    """A release, or a take-over, of something that this owner does not hold."""


class WouldDeadlock(LockfastError, RuntimeError):
    """Who asks holds what it would have to wait for: it would wait for itself, for ever. Or two
    transactions wait for each other, and the database has chosen this one to give way."""


class StaleSnapshot(LockfastError):
    """The transaction got the lock, but would go on to see data as they were before another holder
    changed them: it had read something before it asked. The lock was not given. Roll back, and take
    the lock first, or use READ COMMITTED."""


class BackendError(LockfastError, ConnectionError):
    """The store could not be reached, or did not answer in time: the outcome is unknown.

    ``transient`` is False when asking again cannot help (a wrong password, a broken file).
    """

    def __init__(self, message: str, *, transient: bool = True):
        super().__init__(message)
        self.transient = transient


class NotReplicated(LockfastError):
    """Too few replicas acknowledged the claim in time; it was undone, and nothing is held.

    ``acknowledged`` of ``wanted`` did. To ask again may help: when replicas are back.
    """

    def __init__(self, message: str, *, name: str, acknowledged: int, wanted: int):
        super().__init__(message)
        self.name = name
        self.acknowledged = acknowledged
        self.wanted = wanted


class QuorumError(BackendError):
    """Too few nodes of a quorum answered; the message says which did not, and why. What was begun
    was taken back where it could be."""


class Unsupported(LockfastError):
    """The store cannot give what was asked for; the message says why."""


class ConfigurationError(LockfastError, ValueError):
    """A name, a number, a URL or a key expression that cannot be meant; refused before any I/O."""

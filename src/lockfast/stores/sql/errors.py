"""Internal exceptions of connections and sessions, besides `BackendError`; users see none."""

from __future__ import annotations


class Retry(Exception):
    """The server rolled it back (deadlock, serialization failure): retry within the budget."""


class NoTables(Exception):
    """The tables do not exist yet."""


class RowLocked(Exception):
    """In a user's transaction: another transaction has the row locked."""


class Deadlock(Exception):
    """In a user's transaction: the database chose it as the victim of a deadlock."""


class SnapshotTooOld(Exception):
    """In a user's transaction: its snapshot is older than the last change of the row."""

"""What a link or a session raises besides `BackendError`, for us alone: no user sees it."""

from __future__ import annotations


class Again(Exception):
    """The server undid it (a deadlock, a serialization failure): ask again, inside the budget."""


class NoTables(Exception):
    """The tables are not there yet."""


class Busy(Exception):
    """Of a user's transaction: another one has the row locked."""


class Deadlock(Exception):
    """Of a user's transaction: it was chosen to give way."""


class Stale(Exception):
    """Of a user's transaction: its snapshot is older than what the row tells of."""

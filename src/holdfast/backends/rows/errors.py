"""What a link raises besides `BackendError`, for transports alone: no user sees it."""

from __future__ import annotations


class Again(Exception):
    """The server undid it (a deadlock, a serialization failure): ask again, inside the budget."""


class NoTables(Exception):
    """The tables are not there yet."""

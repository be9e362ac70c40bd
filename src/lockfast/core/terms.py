"""The terms on which a lock is acquired."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = float("inf")


class Terms(NamedTuple):
    """The validated options of a lock object."""

    name: str  # with the namespace
    lease: float
    renew: bool
    max_hold: float | None = None
    fair: bool = True
    slots: int = 1
    take: int = 1
    owner: object = None
    label: str = ""
    layout: str = ""
    template: str = ""  # the expression that the name was made of, for events
    warn_after: float | None = None

"""On what terms something is acquired."""

from __future__ import annotations

from typing import NamedTuple

FOREVER = float("inf")


class Terms(NamedTuple):
    """All that a lock object was told, checked."""

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
    template: str = ""  # what the name was made of, for those who listen
    warn_after: float | None = None

    def ends_by(self, now: float) -> float:
        """When it is over whatever happens, unless it is renewed by hand."""
        if not self.renew:
            return now + self.lease
        return FOREVER if self.max_hold is None else now + self.max_hold

"""What is said between `lockfast bench` and its processes. It goes through a pipe of our own."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Task:
    """One round: so many contenders in this process, for one name."""

    url: str
    namespace: str
    name: str
    contenders: int
    settle: float  # of the time that is told, so much is not counted


@dataclass(slots=True)
class Visits:
    """What one contender noted, visit by visit."""

    fences: array[int] = field(default_factory=lambda: array("q"))
    acquired: array[float] = field(default_factory=lambda: array("d"))
    released: array[float] = field(default_factory=lambda: array("d"))
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Noted:
    """What one process noted; requests and CPU seconds of the time that counts."""

    visits: list[Visits]
    requests: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong: one line for people."""

    message: str

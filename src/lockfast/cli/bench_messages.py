"""Messages between `lockfast bench` and its worker processes, sent through a pipe."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Task:
    """One round of one worker: its number of contenders, and the name they compete for."""

    url: str
    namespace: str
    name: str
    contenders: int
    settle: float  # seconds at the start of the round that are not counted


@dataclass(slots=True)
class Visits:
    """Record of one contender: fence, time of acquire and time of release of each hold."""

    fences: array[int] = field(default_factory=lambda: array("q"))
    acquired: array[float] = field(default_factory=lambda: array("d"))
    released: array[float] = field(default_factory=lambda: array("d"))
    timeouts: int = 0


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """Measurements of one worker; requests and CPU seconds of the counted time only."""

    visits: list[Visits]
    requests: int
    cpu: float


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """An error in a worker, as one line of text."""

    message: str

"""Health checks: the vocabulary that the stores' `health.py` modules share, for the doctor.

A store that can be checked has a method ``health_checks()``, which queries the server on a
connection of its own and judges the replies. It reports queries that the server does not permit,
and refuses nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Level(enum.IntEnum):
    """Severity. BAD: locks are not safe here, or do not work. WARN: they may be lost, or work
    badly, in a case that will occur. NOTE: good to know."""

    OK = 0
    NOTE = 1
    WARN = 2
    BAD = 3


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The result of one check. ``about`` is the subject in one word, ``found`` a sentence, ``do``
    what an operator can do about it."""

    level: Level
    about: str
    found: str
    do: str = ""
    facts: Mapping[str, float | int | str] = field(default_factory=dict)


def ok(about: str, found: str) -> HealthCheck:
    return HealthCheck(Level.OK, about, found)


def note(about: str, found: str, do: str = "") -> HealthCheck:
    return HealthCheck(Level.NOTE, about, found, do)


def warn(about: str, found: str, do: str) -> HealthCheck:
    return HealthCheck(Level.WARN, about, found, do)


def bad(about: str, found: str, do: str) -> HealthCheck:
    return HealthCheck(Level.BAD, about, found, do)


def version_of(text: str) -> tuple[int, ...]:
    """Parse a version: ``7.0.15-debian`` is (7, 0, 15)."""
    numbers: list[int] = []
    for part in text.strip().split("."):
        digits = "".join(letter for letter in part[:4] if letter.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def room_for_connections(used: int, most: int, setting: str) -> HealthCheck:
    """Check for free connections: a waiting client needs one or two for itself."""
    found = f"{used} of {most} connections are in use"
    if most and used >= most * 0.8:
        return warn(
            "connections", found, f"raise {setting}, or find out which clients leave them open"
        )
    return ok("connections", found)

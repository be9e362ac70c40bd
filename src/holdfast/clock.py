"""The two clocks of a process: one to measure by, one to date by."""

from __future__ import annotations

import time

# A lease goes on while the machine sleeps, so belief must be measured on a clock that does too.
# Linux has BOOTTIME for that; elsewhere MONOTONIC is the nearest there is.
_LEASE_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now(_read=time.clock_gettime, _clock: int = _LEASE_CLOCK) -> float:  # type: ignore[no-untyped-def]
    """Seconds that pass: never steps, runs during suspend. The same for all processes of a host."""
    return _read(_clock)  # type: ignore[no-any-return]


wall = time.time
"""Seconds since the epoch: to show, and to floor fences with. It may step."""

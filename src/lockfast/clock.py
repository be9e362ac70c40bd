"""The clocks of a process: one that measures durations, one that gives dates."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# A lease runs on while the machine is suspended, so validity is measured on a clock that does too:
# BOOTTIME on Linux. Elsewhere MONOTONIC is the best available.
_LEASE_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# A monotonic time in seconds: never steps, runs during suspend, is the same for all processes of a
# host. Bound to the system call with no Python code between, because every cycle reads it ten
# times.
now: Callable[[], float] = partial(time.clock_gettime, _LEASE_CLOCK)

# Seconds since the epoch, to show and as a lower bound of fences. It may step.
wall: Callable[[], float] = time.time

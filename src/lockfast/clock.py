"""The clocks of a process: one to measure by, one to date by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# A lease goes on while the machine sleeps, so belief must be measured on a clock that does too.
# Linux has BOOTTIME for that; elsewhere MONOTONIC is the nearest there is.
_LEASE_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

# Seconds that pass: never steps, runs during suspend. The same for all processes of a host. Bound
# to the system's function, without a line of Python between: it is asked ten times a cycle.
now: Callable[[], float] = partial(time.clock_gettime, _LEASE_CLOCK)

# Seconds since the epoch: to show, and to floor fences with. It may step.
wall: Callable[[], float] = time.time

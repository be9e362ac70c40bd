"""How the command ends, and how it complains: exit codes, and one line on stderr.

As in sysexits.h where it has a word for it: unavailable, no process, temporary failure; 76 is ours.
"""

from __future__ import annotations

import contextlib
import sys

from lockfast.cli.sanitize import legible

NO, USAGE, UNREACHABLE, NO_PROCESS, BUSY, LOST = 1, 2, 69, 71, 75, 76
NOT_EXECUTABLE, NOT_FOUND = 126, 127
INTERRUPTED, TERMINATED, BROKEN_PIPE = 130, 143, 141


def refuse(message: str, code: int) -> int:
    say(message)
    return code


def say(message: str) -> None:
    """One line for people. A stderr that nobody reads any more must not stop us."""
    with contextlib.suppress(OSError):
        print(f"lockfast: {legible(' '.join(message.split()))}", file=sys.stderr, flush=True)

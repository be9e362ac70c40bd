"""Exit codes of the command, and error messages: one line each on stderr.

The codes follow sysexits.h (unavailable, OS error, temporary failure); 76 is our own.
"""

from __future__ import annotations

import contextlib
import sys

from lockfast.cli.sanitize import printable

NO, USAGE, UNREACHABLE, NO_PROCESS, BUSY, LOST = 1, 2, 69, 71, 75, 76
NOT_EXECUTABLE, NOT_FOUND = 126, 127
INTERRUPTED, TERMINATED, BROKEN_PIPE = 130, 143, 141


def fail(message: str, code: int) -> int:
    """Print the message and return the exit code."""
    print_stderr(message)
    return code


def print_stderr(message: str) -> None:
    """Print one line on stderr. A stderr that is closed at the other end must not stop us."""
    with contextlib.suppress(OSError):
        print(f"lockfast: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)

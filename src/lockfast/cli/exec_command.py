"""Replace this process with the command: ``python exec_command.py PARENT command arguments…``.

This step exists for one thing that must happen between fork and exec: to ask Linux to kill the
command when `lockfast run` dies, even by SIGKILL. A ``preexec_fn`` would run in a forked copy of a
process with threads (the keeper), which is not safe. This costs 15 ms and imports no lockfast.

Processes that the command itself started, and a set-user-id command, are not killed: there only the
fence protects.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def exec_command(parent: int, command: list[str]) -> int:
    """Execute the command. Returns only if that fails: the exit code."""
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent:  # it died before the request, so no signal would come
            return 128 + signal.SIGKILL
    # Python ignores these two, and ignored signals stay ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # SIGINT is blocked until here, so that a Ctrl-C during start-up does not print a traceback but
    # ends the command, as it would have a moment later.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"lockfast: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def die_with_parent() -> None:
    """Request SIGKILL, not SIGTERM: a store that detects dead processes has freed the lock."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(exec_command(int(sys.argv[1]), sys.argv[2:]))

"""Becomes the command: ``python become.py PARENT command arguments…``.

It exists for one thing that must happen between fork and exec: to ask Linux to end the command
when `lockfast run` dies, even by SIGKILL, when nobody is left who could. A ``preexec_fn`` would do
it in a forked copy of a process that has threads (the keeper), which is not safe; a program of its
own is. It costs some 15 ms. It imports nothing of lockfast.

What this does not reach: what the command itself started, and a set-user-id command. There only the
fence helps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> int:
    """Does not return, unless the command cannot be executed: then the exit code."""
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent:
            return 128 + signal.SIGKILL  # it died before we asked, and nothing would tell us
    # Python ignores these two, and what is ignored stays so in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # We were started with SIGINT blocked, so that a Ctrl-C in our few milliseconds is no traceback
    # but ends the command, as it would have a moment later.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"lockfast: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def die_with_parent() -> None:
    """SIGKILL, not SIGTERM: where the store sees that a process died, the lock is free already."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    sys.exit(become(int(sys.argv[1]), sys.argv[2:]))

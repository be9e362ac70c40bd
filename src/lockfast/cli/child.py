"""The command that `lockfast run` started, and what belongs to it: its process group.

Which group? It depends on who sends the signals.

- **No terminal** (cron, systemd, CI, a container): a group of its own. A signal that we are sent is
  passed on to it exactly once, and a stop reaches everything that the command started, in one step.
- **A terminal**: our group, which is the shell's job. Ctrl-C, Ctrl-Z, a password prompt, a pager at
  the end of the pipe all work as if lockfast were not there; a group of its own would be stopped by
  the kernel as soon as it read from the terminal. The terminal itself then signals all of us, so
  Ctrl-C is not passed on a second time (many programs take a second one for "now, and dirty"). The
  members are found in /proc, as we must not signal the rest of the shell's job, nor ourselves.

In both cases a process that left for a group or a session of its own (a daemon) is on its own.

On Linux orphans below us become our children (we are their *subreaper*), so that a shell that died
first does not hide the work that it started, and nobody stays a zombie.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lockfast.cli import exec_command

PR_SET_CHILD_SUBREAPER = 36


class Child:
    """Takes over the children of this process: there must be no other code that waits for some."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._terminal = _terminal()
        _adopt_orphans()
        # A shell that became us by exec may have left children of its own: not ours to stop.
        self._strangers = set(_children(os.getpid()))
        self._code: int | None = None
        program = [sys.executable, "-I", "-S", exec_command.__file__, str(os.getpid()), *command]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        # Not `subprocess`: descriptors that we inherited, such as a shell's <(…), go on to the
        # command (ours are all close-on-exec), and orphans must be waited for too.
        if self._terminal is None:
            self.pid = os.posix_spawn(
                sys.executable,
                program,
                environment,
                setpgroup=0,
                setsigmask=blocked | {signal.SIGINT},
            )
            self._group = self.pid
        else:
            self.pid = os.posix_spawn(
                sys.executable, program, environment, setsigmask=blocked | {signal.SIGINT}
            )
            self._group = os.getpgrp()

    def code(self) -> int | None:
        """The command's exit code as a shell says it, None while it runs. Does not block."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._code = code if code >= 0 else 128 - code
        return self._code

    def has_members(self) -> bool:
        """Is anybody of its group left? The command may have ended already."""
        if self.code() is None:
            return True
        if self._terminal is not None:
            return any(self._members())
        return _signalled(self._group, 0)

    def send(self, signum: int) -> None:
        """To the command alone."""
        if self.code() is None:
            os.kill(self.pid, signum)  # not yet waited for, so its pid is nobody else's

    def send_all(self, signum: int) -> None:
        """To everybody of its group."""
        if self._terminal is None:
            _signalled(self._group, signum)
            return
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)

    def was_told_by_terminal(self, signum: int) -> bool:
        """Did the terminal send this to the command too? It does so to the foreground job."""
        if self._terminal is None or signum not in (signal.SIGINT, signal.SIGQUIT):
            return False
        try:
            return os.tcgetpgrp(self._terminal) == self._group
        except OSError:  # the terminal is gone
            return False

    def _members(self) -> Iterator[int]:
        """Only for a shared group; the command first, even if it made a group of its own (bash)."""
        if self.code() is None:
            yield self.pid
        for pid in _below(os.getpid(), self._strangers):
            with contextlib.suppress(ProcessLookupError):
                if pid != self.pid and os.getpgid(pid) == self._group:
                    yield pid


def _signalled(group: int, signum: int) -> bool:
    """False if nobody is left. Its number is not used again while somebody is in it."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # only set-user-id processes are left, or macOS and a zombie
        return sys.platform == "linux"
    return True


def _below(pid: int, strangers: set[int]) -> Iterator[int]:
    for child in _children(pid):
        if child not in strangers:
            yield child
            yield from _below(child, strangers)


def _children(pid: int) -> list[int]:
    """Empty where the system does not tell."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # ended meanwhile
            found += map(int, path.read_text().split())
    return found


def _terminal() -> int | None:
    """The terminal that controls us."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

"""The command that `lockfast run` started, and its process group.

Which group the command runs in depends on who sends the signals.

- **No terminal** (cron, systemd, CI, a container): a group of its own. A signal sent to lockfast is
  forwarded to it exactly once, and a stop reaches everything that the command started in one step.
- **A terminal**: our own group, which is the shell's job. Ctrl-C, Ctrl-Z, a password prompt or a
  pager at the end of the pipe work as if lockfast were not there; the kernel would stop a separate
  group as soon as it read from the terminal. The terminal signals the whole job itself, so Ctrl-C
  is not forwarded a second time (many programs take a second one for "abort now"). The processes to
  signal are found in /proc, as neither the rest of the shell's job nor lockfast may be signalled.

In both cases a process that moves to a group or session of its own (a daemon) is left alone.

On Linux lockfast is the *subreaper* of orphaned descendants: a shell that died first does not hide
the work that it started, and no zombie is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from lockfast.cli import exec_command

PR_SET_CHILD_SUBREAPER = 36


class Child:
    """The running command. Reaps all children of this process: no other code may wait for any."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._terminal = _terminal()
        _adopt_orphans()
        # A shell that replaced itself with lockfast (exec) may have children: not ours to stop.
        self._foreign = set(_children(os.getpid()))
        self._code: int | None = None
        program = [sys.executable, "-I", "-S", exec_command.__file__, str(os.getpid()), *command]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        # Not `subprocess`: inherited descriptors, such as a shell's <(…), are passed on to the
        # command (our own are all close-on-exec), and orphans must be reaped too.
        spawn = partial(os.posix_spawn, sys.executable, program, environment)
        mask = blocked | {signal.SIGINT}
        if self._terminal is None:
            self._group = self.pid = spawn(setpgroup=0, setsigmask=mask)
        else:
            self.pid = spawn(setsigmask=mask)
            self._group = os.getpgrp()

    def code(self) -> int | None:
        """Exit code of the command as a shell reports it; None while it runs. Does not block."""
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
        """True while any process of the command's group is alive, even after the command ended."""
        if self.code() is None:
            return True
        if self._terminal is not None:
            return any(self._group_pids())
        return _signal_group(self._group, 0)

    def send(self, signum: int) -> None:
        """Signal the command only."""
        if self.code() is None:
            os.kill(self.pid, signum)  # not reaped yet, so the pid cannot have been reused

    def send_all(self, signum: int) -> None:
        """Signal every process of the command's group."""
        if self._terminal is None:
            _signal_group(self._group, signum)
            return
        for pid in self._group_pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)

    def was_signalled_by_terminal(self, signum: int) -> bool:
        """True if the terminal sent this signal to the command too, as it does in foreground."""
        if self._terminal is None or signum not in (signal.SIGINT, signal.SIGQUIT):
            return False
        try:
            return os.tcgetpgrp(self._terminal) == self._group
        except OSError:  # the terminal is gone
            return False

    def _group_pids(self) -> Iterator[int]:
        """List the command's processes in a shared group: the command first, even if it has created
        a group of its own (as bash does)."""
        if self.code() is None:
            yield self.pid
        for pid in _descendants(os.getpid(), self._foreign):
            with contextlib.suppress(ProcessLookupError):
                if pid != self.pid and os.getpgid(pid) == self._group:
                    yield pid


def _signal_group(group: int, signum: int) -> bool:
    """Signal a group; return False if it is empty. Its id is not reused while it has members."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    except PermissionError:  # only set-user-id processes are left, or macOS and a zombie
        return sys.platform == "linux"
    return True


def _descendants(pid: int, foreign: set[int]) -> Iterator[int]:
    for child in _children(pid):
        if child not in foreign:
            yield child
            yield from _descendants(child, foreign)


def _children(pid: int) -> list[int]:
    """List child processes; empty where the system does not report them."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process has ended
            found += map(int, path.read_text().split())
    return found


def _terminal() -> int | None:
    """Open the controlling terminal; None if there is none."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

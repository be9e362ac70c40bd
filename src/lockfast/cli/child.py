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

This file is also the program that becomes the command: ``python child.py PARENT command…`` asks
Linux to kill it when `lockfast run` dies, even by SIGKILL, and executes the command. That must
happen between fork and exec, but a ``preexec_fn`` would run in a forked copy of a process with
threads (the keeper), which is not safe. The step costs 15 ms, so nothing heavy is imported here.
Processes that the command itself started, and a set-user-id command, are not killed: there only the
fence protects.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Child:
    """The running command. Reaps all children of this process: no other code may wait for any."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._terminal: int | None = None
        with contextlib.suppress(OSError):  # there is none
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # A shell that replaced itself with lockfast (exec) may have children: not ours to stop.
        self._foreign = set(_children(os.getpid()))
        self._code: int | None = None
        program = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        # Not `subprocess`: inherited descriptors, such as a shell's <(…), are passed on to the
        # command (our own are all close-on-exec), and orphans must be reaped too.
        mask = blocked | {signal.SIGINT}
        group = 0 if self._terminal is None else os.getpgrp()
        self.pid = os.posix_spawn(
            sys.executable, program, environment, setpgroup=group, setsigmask=mask
        )
        self._group = group or self.pid

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
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}/children"
            with contextlib.suppress(OSError), open(path) as children:  # the thread has ended
                found += map(int, children.read().split())
    return found


def _prctl(what: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def exec_command(parent: int, command: list[str]) -> int:
    """Execute the command. Returns only if that fails: the exit code."""
    if sys.platform == "linux":
        # SIGKILL, not SIGTERM: a store that detects dead processes has freed the lock.
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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


if __name__ == "__main__":
    sys.exit(exec_command(int(sys.argv[1]), sys.argv[2:]))

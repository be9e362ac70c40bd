"""`lockfast run NAME -- command`: hold the lock exactly as long as the command runs.

    wait for the lock ── a signal, busy, no store ──► exit; nothing is left behind
      │
    start the command, watch both ── it ends ───────► release, exit with its code
      │
    renewals fail until only the margin is left, or the hold is lost
      │
    SIGTERM ── half of the margin ──► SIGKILL ──────► only then the lease expires

The rules:

1. The library reports a loss when the lease expires. That is too late: `lockfast run` stops the
   command *before* that. The margin is a quarter of the lease, at most 5 s.
2. A hold that is lost already (broken by an operator, or this process was paused) leaves less time:
   half a second between SIGTERM and SIGKILL, since the next holder may be at work.
3. After SIGINT, SIGTERM or SIGQUIT the lock is kept until the last process of the command's group
   has ended, not only the first: a shell dies at once while its children still clean up. After a
   normal exit, processes that the command left in the background continue without the lock.
4. If lockfast is killed with SIGKILL, so is the command (see `exec_command`). If lockfast is
   *stopped* (SIGSTOP), it can only stop the command when it continues: the fence covers this case.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

from lockfast import clock
from lockfast.cli import exit_codes
from lockfast.cli.admin import Admin
from lockfast.cli.child import Child
from lockfast.cli.exit_codes import fail, print_stderr
from lockfast.cli.progress import Progress
from lockfast.errors import AcquireTimeout, BackendError, ConfigurationError, HoldLost
from lockfast.sync import Client, Hold, Lock, Semaphore, connect

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

MIN_LEASE = 1.0
MAX_MARGIN = 5.0
LOST_GRACE = 0.5  # between SIGTERM and SIGKILL when the hold is lost already
# Upper bound between two checks: a machine may resume from suspend with the lease expired, and the
# timeout of `select` does not count suspended time.
CHECK_INTERVAL = 1.0
POLL = 0.02
KILL_LIMIT = 5.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of the command. ``mode`` is "read" or "write" for a read-write lock."""

    url: str | None = None
    namespace: str | None = None
    timeout: float | None = None
    lease: float | None = None
    max_hold: float | None = None
    semaphore: int | None = None
    mode: str | None = None
    label: str | None = None
    skip: bool = False


def run(name: str, command: Sequence[str], terms: Terms) -> int:
    """Hold the lock while the command runs, and return the exit code. Takes over the signals and
    the children of this process, so call it in a dedicated one."""
    for option, seconds in (("--lease", terms.lease), ("--max-hold", terms.max_hold)):
        if seconds is not None and not seconds >= MIN_LEASE:
            least = f"must be at least {MIN_LEASE:g} s"
            why = "as the command has to be stopped before it is over"
            raise ConfigurationError(f"{option} {seconds:g}: {least}, {why}")
    if reason := _not_runnable(command[0]):
        return reason
    try:
        with Signals() as signals, _client(terms) as client:
            lock = _lock(client, name, command, terms, signals)
            address = (admin := Admin(client)).address(name)
            with Progress(lambda: admin.inspect(address)):
                hold = lock.acquire()
            # A granted waiter starts with a short lease; renew, so that the command has a full one.
            hold.renew()
            until = None if terms.max_hold is None else clock.now() + terms.max_hold
            signals.collect()
            try:
                return _run_under(hold, command, signals, until)
            finally:
                _release(hold)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except AcquireTimeout as error:
        if not terms.skip:
            return fail(str(error), exit_codes.BUSY)
        if sys.stderr.isatty():  # cron would mail this line
            print_stderr(f"skipped: {error}")
        return 0
    except BackendError as error:
        return fail(str(error), exit_codes.UNREACHABLE)
    except HoldLost as error:
        return fail(f"{error}. The command was not started", exit_codes.LOST)


def _client(terms: Terms) -> Client:
    if terms.namespace is None:
        return connect(terms.url)
    return connect(terms.url, namespace=terms.namespace)


def _lock(
    client: Client, name: str, command: Sequence[str], terms: Terms, signals: Signals
) -> Lock | Semaphore:
    label = f"run {os.path.basename(command[0])}" if terms.label is None else terms.label
    options: dict[str, Any] = {
        "timeout": terms.timeout,
        "lease": terms.lease,
        "renew": True,
        "max_hold": terms.max_hold,
        "label": label,
        "on_lost": signals.on_lost,
    }
    if terms.semaphore is not None:
        return client.semaphore(name, terms.semaphore, **options)
    if terms.mode is None:
        return client.lock(name, **options)
    rwlock = client.rwlock(name, **options)
    return rwlock.read() if terms.mode == "read" else rwlock.write()


def _run_under(hold: Hold, command: Sequence[str], signals: Signals, until: float | None) -> int:
    environment = {**os.environ, "LOCKFAST_NAME": hold.name, "LOCKFAST_FENCE": str(hold.fence)}
    try:
        child = Child(command, environment)
    except OSError as error:
        return fail(
            f"cannot start a process for {command[0]}: {error.strerror}", exit_codes.NO_PROCESS
        )
    try:
        return _watch(child, hold, signals, until)
    except BaseException:
        # A bug of ours. The lock is released next, so the command must not go on.
        child.send_all(signal.SIGKILL)
        raise


def _watch(child: Child, hold: Hold, signals: Signals, until: float | None) -> int:
    margin = min(MAX_MARGIN, hold.lease / 4)
    is_ending = False
    while True:
        code = child.code()
        if code is not None and not (is_ending and child.has_members()):
            return code
        left = hold.remaining() - margin
        if left <= 0:
            return _stop(child, hold, margin, until)
        for signum in signals.wait(min(left, CHECK_INTERVAL)):
            if signum not in FORWARDED:
                continue
            if signum in ENDING:
                is_ending = True
                if not child.was_signalled_by_terminal(signum):
                    child.send_all(signum)
            else:  # to the command only: its children may not handle these, and would be killed
                child.send(signum)


def _stop(child: Child, hold: Hold, margin: float, until: float | None) -> int:
    """End all processes of the command's group before the lease expires."""
    left = hold.remaining()
    capped = until is not None and until - clock.now() <= margin + LOST_GRACE
    child.send_all(signal.SIGTERM)
    child.send_all(signal.SIGCONT)  # a stopped process handles SIGTERM only when it continues
    pause = max(left - margin / 2, left / 2) if left > 0 else min(LOST_GRACE, margin / 2)
    _wait_until_gone(child, pause)
    limit = time.monotonic() + KILL_LIMIT
    while child.has_members() and time.monotonic() < limit:
        child.send_all(signal.SIGKILL)
        _wait_until_gone(child, POLL)
    # Printed only now, as a stderr that is not read can block. The release reports why it was lost.
    why = "could not be renewed in time" if left > 0 else "was lost"
    if capped:
        why = "has reached --max-hold"
    print_stderr(f"the hold on {hold.name!r} (fence {hold.fence}) {why}: the command was stopped")
    if child.has_members():
        may = "it may continue without the lock"
        print_stderr(f"pid {child.pid} has not ended after SIGKILL; {may}")
    return exit_codes.LOST


def _wait_until_gone(child: Child, seconds: float) -> None:
    until = time.monotonic() + seconds
    while child.has_members() and time.monotonic() < until:
        time.sleep(min(POLL, seconds))


def _release(hold: Hold) -> None:
    """Release, and print what went wrong. The exit code stays that of the command."""
    try:
        hold.release()
    except (HoldLost, BackendError) as error:
        print_stderr(str(error))


def _not_runnable(program: str) -> int | None:
    """Check the program before waiting for the lock; return the exit code a shell would use."""
    if shutil.which(program):
        return None
    if os.path.dirname(program) and os.path.exists(program):
        return fail(f"{program}: not an executable file", exit_codes.NOT_EXECUTABLE)
    return fail(f"{program}: command not found", exit_codes.NOT_FOUND)


class Interrupted(BaseException):
    """A signal arrived while we waited for the lock."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Signals:
    """Signal handling: first a signal raises an exception that ends the waiting; after `collect`
    signals are queued. One flag decides which, so no signal is lost in between. Signals that were
    inherited as ignored (nohup, a shell's background job) stay ignored."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._interrupts = True

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_signal)
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop handling signals: the process ends now, and nothing may interrupt that."""
        self._interrupts = False
        signal.set_wakeup_fd(-1)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        # Only the first signal raises: a second one must not interrupt leaving the queue.
        if self._interrupts and signum != signal.SIGCHLD:
            self._interrupts = False
            raise Interrupted(signum)

    def on_lost(self, hold: object) -> None:
        """Wake `wait`. Called on the keeper's thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def collect(self) -> None:
        """Queue signals from now on, instead of raising."""
        self._interrupts = False

    def wait(self, seconds: float) -> Sequence[int]:
        """Return the queued signals, waiting for at most so many seconds; 0 stands for a loss."""
        ready, _, _ = select.select([self._reader], [], [], max(seconds, 0.0))
        return os.read(self._reader, 4096) if ready else b""

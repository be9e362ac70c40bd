"""`lockfast run NAME command`: hold the lock exactly as long as the command runs.

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
4. If lockfast is killed with SIGKILL, so is the command (see `child.exec_command`). If lockfast is
   *stopped* (SIGSTOP), it can only stop the command when it continues: the fence covers this case.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Self

from lockfast import clock
from lockfast.cli import duration, escaped, is_terminal, shorten
from lockfast.cli import main as cli
from lockfast.cli.admin import Admin, Inspection, describe
from lockfast.cli.child import Child
from lockfast.cli.main import fail, option, print_stderr, switch
from lockfast.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    HoldLost,
    LockfastError,
)
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

# The status line: shorter waits show none.
STATUS_DELAY, STATUS_INTERVAL = 0.3, 0.5
JOIN_LIMIT = 0.2
ERASE = "\r\x1b[K"
EPILOG = """\
The lock is renewed while the command runs, and released when it ends. The command finds the name
in $LOCKFAST_NAME and the fence in $LOCKFAST_FENCE: pass the fence to the database that the command
writes to, and let it refuse lower ones. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
forwarded. If the lock cannot be renewed, the command is stopped (SIGTERM, then SIGKILL) before the
lease expires; likewise before --max-hold is over.

All users of a name must agree on its kind: a lock, or --semaphore with the same N, or --read and
--write. On a terminal, a status line shows the holder and the queue position while waiting.

examples:
  lockfast run report ./report.sh                    wait for the lock, then run
  lockfast run report --timeout 1m ./report.sh       exit 75 if not acquired within a minute
  lockfast run report --skip ./report.sh             for cron: exit 0 if it runs already
  lockfast run encode --semaphore 4 ffmpeg …         at most four at a time, on all hosts
  lockfast run config --read ./use-it                together with other readers
  lockfast run config --write ./change-it            excludes readers and writers
  lockfast run import --max-hold 1h30m --label nightly make import

Times are seconds, or 500ms, 10s, 5m, 1h30m, 2d. lockfast's options end where the command begins, or
at --, which a command needs whose name begins with a dash.

exit codes:
  the command's own; 128 + n if signal n ended the command, or ended lockfast while it waited
  0    with --skip also: the lock is held, the command did not run
  2    wrong usage, invalid name or invalid URL
  69   the store cannot be reached
  71   the system cannot start a process
  75   not acquired within --timeout; the command did not run
  76   the lock was lost, not renewed in time, or held for --max-hold; the command was stopped
  126  the command cannot be executed
  127  the command was not found
"""
MODES = {"read": "share with other readers", "write": "exclude readers and writers"}


def _kinds(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add("--semaphore", type=int, metavar="N", help="let N commands run at a time")
    for mode, what in MODES.items():
        add(f"--{mode}", dest="mode", action="store_const", const=mode, help=what)


def _seconds(flag: str, text: str) -> cli.Declare:
    return option(flag, type=duration, metavar="TIME", help=text)


@cli.verb(
    "Hold the lock NAME while a command runs.",
    EPILOG,
    [
        cli.NAME,
        _seconds("--timeout", "how long to wait, as in 10s; 0: do not wait (default: forever)"),
        switch(
            "--skip", help="exit 0 without running if the lock is held, at once or after --timeout"
        ),
        _kinds,
        _seconds(
            "--lease", "time until the lock is free if lockfast dies unnoticed (default: 30s)"
        ),
        _seconds("--max-hold", "stop the command before this time is over"),
        option("--label", metavar="TEXT", help="label shown to operators (default: run COMMAND)"),
        *cli.store(),
    ],
    usage="lockfast run NAME [options] [--] command …",
)
def run(args: argparse.Namespace) -> int:
    """Hold the lock while the command runs, and return the exit code. Takes over the signals and
    the children of this process, so call it in a dedicated one."""
    if not args.command:
        usage = f"lockfast run {args.name} command arguments… (see lockfast run --help)"
        return fail(f"the command is missing: {usage}", cli.USAGE)
    for flag, seconds in (("--lease", args.lease), ("--max-hold", args.max_hold)):
        if seconds is not None and not seconds >= MIN_LEASE:
            least = f"must be at least {MIN_LEASE:g} s"
            why = "as the command has to be stopped before it is over"
            raise ConfigurationError(f"{flag} {seconds:g}: {least}, {why}")
    if reason := _not_runnable(args.command[0]):
        return reason
    try:
        with Signals() as signals, connect(args.url, namespace=args.namespace) as client:
            lock = _lock(client, args, signals)
            address = (admin := Admin(client)).address(args.name)
            with progress(lambda: admin.inspect(address)):
                hold = lock.acquire()
            # A granted waiter starts with a short lease; renew, so that the command has a full one.
            hold.renew()
            until = None if args.max_hold is None else clock.now() + args.max_hold
            signals.collect()
            try:
                return _run_under(hold, args.command, signals, until)
            finally:
                try:
                    hold.release()
                except (HoldLost, BackendError) as error:
                    print_stderr(str(error))  # the exit code stays that of the command
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    except AcquireTimeout as error:
        if not args.skip:
            return fail(str(error), cli.BUSY)
        if sys.stderr.isatty():  # cron would mail this line
            print_stderr(f"skipped: {error}")
        return 0
    except BackendError as error:
        return fail(str(error), cli.UNREACHABLE)
    except HoldLost as error:
        return fail(f"{error}. The command was not started", cli.LOST)


def _lock(client: Client, args: argparse.Namespace, signals: Signals) -> Lock | Semaphore:
    options: dict[str, Any] = {
        "timeout": 0.0 if args.skip and args.timeout is None else args.timeout,
        "lease": args.lease,
        "renew": True,
        "max_hold": args.max_hold,
        "label": f"run {os.path.basename(args.command[0])}" if args.label is None else args.label,
        "on_lost": signals.on_lost,
    }
    if args.semaphore is not None:
        return client.semaphore(args.name, args.semaphore, **options)
    if args.mode is None:
        return client.lock(args.name, **options)
    rwlock = client.rwlock(args.name, **options)
    return rwlock.read() if args.mode == "read" else rwlock.write()


def _run_under(hold: Hold, command: Sequence[str], signals: Signals, until: float | None) -> int:
    environment = {**os.environ, "LOCKFAST_NAME": hold.name, "LOCKFAST_FENCE": str(hold.fence)}
    try:
        child = Child(command, environment)
    except OSError as error:
        problem = f"cannot start a process for {command[0]}: {error.strerror}"
        return fail(problem, cli.NO_PROCESS)
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
    return cli.LOST


def _wait_until_gone(child: Child, seconds: float) -> None:
    until = time.monotonic() + seconds
    while child.has_members() and time.monotonic() < until:
        time.sleep(min(POLL, seconds))


def _not_runnable(program: str) -> int | None:
    """Check the program before waiting for the lock; return the exit code a shell would use."""
    if shutil.which(program):
        return None
    if os.path.dirname(program) and os.path.exists(program):
        return fail(f"{program}: not an executable file", cli.NOT_EXECUTABLE)
    return fail(f"{program}: command not found", cli.NOT_FOUND)


class Interrupted(BaseException):
    """This signal arrived while we waited for the lock."""


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

    def __exit__(self, *exception: object) -> None:
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


@contextlib.contextmanager
def progress(inspect: Callable[[], Inspection]) -> Iterator[None]:
    """Show a status line on a terminal while the block waits: the holder, and the queue position.

    A separate thread inspects the store and rewrites the line in place, so the waiting is
    unaffected; the line is erased when the wait ends. Without a terminal nothing is inspected.
    """
    if not is_terminal(sys.stderr):
        yield
        return
    over, drawn, mutex = threading.Event(), threading.Event(), threading.Lock()

    def write(text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write(text)
            sys.stderr.flush()

    def rewrite() -> None:
        pause = STATUS_DELAY
        while not over.wait(pause):
            pause = STATUS_INTERVAL
            try:
                line = status_line(inspect())
            except LockfastError:
                line = "waiting: the store does not answer"
            with mutex:
                if not over.is_set():
                    drawn.set()
                    width = shutil.get_terminal_size((80, 24)).columns - 1
                    write(ERASE + shorten(line, width))

    thread = threading.Thread(target=rewrite, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with mutex:
            over.set()
            if drawn.is_set():
                write(ERASE)
        # The thread may be waiting for a store that does not answer; its result is not needed.
        thread.join(JOIN_LIMIT)


def status_line(inspection: Inspection) -> str:
    """Format ``waiting for report, position 2 of 3: held for 3 min 12 s by …``."""
    snapshot = inspection.snapshot
    us = socket.gethostname(), os.getpid()
    owners = [(waiter.who.host, waiter.who.pid) for waiter in snapshot.waiters]
    where = f", position {owners.index(us) + 1} of {len(owners)}" if us in owners else ""
    text = f"waiting for {escaped(inspection.address.name)}{where}"
    if not snapshot.holders:
        return text
    first, more = snapshot.holders[0], len(snapshot.holders) - 1
    others = f" and {more} more ({inspection.kind_cell})" if more else ""
    return f"{text}: held for {inspection.age(first)} by {describe(first.who)}{others}"

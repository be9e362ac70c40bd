"""`lockfast run NAME -- command`: the lock is held exactly as long as the command runs.

    wait for the lock ── a signal, busy, no store ──► exit; nothing is left behind
      │
    start the command, watch both ── it ends ───────► give back, exit with its code
      │
    renewals fail until only the margin is left, or the hold is lost
      │
    SIGTERM ── half of the margin ──► SIGKILL ──────► the lease runs out: nobody works under it

The rules:

1. We do not wait to be told of a loss, which is at the deadline: we stop the command *before* it.
   The margin is a quarter of the lease, at most 5 s.
2. A hold that is lost already (broken by an operator, or we were paused) leaves less: half a second
   between SIGTERM and SIGKILL, since somebody else may be at work.
3. After SIGINT, SIGTERM or SIGQUIT the lock is kept until the last process of the command's group
   has ended, not only the first: a shell dies at once while its work still winds up. After an
   ordinary end, what the command left in the background goes on without the lock.
4. If we are killed with SIGKILL, so is the command (see `become`). If we are *stopped*, we can do
   nothing until we go on, and stop the command then: that is what the fence is for.
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
from lockfast.cli.admin import Desk
from lockfast.cli.child import Child
from lockfast.cli.exit_codes import (
    BUSY,
    LOST,
    NO_PROCESS,
    NOT_EXECUTABLE,
    NOT_FOUND,
    UNREACHABLE,
    refuse,
    say,
)
from lockfast.cli.progress import Progress
from lockfast.errors import AcquireTimeout, BackendError, ConfigurationError, HoldLost
from lockfast.sync import Client, Hold, Lock, Semaphore, connect

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

MIN_LEASE = 1.0
MAX_MARGIN = 5.0
LAST_WORDS = 0.5
# The watch looks at least so often: a machine that was suspended wakes up with the lease over, and
# the pause of `select` does not count suspended time.
LOOK = 1.0
POLL = 0.02
KILL_LIMIT = 5.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the command was told. ``half`` is "read" or "write", of a read-write lock."""

    url: str | None = None
    namespace: str | None = None
    timeout: float | None = None
    lease: float | None = None
    max_hold: float | None = None
    semaphore: int | None = None
    half: str | None = None
    label: str | None = None
    skip: bool = False


def run(name: str, command: Sequence[str], terms: Terms) -> int:
    """Hold the lock while the command runs; the exit code. Takes over the signals and the children
    of this process, so it belongs into one of its own."""
    for option, seconds in (("--lease", terms.lease), ("--max-hold", terms.max_hold)):
        if seconds is not None and not seconds >= MIN_LEASE:
            raise ConfigurationError(
                f"{option} {seconds:g}: at least {MIN_LEASE:g} s, for the command must be stopped "
                "before it runs out"
            )
    if reason := _not_runnable(command[0]):
        return reason
    try:
        with Mailbox() as mailbox, _client(terms) as client:
            lock = _lock(client, name, command, terms, mailbox)
            desk = Desk(client)
            address = desk.address(name)
            with Progress(lambda: desk.look(address)):
                hold = lock.acquire()
            # A hold that was handed over begins with a short lease: the command gets a whole one.
            hold.renew()
            until = None if terms.max_hold is None else clock.now() + terms.max_hold
            mailbox.collect()
            try:
                return _run_under(hold, command, mailbox, until)
            finally:
                _give_back(hold)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except AcquireTimeout as error:
        if not terms.skip:
            return refuse(str(error), BUSY)
        if sys.stderr.isatty():  # who runs us from cron is not sent a letter for it
            say(f"skipped: {error}")
        return 0
    except BackendError as error:
        return refuse(str(error), UNREACHABLE)
    except HoldLost as error:
        return refuse(f"{error}. The command was not started", LOST)


def _client(terms: Terms) -> Client:
    if terms.namespace is None:
        return connect(terms.url)
    return connect(terms.url, namespace=terms.namespace)


def _lock(
    client: Client, name: str, command: Sequence[str], terms: Terms, mailbox: Mailbox
) -> Lock | Semaphore:
    label = f"run {os.path.basename(command[0])}" if terms.label is None else terms.label
    said: dict[str, Any] = {
        "timeout": terms.timeout,
        "lease": terms.lease,
        "renew": True,
        "max_hold": terms.max_hold,
        "label": label,
        "on_lost": mailbox.on_lost,
    }
    if terms.semaphore is not None:
        return client.semaphore(name, terms.semaphore, **said)
    if terms.half is None:
        return client.lock(name, **said)
    both = client.rwlock(name, **said)
    return both.read() if terms.half == "read" else both.write()


def _run_under(hold: Hold, command: Sequence[str], mailbox: Mailbox, until: float | None) -> int:
    environment = {**os.environ, "LOCKFAST_NAME": hold.name, "LOCKFAST_FENCE": str(hold.fence)}
    try:
        child = Child(command, environment)
    except OSError as error:
        return refuse(f"no process for {command[0]}: {error.strerror}", NO_PROCESS)
    try:
        return _watch(child, hold, mailbox, until)
    except (
        BaseException
    ):  # a fault of ours: the lock is given back next, so nobody may work under it
        child.send_all(signal.SIGKILL)
        raise


def _watch(child: Child, hold: Hold, mailbox: Mailbox, until: float | None) -> int:
    margin = min(MAX_MARGIN, hold.lease / 4)
    was_told_to_end = False
    while True:
        code = child.code()
        if code is not None and not (was_told_to_end and child.has_members()):
            return code
        left = hold.remaining() - margin
        if left <= 0:
            return _stop(child, hold, margin, until)
        for signum in mailbox.wait(min(left, LOOK)):
            if signum not in FORWARDED:
                continue
            if signum in ENDING:
                was_told_to_end = True
                if not child.was_told_by_terminal(signum):
                    child.send_all(signum)
            else:  # what these mean, the command decides: to what it started they could be the end
                child.send(signum)


def _stop(child: Child, hold: Hold, margin: float, until: float | None) -> int:
    """Nobody of the command's group may work when the lease runs out."""
    left = hold.remaining()
    capped = until is not None and until - clock.now() <= margin + LAST_WORDS
    child.send_all(signal.SIGTERM)
    child.send_all(signal.SIGCONT)  # who is stopped hears it only now
    pause = max(left - margin / 2, left / 2) if left > 0 else min(LAST_WORDS, margin / 2)
    _wait_until_gone(child, pause)
    limit = time.monotonic() + KILL_LIMIT
    while child.has_members() and time.monotonic() < limit:
        child.send_all(signal.SIGKILL)
        _wait_until_gone(child, POLL)
    # Said only now: a stderr that nobody reads can block. Why it was lost, its release will say.
    why = "could not be renewed in time" if left > 0 else "was lost"
    if capped:
        why = "has lasted for --max-hold"
    say(f"the hold on {hold.name!r} (fence {hold.fence}) {why}: the command was stopped")
    if child.has_members():
        say(f"pid {child.pid} does not end, not even by SIGKILL; it may go on without the lock")
    return LOST


def _wait_until_gone(child: Child, seconds: float) -> None:
    until = time.monotonic() + seconds
    while child.has_members() and time.monotonic() < until:
        time.sleep(min(POLL, seconds))


def _give_back(hold: Hold) -> None:
    """What went wrong is said; the command's exit code says the rest."""
    try:
        hold.release()
    except (HoldLost, BackendError) as error:
        say(str(error))


def _not_runnable(program: str) -> int | None:
    """Found out before we wait for the lock; a shell's exit codes."""
    if shutil.which(program):
        return None
    if os.path.dirname(program) and os.path.exists(program):
        return refuse(f"{program}: not an executable file", NOT_EXECUTABLE)
    return refuse(f"{program}: command not found", NOT_FOUND)


class Interrupted(BaseException):
    """A signal came while we waited for the lock."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class Mailbox:
    """Signals, first as an exception that ends the waiting, then as letters that are collected.
    Which of the two is decided in one place, so none falls between. What we inherited as ignored
    (nohup, a shell's background job) stays ignored."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._interrupts = True

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._arrived)
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The process ends now: nothing may interrupt that, and nobody reads letters."""
        self._interrupts = False
        signal.set_wakeup_fd(-1)

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        # Only the first one: a second must not interrupt the leaving of the queue.
        if self._interrupts and signum != signal.SIGCHLD:
            self._interrupts = False
            raise Interrupted(signum)

    def on_lost(self, hold: object) -> None:
        """Wake up the watch; on the keeper's thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def collect(self) -> None:
        """From now on no exception, but letters."""
        self._interrupts = False

    def wait(self, seconds: float) -> Sequence[int]:
        """What came, after at most so many seconds; also SIGCHLD, and 0 for a loss."""
        ready, _, _ = select.select([self._reader], [], [], max(seconds, 0.0))
        return os.read(self._reader, 4096) if ready else b""

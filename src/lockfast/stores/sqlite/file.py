"""The connection to the SQLite file: one per client, one short write transaction per step.

Failures that it survives:

- **SIGKILL at any instant**: the write-ahead log makes each transaction atomic.
- **A reboot**: leases are measured on a clock that starts again, and every holder is dead, so a
  file of an earlier boot is emptied except for its fence.
- **A power cut** may lose the last transactions (synchronous=NORMAL); it is a reboot too, and
  fences begin at the wall clock or above.
- **A deleted or replaced file**: detected by its inode at the next step; the holds in it are lost.
- **fork**: the connection is closed before it and opened again after it, on both sides. SQLite's
  locks belong to a process and silently vanish in a child; no connection may be inherited.
- **Another process inside a transaction**: the step is retried after a short random pause, within
  the budget. SQLite's own busy handler is not used: its pauses are long and unfair.
- **An exception from a signal handler** at any instant: no function of Python runs inside SQLite,
  which would swallow it, and SQLite's own context manager ends the transaction.
- **A call from a signal handler or a finalizer** that interrupts a step of the same thread: it
  undoes the transaction, runs its own, and the interrupted step begins again.

A process that is *stopped* inside a transaction (some 20 µs) blocks the file until it continues or
is killed. SQLite offers no remedy; the step ends with a `BackendError` that names the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sqlite import book
from lockfast.stores.sqlite.peers import Peers, make_folders
from lockfast.stores.steps import Steps, perform, perform_soon

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION_ID = 0x686F6C64  # "hold"
VERSION = 1
FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.004
LONGEST_PAUSE_OPENING = 0.01  # many processes open the file at once when a service starts
SWEEP_EVERY = 1000  # steps; expired rows of names that are never used again must not accumulate
OPEN_TIMEOUT = 0.005  # how long to wait for other processes while opening, which is slow to retry
OPEN_PAUSE = 0.01
CHECK_INTERVAL = 0.02  # how often to check that the path still leads to the open file
# Connections that a child inherited, kept because closing one could write to the parent's file.
_inherited: list[sqlite3.Connection] = []


class Locked(Exception):
    """Another process is inside a transaction."""


class Opening(Locked):
    """Another process is opening the file."""


class File:
    """The SQLite file, opened when first needed and used by one thread at a time. The clock of
    fences can be another one for tests, in which ``now`` stands still."""

    def __init__(
        self,
        path: Path,
        peers: Peers,
        now: Callable[[], float] = clock.now,
        wall: Callable[[], float] = clock.wall,
        fence_clock: Callable[[], float] | None = None,
    ) -> None:
        self.path = path
        self.now = now
        self.wall = wall
        self.fences = book.Fences(fence_clock or now)
        self._peers = peers
        self._mutex = threading.RLock()  # reentrant: see the top of this file
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._check_at = 0.0
        self._open_again_at = 0.0
        self._steps = 0
        self._undone = 0  # transactions so far, by calls that interrupted them

    def execute(self, statement: str, arguments: tuple[Any, ...], noting: bool = False) -> Any:
        """Run one statement as its own transaction; True if it changed a row. One that is
        ``noting`` a fence gets what that needs as its last arguments; the answer is what it noted,
        or None. Raises `Locked` if another process is inside a transaction; then nothing is
        changed."""
        with self._mutex:
            connection = self._connection
            if connection is None or self.now() > self._check_at:
                connection = self._current()
            if connection.in_transaction:
                return self._instead(connection, lambda: self.execute(statement, arguments, noting))
            fences = self.fences
            if noting:
                key = next(fences.keys)
                arguments += (key, fences.last + 1, fences.offset)
            try:
                changed = connection.execute(statement, arguments).rowcount > 0
            except sqlite3.Error as error:
                raise self._backend_error(error) from error
            self._steps += 1
            if self._steps % SWEEP_EVERY == 0:
                with contextlib.suppress(sqlite3.Error):  # a later sweep removes the rows
                    self._sweep(connection)
            if not noting:
                return changed
            return fences.take(key) if changed else None

    def read(self, statement: str, arguments: tuple[Any, ...]) -> list[Any]:
        """The rows that a statement reads; other processes are neither waited for nor delayed."""
        with self._mutex:
            try:
                return self._current().execute(statement, arguments).fetchall()
            except sqlite3.Error as error:
                raise self._backend_error(error) from error

    def step(self, work: Work[T]) -> T:
        """Run ``work`` in one transaction. Raises `Locked` if another process is inside one; then
        nothing is changed."""
        with self._mutex:
            while True:
                connection = self._current()
                if connection.in_transaction:
                    return self._instead(connection, lambda: self.step(work))
                undone, ceiling = self._undone, self.fences.ceiling
                try:
                    # Commits, or rolls back: in C, which no signal handler can interrupt.
                    with connection:
                        connection.execute("BEGIN IMMEDIATE")
                        answer = work(connection)
                        self._steps += 1
                        if self._steps % SWEEP_EVERY == 0:
                            self._sweep(connection)
                        if self._undone != undone:
                            raise sqlite3.OperationalError("undone")
                    # Undone at the last moment, it has committed nothing.
                    if self._undone == undone:
                        return answer
                except BaseException as error:
                    # The ceiling may have been raised in the transaction that is rolled back.
                    self.fences.load(self.fences.offset, ceiling)
                    if not isinstance(error, sqlite3.Error):
                        raise
                    if self._undone == undone:
                        raise self._backend_error(error) from error

    def _instead(self, connection: sqlite3.Connection, call: Callable[[], T]) -> T:
        """Undo the transaction of this thread that a signal handler or finalizer has interrupted,
        for a ``call`` of theirs; the interrupted step then begins again. The rest of its statements
        meet another transaction, which it rolls back."""
        self._undone += 1
        connection.execute("ROLLBACK")
        try:
            return call()
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("BEGIN")

    def attempt(self, step: Callable[[], T], budget: float) -> T:
        """Run a step, again and again while another process is inside a transaction."""
        return perform(self._attempts(step, budget), time.sleep)

    async def attempt_soon(self, step: Callable[[], T], budget: float) -> T:
        """Do as `attempt`, for a task: suspend between the attempts."""
        return await perform_soon(self._attempts(step, budget), asyncio.sleep)

    def _attempts(self, step: Callable[[], T], budget: float) -> Steps[T]:
        """Run a step, and yield random, growing pauses after which to try again."""
        until = clock.now() + budget
        pause = FIRST_PAUSE
        while True:
            try:
                return step()
            except Locked as locked:
                rest = until - clock.now()
                if rest <= OPEN_TIMEOUT:  # or the last attempt would outlast the budget
                    raise BackendError(
                        f"the store {self.path} stayed locked: another process is in the middle of "
                        "a transaction. Check for a stopped one (SIGSTOP, a debugger, a frozen "
                        "container)"
                    ) from None
                longest = LONGEST_PAUSE_OPENING if isinstance(locked, Opening) else LONGEST_PAUSE
            pause = min(pause * 1.5, longest)
            yield min(pause * (0.5 + random.random()), rest)

    def _current(self) -> sqlite3.Connection:
        """The connection, opened again if the path no longer leads to its file."""
        try:
            if self._connection is not None:
                now = self.now()
                if now < self._check_at:
                    return self._connection
                self._check_at = now + CHECK_INTERVAL
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(self.path)
                    if (found.st_dev, found.st_ino) == self._inode:
                        return self._connection
                self._close()
            return self._open()
        except sqlite3.Error as error:
            self._close()
            raise self._backend_error(error) from error
        except BackendError:
            self._close()
            raise
        except OSError as error:
            self._close()
            raise BackendError(
                f"the store {self.path} cannot be accessed: {error}", transient=False
            ) from error

    def _open(self) -> sqlite3.Connection:
        """Open the file, one process at a time: it takes longer than a step, and many would block
        each other. A foreign file has no folder for that, and none is created."""
        if self.path.exists() and self.path.stat().st_size and not self._peers.folder.is_dir():
            return self._connect()
        if clock.now() < self._open_again_at:
            raise Opening  # or each thread that waits for the mutex would wait for an opening more
        make_folders(self.path.parent)
        try:
            with self._peers.exclusive() as obtained:
                if not obtained:
                    raise Opening
                self._create()
                return self._connect()
        except (Opening, sqlite3.OperationalError):
            self._open_again_at = clock.now() + OPEN_PAUSE
            raise

    def _create(self) -> None:
        """Create the file for this user alone, since it contains the secret ids of claims. SQLite
        would take the log of a deleted file for its own, so leftovers are removed."""
        if not self.path.exists():
            for leftover in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{leftover}")
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=OPEN_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        try:
            dead = self._prepare(connection)
            found = os.stat(self.path)
        except BaseException:
            connection.close()
            raise
        self._peers.remove(dead)
        self._inode = (found.st_dev, found.st_ino)
        self._connection = connection
        return connection

    def _sweep(self, connection: sqlite3.Connection) -> None:
        now = self.now()
        connection.execute(book.SWEEP_HOLDS, (now,))
        connection.execute(book.SWEEP_WAITERS, (now,))

    def _prepare(self, connection: sqlite3.Connection) -> list[str]:
        """Create the tables, empty a file of an earlier boot, and delete the rows of dead
        processes; their wake addresses."""
        self._refuse_foreign(connection)  # before anything is written
        connection.execute("PRAGMA page_size = 1024")  # rows are small; SQLite writes whole pages
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BackendError(
                f"{self.path} is on a file system without shared memory (journal mode {mode}): "
                "move it to a local disk",
                transient=False,
            )
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 3000")  # about the usual number of bytes
        connection.execute("BEGIN IMMEDIATE")
        if not self._refuse_foreign(connection):
            for statement in book.SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("INSERT INTO store VALUES (1, ?, 'none yet', 0, 0)", (VERSION,))
        version, boot, offset, ceiling = connection.execute(
            "SELECT version, boot, fence_offset, fence_ceiling FROM store"
        ).fetchone()
        if version != VERSION:
            raise BackendError(
                f"{self.path} was created by another version of lockfast (format {version}, "
                f"this one reads {VERSION}): use the same version everywhere, or another file",
                transient=False,
            )
        dead = []
        if boot != boot_id() or self.fences.is_new_boot(offset, ceiling):
            connection.execute("DELETE FROM holds")
            connection.execute("DELETE FROM waiters")
            offset, ceiling = self.fences.restart(self.wall(), ceiling)
            restart = "UPDATE store SET boot = ?, fence_offset = ?, fence_ceiling = ?"
            connection.execute(restart, (boot_id(), offset, ceiling))
        else:
            dead = self._peers.dead()
            for wake_address in dead:
                connection.execute(book.DELETE_HOLDS_OF, (wake_address,))
                connection.execute(book.DELETE_WAITERS_OF, (wake_address,))
            self._sweep(connection)
        self.fences.load(*connection.execute(book.CEILING).fetchone())
        connection.execute("COMMIT")
        # Functions of C alone: SQLite would swallow an exception in one of Python.
        connection.create_function("boottime", 0, self.fences.clock)
        connection.create_function("note", 2, self.fences.noted.setdefault)
        connection.execute("PRAGMA busy_timeout = 0")  # from now on `attempts` decides
        return dead

    def _refuse_foreign(self, connection: sqlite3.Connection) -> bool:
        """True: a lockfast store; False: empty. Other files raise `BackendError` and stay
        unchanged."""
        # In this order: both are committed together, so visible tables have their id.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (known,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and known != APPLICATION_ID:
            raise BackendError(
                f"{self.path} is a database of something else: use another file", transient=False
            )
        return bool(tables)

    def _backend_error(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Locked()
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._close()
        hints = {
            sqlite3.SQLITE_CANTOPEN: "does its folder exist, and may this user write there?",
            sqlite3.SQLITE_READONLY: "this user may not write there",
            sqlite3.SQLITE_NOTADB: "it is not a SQLite file: use another one",
            sqlite3.SQLITE_CORRUPT: "delete it when no process uses it: it stores only live locks",
            sqlite3.SQLITE_FULL: "the disk is full",
        }
        hint = f" ({hints[code]})" if code in hints else ""
        return BackendError(f"the store {self.path}: {error}{hint}", transient=code not in hints)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        with self._mutex:
            self._close()

    def before_fork(self) -> None:
        self._mutex.acquire()
        self._close()

    def after_fork_in_parent(self) -> None:
        self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Forget a connection that was inherited because `before_fork` was not called. It is
        neither used nor closed: closing could write to the parent's file."""
        self._mutex = threading.RLock()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None


def boot_id() -> str:
    """The id of the current boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

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
from lockfast.stores.sqlite.fences import FenceClock
from lockfast.stores.sqlite.peers import Peers, make_folders

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

APPLICATION_ID = 0x686F6C64  # "hold"
VERSION = 1
FIRST_PAUSE = 0.00005
LONGEST_PAUSE = 0.004
LONGEST_PAUSE_OPENING = 0.03  # many processes open the file at once when a service starts
SWEEP_EVERY = 1000  # steps; expired rows of names that are never used again must not accumulate
OPEN_TIMEOUT = 0.05  # how long to wait for other processes while opening, which is slow to retry
CHECK_INTERVAL = 0.02  # how often to check that the path still leads to the open file
# Connections that a child inherited, kept because closing one could write to the parent's file.
_inherited: list[sqlite3.Connection] = []


class Busy(Exception):
    """Another process is inside a transaction."""


class Opening(Busy):
    """Another process is opening the file."""


class File:
    """The SQLite file, opened when first needed and used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        peers: Peers,
        now: Callable[[], float] = clock.now,
        wall: Callable[[], float] = clock.wall,
    ) -> None:
        self.path = path
        self.fences = FenceClock(now)
        self._now = now
        self._wall = wall
        self._peers = peers
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._check_at = 0.0
        self._steps = 0

    def execute(self, statement: str, arguments: tuple[Any, ...]) -> int:
        """Run one statement as its own transaction. Return 0 if it changed no row, else the last
        fence issued, at least 1: the claim's own, since no other thread can issue one meanwhile.
        Raises `Busy` if another process is inside a transaction; then nothing is changed."""
        with self._mutex:
            connection = self._connection
            if connection is None or self._now() > self._check_at:
                connection = self._checked_connection()
            try:
                changed = connection.execute(statement, arguments).rowcount
            except sqlite3.Error as error:
                raise self._backend_error(error) from error
            self._steps += 1
            if self._steps % SWEEP_EVERY == 0:
                with contextlib.suppress(sqlite3.Error):  # a later sweep removes the rows
                    self._sweep(connection)
            return changed and max(self.fences.last, 1)

    def step(self, work: Work[T]) -> T:
        """Run ``work`` in one transaction. Raises `Busy` if another process is inside one; then
        nothing is changed."""
        with self._mutex:
            connection = self._checked_connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
                answer = work(connection)
                self._steps += 1
                if self._steps % SWEEP_EVERY == 0:
                    self._sweep(connection)
                connection.execute("COMMIT")
                return answer
            except sqlite3.Error as error:
                self._roll_back(connection)
                raise self._backend_error(error) from error
            except BaseException:
                self._roll_back(connection)
                raise

    def _checked_connection(self) -> sqlite3.Connection:
        try:
            return self._current_connection()
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

    def _current_connection(self) -> sqlite3.Connection:
        if self._connection is not None:
            now = self._now()
            if now < self._check_at:
                return self._connection
            self._check_at = now + CHECK_INTERVAL
            try:
                found = os.stat(self.path)
                if (found.st_dev, found.st_ino) == self._inode:
                    return self._connection
            except FileNotFoundError:
                pass
            self._close()
        return self._open()

    def _open(self) -> sqlite3.Connection:
        """Open the file, one process at a time: it takes longer than a step, and many would block
        each other. A foreign file has no folder for that, and none is created."""
        if not self._is_new() and not self._peers.has_folder:
            return self._connect()
        make_folders(self.path.parent)
        with self._peers.exclusive() as obtained:
            if not obtained:
                raise Opening
            self._create()
            return self._connect()

    def _is_new(self) -> bool:
        try:
            return os.stat(self.path).st_size == 0
        except FileNotFoundError:
            return True

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
        now = self._now()
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
            offset, ceiling = self.fences.restart(self._wall(), ceiling)
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
        connection.create_function("next_fence", 0, self.fences.next)
        connection.execute("PRAGMA busy_timeout = 0")  # from now on `Backoff` decides
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
            return Busy()
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

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        # The ceiling may have been raised in the transaction that is undone: read it again.
        self.fences.load(self.fences.offset, 0)
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

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
        self._mutex = threading.Lock()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None


class BlockingTransport:
    """Steps for the sync API: a pause blocks the thread."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.fences = file.fences

    async def step(self, work: Work[T], budget: float) -> T:
        """Run ``work`` in one transaction."""
        return await self._retry(lambda: self._file.step(work), budget)

    def execute_now(self, statement: str, arguments: tuple[Any, ...]) -> int:
        """Do as `execute`, without retrying; 0 if another process is inside a transaction."""
        try:
            return self._file.execute(statement, arguments)
        except Busy:
            return 0

    async def execute(self, statement: str, arguments: tuple[Any, ...], budget: float) -> int:
        """Run one statement, which is its own transaction; see `File.execute`."""
        try:
            return self._file.execute(statement, arguments)
        except Busy:
            return await self._retry(lambda: self._file.execute(statement, arguments), budget)

    async def _retry(self, step: Callable[[], T], budget: float) -> T:
        backoff: Backoff | None = None
        while True:
            try:
                return step()
            except Busy as busy:
                backoff = backoff or Backoff(budget, self._file.path)
                pause = backoff.pause(busy)
            await self._sleep(pause)

    async def _sleep(self, pause: float) -> None:
        time.sleep(pause)


class TaskTransport(BlockingTransport):
    """Steps for the async API: a step takes some 20 µs and runs in the loop; a pause suspends."""

    async def _sleep(self, pause: float) -> None:
        await asyncio.sleep(pause)


class Backoff:
    """Random, growing pauses between attempts, within a budget."""

    def __init__(self, budget: float, path: Path) -> None:
        self._until = clock.now() + budget
        self._path = path
        self._pause = FIRST_PAUSE

    def pause(self, busy: Busy) -> float:
        if clock.now() >= self._until:
            raise BackendError(
                f"the store {self._path} stayed locked: another process is in the middle of a "
                "transaction. Check for a stopped one (SIGSTOP, a debugger, a frozen container)"
            ) from None
        longest = LONGEST_PAUSE_OPENING if isinstance(busy, Opening) else LONGEST_PAUSE
        self._pause = min(self._pause * 1.5, longest)
        return self._pause * (0.5 + random.random())


def boot_id() -> str:
    """The id of the current boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

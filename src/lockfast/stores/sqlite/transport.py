"""How steps reach the SQLite file: one connection per client, one short write transaction a step.

What it survives:

- **SIGKILL at any instant**: the write-ahead log makes a transaction whole or not there.
- **A reboot**: leases are measured on a clock that starts again, and every holder is dead, so a
  file of an earlier boot is emptied, all but its fence.
- **A power cut** may forget the last transactions (synchronous=NORMAL); that is a reboot too, and
  the fence has the wall clock as its floor.
- **The file deleted or replaced under us**: noticed at the next step, because the path then leads
  to another inode; what we held in the old one is lost.
- **fork**: the connection is closed before it and opened again after it, on both sides. SQLite's
  locks belong to a process and are silently dropped in a child; no connection may cross.
- **Others inside a transaction**: tried again after a short random pause, within the budget.
  SQLite's own waiting is not used: its pauses are long and unfair.

A process that is *stopped* inside a transaction (some 20 µs) blocks the file until it goes on or is
killed. SQLite offers nothing against that; we end with a `BackendError` that says so.
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
LONGEST_PAUSE_OPENING = 0.03  # many come at once when a service starts, and nobody is in a hurry
SWEEP_EVERY = 1000  # steps; what ran out and is asked for by nobody must not stay for ever
OPENING = 0.05  # how long to wait for others while opening, which is too much to begin again
LOOK_EVERY = 0.02  # how often to see whether the path still leads to our file


_crossed: list[sqlite3.Connection] = []


class Busy(Exception):
    """Another process is inside a transaction."""


class Opening(Busy):
    """Another process is opening the file."""


class File:
    """The SQLite file, opened when first needed, used by one thread at a time."""

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
        self._look_at = 0.0
        self._steps = 0

    def alone(self, statement: str, said: tuple[Any, ...]) -> int:
        """One statement, which is a transaction of its own: how many rows it changed; or `Busy`
        with nothing done."""
        with self._mutex:
            connection = self._connection
            if connection is None or self._now() > self._look_at:
                connection = self._reached()
            try:
                changed = connection.execute(statement, said).rowcount
            except sqlite3.Error as error:
                raise self._explained(error) from error
            self._steps += 1
            if self._steps % SWEEP_EVERY == 0:
                with contextlib.suppress(sqlite3.Error):  # the next time, then
                    self._sweep(connection)
            return changed

    def step(self, work: Work[T]) -> T:
        """One transaction, or `Busy` with nothing done."""
        with self._mutex:
            connection = self._reached()
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
                raise self._explained(error) from error
            except BaseException:
                self._roll_back(connection)
                raise

    def _reached(self) -> sqlite3.Connection:
        try:
            return self._ready()
        except sqlite3.Error as error:
            self._close()
            raise self._explained(error) from error
        except BackendError:
            self._close()
            raise
        except OSError as error:
            self._close()
            raise BackendError(
                f"the store {self.path} is out of reach: {error}", transient=False
            ) from error

    def _ready(self) -> sqlite3.Connection:
        if self._connection is not None:
            now = self._now()
            if now < self._look_at:
                return self._connection
            self._look_at = now + LOOK_EVERY
            try:
                there = os.stat(self.path)
                if (there.st_dev, there.st_ino) == self._inode:
                    return self._connection
            except FileNotFoundError:
                pass
            self._close()
        return self._open()

    def _open(self) -> sqlite3.Connection:
        """Opening is much more than a step, and many who come at once would hold each other up: one
        process at a time does it. A file that is not ours has no folder for that, and gets none."""
        new = self._is_new()
        if not new and not self._peers.settled:
            return self._connect()
        make_folders(self.path.parent)
        with self._peers.guarded() as alone:
            if not alone:
                raise Opening
            self._create()
            return self._connect()

    def _is_new(self) -> bool:
        try:
            return os.stat(self.path).st_size == 0
        except FileNotFoundError:
            return True

    def _create(self) -> None:
        """A new file, for this user alone: it holds the secrets of claims. Leftovers of one that
        was deleted alone would be taken for its own."""
        if not self.path.exists():
            for leftover in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{leftover}")
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=OPENING, isolation_level=None, check_same_thread=False
        )
        try:
            buried = self._prepare(connection)
            there = os.stat(self.path)
        except BaseException:
            connection.close()
            raise
        self._peers.remove(buried)
        self._inode = (there.st_dev, there.st_ino)
        self._connection = connection
        return connection

    def _sweep(self, connection: sqlite3.Connection) -> None:
        now = self._now()
        connection.execute(book.SWEEP_HOLDS, (now,))
        connection.execute(book.SWEEP_WAITERS, (now,))

    def _prepare(self, connection: sqlite3.Connection) -> list[str]:
        """Make the tables, empty a file of an earlier boot, bury the dead; whom we buried."""
        self._refuse_foreign(connection)  # before anything is written
        # Rows are small, and whole pages are what is written.
        connection.execute("PRAGMA page_size = 1024")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BackendError(
                f"{self.path} is on a file system without shared memory (journal mode {mode}): "
                "put it on a local disk",
                transient=False,
            )
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 3000")  # about as many bytes as usual
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
                f"{self.path} was made by another version of lockfast (format {version}, "
                f"this one reads {VERSION}): use the same version everywhere, or another file",
                transient=False,
            )
        buried = []
        if boot != boot_id() or self.fences.starts_again(offset, ceiling):
            connection.execute("DELETE FROM holds")
            connection.execute("DELETE FROM waiters")
            offset, ceiling = self.fences.begin(self._wall(), ceiling)
            connection.execute(
                "UPDATE store SET boot = ?, fence_offset = ?, fence_ceiling = ?",
                (boot_id(), offset, ceiling),
            )
        else:
            buried = self._peers.dead()
            for wake_address in buried:
                connection.execute(book.BURY_HOLDS, (wake_address,))
                connection.execute(book.BURY_WAITERS, (wake_address,))
            self._sweep(connection)
        self.fences.know(*connection.execute(book.CEILING).fetchone())
        connection.execute("COMMIT")
        connection.create_function("next_fence", 0, self.fences.next)
        connection.execute("PRAGMA busy_timeout = 0")  # from now on the pauses are ours
        return buried

    def _refuse_foreign(self, connection: sqlite3.Connection) -> bool:
        """Is it ours already? Empty is not yet; anything else is an error, and left as it is."""
        # In this order: both are committed together, so tables that are seen have their id.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (known,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and known != APPLICATION_ID:
            raise BackendError(
                f"{self.path} is a database of something else: name another file", transient=False
            )
        return bool(tables)

    def _explained(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy()
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._close()
        hints = {
            sqlite3.SQLITE_CANTOPEN: "does its folder exist, and may this user write there?",
            sqlite3.SQLITE_READONLY: "this user may not write there",
            sqlite3.SQLITE_NOTADB: "it is not a SQLite file: name another one",
            sqlite3.SQLITE_CORRUPT: "delete it when no process uses it: it holds only live locks",
            sqlite3.SQLITE_FULL: "the disk is full",
        }
        hint = f" ({hints[code]})" if code in hints else ""
        return BackendError(f"the store {self.path}: {error}{hint}", transient=code not in hints)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self.fences.know(
            self.fences.offset, 0
        )  # as if unknown: it may have been raised in what is undone here
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
        """A connection that crossed, because nobody told us before, is neither used nor closed:
        closing could write to the parent's file."""
        self._mutex = threading.Lock()
        if self._connection is not None:
            _crossed.append(self._connection)
            self._connection = None


class BlockingTransport:
    """Steps for threads: a pause sleeps."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.fences = file.fences

    async def step(self, work: Work[T], budget: float) -> T:
        """``work`` in one transaction."""
        return await self._persist(lambda: self._file.step(work), budget)

    def alone_now(self, statement: str, said: tuple[Any, ...]) -> int:
        """The same, if nobody else is inside a transaction just now; else nothing is done."""
        try:
            return self._file.alone(statement, said)
        except Busy:
            return 0

    async def alone(self, statement: str, said: tuple[Any, ...], budget: float) -> int:
        """A single statement, which needs no transaction around it: how many rows it changed."""
        try:
            return self._file.alone(statement, said)
        except Busy:
            return await self._persist(lambda: self._file.alone(statement, said), budget)

    async def _persist(self, step: Callable[[], T], budget: float) -> T:
        patience: Patience | None = None
        while True:
            try:
                return step()
            except Busy as busy:
                patience = patience or Patience(budget, self._file.path)
                pause = patience.pause(busy)
            await self._sleep(pause)

    async def _sleep(self, pause: float) -> None:
        time.sleep(pause)


class TaskTransport(BlockingTransport):
    """Steps for asyncio: a step is some 20 µs and runs here; a pause suspends."""

    async def _sleep(self, pause: float) -> None:
        await asyncio.sleep(pause)


class Patience:
    """How long to wait before trying again: at random, growing, and not for ever."""

    def __init__(self, budget: float, path: Path) -> None:
        self._until = clock.now() + budget
        self._path = path
        self._pause = FIRST_PAUSE

    def pause(self, busy: Busy) -> float:
        if clock.now() >= self._until:
            raise BackendError(
                f"the store {self._path} stayed locked: another process is in the middle of a "
                "transaction; is one stopped (SIGSTOP, a debugger, a frozen container)?"
            ) from None
        longest = LONGEST_PAUSE_OPENING if isinstance(busy, Opening) else LONGEST_PAUSE
        self._pause = min(self._pause * 1.5, longest)
        return self._pause * (0.5 + random.random())


def boot_id() -> str:
    """Which boot this is; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

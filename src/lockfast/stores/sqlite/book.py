"""The rows of the SQLite file as the law of slots sees them, inside one transaction.

Rows are read only when the law needs them, and the queue only as far as it is served, so the cost
of a step does not grow with the number of waiters. Time is the host's BOOTTIME clock, read after
the write lock was obtained: all processes share it, it never steps, and after a reboot the file is
emptied (see `transport`).

When the process behind a row's ``wake_address`` is dead, all its rows are deleted at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Protocol

from lockfast.core.law import DETACHED, Row
from lockfast.model import Claim, Granted
from lockfast.stores.sqlite.fences import AHEAD, FenceClock

SCHEMA = (
    """CREATE TABLE store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        version INTEGER NOT NULL,
        boot TEXT NOT NULL,
        fence_offset INTEGER NOT NULL,
        fence_ceiling INTEGER NOT NULL
    )""",
    """CREATE TABLE holds (
        name TEXT NOT NULL, id TEXT NOT NULL, who TEXT NOT NULL, take INTEGER NOT NULL,
        slots INTEGER NOT NULL, lease REAL NOT NULL, fair INTEGER NOT NULL,
        fence INTEGER NOT NULL, since REAL NOT NULL, ends REAL NOT NULL,
        wake_address TEXT NOT NULL,
        PRIMARY KEY (name, id)
    ) WITHOUT ROWID""",
    """CREATE TABLE waiters (
        name TEXT NOT NULL, id TEXT NOT NULL, who TEXT NOT NULL, take INTEGER NOT NULL,
        slots INTEGER NOT NULL, lease REAL NOT NULL, fair INTEGER NOT NULL,
        fence INTEGER NOT NULL, since REAL NOT NULL, ends REAL NOT NULL,
        wake_address TEXT NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (name, fair, position)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX waiters_by_id ON waiters (id)",
)

_ROW = "id, who, take, slots, lease, fair, fence, since, ends, wake_address"
HOLDS = f"SELECT {_ROW} FROM holds WHERE name = ?1"
HAS_WAITERS = "SELECT 1 FROM waiters WHERE name = ?1 LIMIT 1"
QUEUE = f"""
    SELECT position, {_ROW} FROM waiters
    WHERE name = ?1 AND fair = ?2 AND position > ?3 ORDER BY position LIMIT 16
"""
PREDECESSOR = """
    SELECT wake_address FROM waiters WHERE name = ?1 AND fair = 1
      AND position < (SELECT position FROM waiters WHERE id = ?2 AND fair = 1)
    ORDER BY position DESC LIMIT 1
"""
WAITER = f"SELECT {_ROW} FROM waiters WHERE id = ?1 AND name = ?2"
CEILING = "SELECT fence_offset, fence_ceiling FROM store"
RAISE_CEILING = "UPDATE store SET fence_ceiling = ?1"
ADD_HOLD = "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
KEEP_HOLD = """
    UPDATE holds SET who = ?1, take = ?2, slots = ?3, ends = ?4, wake_address = ?5
    WHERE name = ?6 AND id = ?7
"""
DELETE_HOLD = "DELETE FROM holds WHERE name = ?1 AND id = ?2"
END_HOLD = "DELETE FROM holds WHERE name = ?1 AND id = ?2 AND ends > ?3"
ADD_WAITER = """
    INSERT INTO waiters
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, coalesce(max(position), 0) + 1
    FROM waiters WHERE name = ?1 AND fair = ?7
"""
KEEP_WAITER = "UPDATE waiters SET slots = ?1, ends = ?2, wake_address = ?3 WHERE id = ?4"
DELETE_WAITER = "DELETE FROM waiters WHERE id = ?1"
SWEEP_HOLDS = """
    DELETE FROM holds WHERE (name, id) IN (SELECT name, id FROM holds WHERE ends <= ?1 LIMIT 1000)
"""
SWEEP_WAITERS = """
    DELETE FROM waiters WHERE id IN (SELECT id FROM waiters WHERE ends <= ?1 LIMIT 1000)
"""
# Claim and release of an uncontended name, each as one statement. They never decide differently
# from the law: where the name has no row, expired or not, a claim is granted; where there is no
# waiter, a release serves none. In every other case they change nothing, and the law decides.
CLAIM_UNCONTENDED = """
    INSERT INTO holds
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, next_fence(), ?8, ?9, ?10
    WHERE NOT EXISTS (SELECT 1 FROM holds WHERE name = ?1)
      AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)
"""
RELEASE_UNCONTENDED = """
    DELETE FROM holds WHERE name = ?1 AND id = ?2 AND ends > ?3
      AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)
"""
DELETE_HOLDS_OF = "DELETE FROM holds WHERE wake_address = ?1"
DELETE_WAITERS_OF = "DELETE FROM waiters WHERE wake_address = ?1"
_columns: Callable[[Row], tuple[Any, ...]] = attrgetter(
    "id", "who", "take", "slots", "lease", "fair", "fence", "since", "ends", "wake_address"
)


class Rows(Protocol):
    """The part of `sqlite3.Connection` that the book needs."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any: ...


class SqlBook:
    """One name inside one transaction. ``is_dead`` checks whether a process has ended."""

    def __init__(
        self,
        rows: Rows,
        name: str,
        now: float,
        wall: float,
        wake_address: str,
        fences: FenceClock,
        is_dead: Callable[[str], bool],
    ) -> None:
        self.now = now
        self.wall = wall
        self.wake_address = wake_address
        self.woken: list[tuple[Row, Granted | None]] = []
        self.dead_peers: list[str] = []
        self._alive: set[str] = set()  # addresses of processes found alive in this step
        self.blockers: tuple[str, frozenset[str]] | None = None
        self._rows = rows
        self._name = name
        self._fences = fences
        self._is_dead = is_dead
        self._holds: dict[str, Row] | None = None
        self.has_waiters: bool | None = None  # or had, at the beginning of this step
        self._heads: dict[bool, list[tuple[int, Row]]] = {}  # the first rows of a queue, once read

    @property
    def holds(self) -> dict[str, Row]:
        if self._holds is None:
            self._holds = {}
            for columns in self._rows.execute(HOLDS, (self._name,)).fetchall():
                row = Row(*columns)
                if self._is_alive(row):
                    self._holds[row.id] = row
                else:
                    self._rows.execute(DELETE_HOLD, (self._name, row.id))
        return self._holds

    @property
    def last_fence(self) -> int:
        return self._fences.current()

    def next_fence(self) -> int:
        """The next fence (see `fences`). The ceiling is raised before fences reach it."""
        fences = self._fences
        if fences.ceiling_due:
            fences.load(*self._rows.execute(CEILING).fetchone())
            if fences.ceiling_due:
                fences.load(fences.offset, fences.current() + AHEAD)
                self._rows.execute(RAISE_CEILING, (fences.ceiling,))
        return fences.next()

    def waiting(self, *, fair: bool) -> Iterator[Row] | tuple[Row, ...]:
        return self._queue(fair) if self._check_waiters() else ()

    def _check_waiters(self) -> bool:
        if self.has_waiters is None:
            found = self._rows.execute(HAS_WAITERS, (self._name,)).fetchone()
            self.has_waiters = found is not None
        return self.has_waiters

    def _queue(self, fair: bool) -> Iterator[Row]:
        if fair not in self._heads:
            self._heads[fair] = self._read(fair, -1)
        page = self._heads[fair].copy()
        while page:
            for _, row in page:
                if self._is_alive(row):
                    yield row
                else:
                    self.remove_waiter(row)
            page = self._read(fair, page[-1][0])

    def _read(self, fair: bool, after: int) -> list[tuple[int, Row]]:
        found = self._rows.execute(QUEUE, (self._name, fair, after)).fetchall()
        return [(position, Row(*columns)) for position, *columns in found]

    def note_blockers(self, claim_id: str) -> None:
        """Record the processes whose death advances this waiter: the waiter before it, which holds
        next; for the first and for unfair ones, the holders. So one death wakes one waiter."""
        before = self._rows.execute(PREDECESSOR, (self._name, claim_id)).fetchone()
        peers = {before[0]} if before else {row.wake_address for row in self.holds.values()}
        self.blockers = (claim_id, frozenset(peers - {self.wake_address, DETACHED}))

    def _is_alive(self, row: Row) -> bool:
        if row.ends <= self.now:
            return False
        if row.wake_address in self._alive or row.wake_address in (self.wake_address, DETACHED):
            return True
        if self._is_dead(row.wake_address):
            self._rows.execute(DELETE_HOLDS_OF, (row.wake_address,))
            self._rows.execute(DELETE_WAITERS_OF, (row.wake_address,))
            self.dead_peers.append(row.wake_address)
            return False
        self._alive.add(row.wake_address)
        return True

    def waiter(self, claim_id: str) -> Row | None:
        if not self._check_waiters():
            return None
        found = self._rows.execute(WAITER, (claim_id, self._name)).fetchone()
        if found is None:
            return None
        row = Row(*found)
        if row.ends > self.now:
            return row
        self.remove_waiter(row)
        return None

    def add_hold(self, row: Row) -> None:
        self.holds[row.id] = row
        self._rows.execute(ADD_HOLD, (self._name, *_columns(row)))

    def keep_hold(self, row: Row) -> None:
        arguments = (row.who, row.take, row.slots, row.ends, row.wake_address, self._name, row.id)
        self._rows.execute(KEEP_HOLD, arguments)

    def end_hold(self, claim_id: str) -> bool:
        if self._holds is not None:
            self._holds.pop(claim_id, None)
        return bool(self._rows.execute(END_HOLD, (self._name, claim_id, self.now)).rowcount)

    def add_waiter(self, row: Row) -> None:
        self.has_waiters = True
        self._heads.pop(row.fair, None)
        self._rows.execute(ADD_WAITER, (self._name, *_columns(row)))

    def keep_waiter(self, row: Row) -> None:
        self._heads.pop(row.fair, None)
        self._rows.execute(KEEP_WAITER, (row.slots, row.ends, row.wake_address, row.id))

    def remove_waiter(self, row: Row) -> None:
        head = self._heads.get(row.fair)
        if head is not None:
            self._heads[row.fair] = [entry for entry in head if entry[1].id != row.id]
        self._rows.execute(DELETE_WAITER, (row.id,))

    def wake(self, row: Row, grant: Granted | None) -> None:
        self.woken.append((row, grant))


def extend_batch(rows: Rows, claims: Sequence[Claim], fences: Sequence[int], now: float) -> bool:
    """Renew a batch of holds if all are alive under their fences; False: renew them one by one.
    Those alive are extended by then, and renewing them again does no harm."""
    done = rows.executemany(
        "UPDATE holds SET ends = ? WHERE name = ? AND id = ? AND fence = ? AND ends > ?",
        [
            (now + lease, name, claim_id, fence, now)
            for (name, claim_id, _, lease, *_), fence in zip(claims, fences, strict=True)
        ],
    )
    return bool(done.rowcount == len(claims))

"""Rows of the SQLite file as the law of slots sees them, inside one transaction.

Nothing is read before the law asks for it, and the queue only as far as it is served, so a step
costs the same however many wait. Time is the host's BOOTTIME clock, read after the write lock was
obtained: all processes share it, it never steps, and after a reboot the file is emptied (see
`transport`).

Who died is found here too: a row whose ``home`` is a process that is no more is buried at once,
with all that this process had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        fence INTEGER NOT NULL, since REAL NOT NULL, ends REAL NOT NULL, home TEXT NOT NULL,
        PRIMARY KEY (name, id)
    ) WITHOUT ROWID""",
    """CREATE TABLE waiters (
        name TEXT NOT NULL, id TEXT NOT NULL, who TEXT NOT NULL, take INTEGER NOT NULL,
        slots INTEGER NOT NULL, lease REAL NOT NULL, fair INTEGER NOT NULL,
        fence INTEGER NOT NULL, since REAL NOT NULL, ends REAL NOT NULL, home TEXT NOT NULL,
        place INTEGER NOT NULL,
        PRIMARY KEY (name, fair, place)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX waiters_by_id ON waiters (id)",
)

_ROW = "id, who, take, slots, lease, fair, fence, since, ends, home"
HOLDS = f"SELECT {_ROW} FROM holds WHERE name = ?1"
ANYBODY = "SELECT 1 FROM waiters WHERE name = ?1 LIMIT 1"
QUEUE = f"""
    SELECT place, {_ROW} FROM waiters
    WHERE name = ?1 AND fair = ?2 AND place > ?3 ORDER BY place LIMIT 16
"""
BEFORE = """
    SELECT home FROM waiters WHERE name = ?1 AND fair = 1
      AND place < (SELECT place FROM waiters WHERE id = ?2 AND fair = 1)
    ORDER BY place DESC LIMIT 1
"""
PLACE = f"SELECT {_ROW} FROM waiters WHERE id = ?1 AND name = ?2"
CEILING = "SELECT fence_offset, fence_ceiling FROM store"
RAISE_CEILING = "UPDATE store SET fence_ceiling = ?1"
ADD_HOLD = "INSERT INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
KEEP_HOLD = """
    UPDATE holds SET who = ?1, take = ?2, slots = ?3, ends = ?4, home = ?5
    WHERE name = ?6 AND id = ?7
"""
DROP_HOLD = "DELETE FROM holds WHERE name = ?1 AND id = ?2"
END_HOLD = "DELETE FROM holds WHERE name = ?1 AND id = ?2 AND ends > ?3"
ADD_PLACE = """
    INSERT INTO waiters
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, coalesce(max(place), 0) + 1
    FROM waiters WHERE name = ?1 AND fair = ?7
"""
KEEP_PLACE = "UPDATE waiters SET slots = ?1, ends = ?2, home = ?3 WHERE id = ?4"
DROP_PLACE = "DELETE FROM waiters WHERE id = ?1"
SWEEP_HOLDS = """
    DELETE FROM holds WHERE (name, id) IN (SELECT name, id FROM holds WHERE ends <= ?1 LIMIT 1000)
"""
SWEEP_WAITERS = """
    DELETE FROM waiters WHERE id IN (SELECT id FROM waiters WHERE ends <= ?1 LIMIT 1000)
"""
# The two steps that a lock takes when it is alone, each as one statement. They decide nothing that
# the law would decide otherwise: where there is no row of the name, dead or alive, a claim is
# granted; where nobody waits, a release serves nobody. In every other case they do nothing, and
# the law does.
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
BURY_HOLDS = "DELETE FROM holds WHERE home = ?1"
BURY_WAITERS = "DELETE FROM waiters WHERE home = ?1"


class Rows(Protocol):
    """What the book needs of a connection."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Any: ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any: ...


class SqlBook:
    """One name inside one transaction. ``is_dead`` tells whether a process is gone for good."""

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
        self.buried: list[str] = []
        self._living: set[str] = set()  # whom we have seen alive in this step
        self.in_the_way: tuple[str, frozenset[str]] | None = None
        self._rows = rows
        self._name = name
        self._fences = fences
        self._is_dead = is_dead
        self._holds: dict[str, Row] | None = None
        self.anybody_waits: bool | None = None  # or did, at the beginning of this step
        self._heads: dict[bool, list[tuple[int, Row]]] = {}  # the first rows of a queue, once read

    @property
    def holds(self) -> dict[str, Row]:
        if self._holds is None:
            self._holds = {}
            for columns in self._rows.execute(HOLDS, (self._name,)).fetchall():
                row = Row(*columns)
                if self._lives(row):
                    self._holds[row.id] = row
                else:
                    self._rows.execute(DROP_HOLD, (self._name, row.id))
        return self._holds

    @property
    def last_fence(self) -> int:
        return self._fences.seen()

    def next_fence(self) -> int:
        """See `fences`. A ceiling that we come near is raised before a fence is given."""
        fences = self._fences
        if fences.near_the_ceiling:
            fences.know(*self._rows.execute(CEILING).fetchone())
            if fences.near_the_ceiling:
                fences.know(fences.offset, fences.seen() + AHEAD)
                self._rows.execute(RAISE_CEILING, (fences.ceiling,))
        return fences.next()

    def waiting(self, *, fair: bool) -> Iterator[Row] | tuple[Row, ...]:
        return self._queue(fair) if self._somebody_waits() else ()

    def _somebody_waits(self) -> bool:
        if self.anybody_waits is None:
            found = self._rows.execute(ANYBODY, (self._name,)).fetchone()
            self.anybody_waits = found is not None
        return self.anybody_waits

    def _queue(self, fair: bool) -> Iterator[Row]:
        if fair not in self._heads:
            self._heads[fair] = self._read(fair, -1)
        page = self._heads[fair].copy()
        while page:
            for _, row in page:
                if self._lives(row):
                    yield row
                else:
                    self.remove_waiter(row)
            page = self._read(fair, page[-1][0])

    def _read(self, fair: bool, after: int) -> list[tuple[int, Row]]:
        found = self._rows.execute(QUEUE, (self._name, fair, after)).fetchall()
        return [(waiter, Row(*columns)) for waiter, *columns in found]

    def look_ahead(self, claim_id: str) -> None:
        """Note whose death would bring this waiter nearer: the one before it in the queue, who will
        hold it next; for the first and for the unfair, those who hold it. One death wakes one."""
        before = self._rows.execute(BEFORE, (self._name, claim_id)).fetchone()
        wake_addresses = (
            {before[0]} if before else {row.wake_address for row in self.holds.values()}
        )
        self.in_the_way = (claim_id, frozenset(wake_addresses - {self.wake_address, DETACHED}))

    def _lives(self, row: Row) -> bool:
        if row.ends <= self.now:
            return False
        if row.wake_address in self._living or row.wake_address in (self.wake_address, DETACHED):
            return True
        if self._is_dead(row.wake_address):
            self._rows.execute(BURY_HOLDS, (row.wake_address,))
            self._rows.execute(BURY_WAITERS, (row.wake_address,))
            self.buried.append(row.wake_address)
            return False
        self._living.add(row.wake_address)
        return True

    def waiter(self, claim_id: str) -> Row | None:
        if not self._somebody_waits():
            return None
        found = self._rows.execute(PLACE, (claim_id, self._name)).fetchone()
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
        said = (row.who, row.take, row.slots, row.ends, row.wake_address, self._name, row.id)
        self._rows.execute(KEEP_HOLD, said)

    def end_hold(self, claim_id: str) -> bool:
        if self._holds is not None:
            self._holds.pop(claim_id, None)
        ended = self._rows.execute(END_HOLD, (self._name, claim_id, self.now))
        return bool(ended.rowcount)

    def add_waiter(self, row: Row) -> None:
        self.anybody_waits = True
        self._heads.pop(row.fair, None)
        self._rows.execute(ADD_PLACE, (self._name, *_columns(row)))

    def keep_waiter(self, row: Row) -> None:
        self._heads.pop(row.fair, None)
        self._rows.execute(KEEP_PLACE, (row.slots, row.ends, row.wake_address, row.id))

    def remove_waiter(self, row: Row) -> None:
        head = self._heads.get(row.fair)
        if head is not None:
            self._heads[row.fair] = [entry for entry in head if entry[1].id != row.id]
        self._rows.execute(DROP_PLACE, (row.id,))

    def wake(self, row: Row, grant: Granted | None) -> None:
        self.woken.append((row, grant))


def _columns(row: Row) -> tuple[Any, ...]:
    return (
        row.id,
        row.who,
        row.take,
        row.slots,
        row.lease,
        row.fair,
        row.fence,
        row.since,
        row.ends,
        row.wake_address,
    )


def extend_together(rows: Rows, claims: Sequence[Claim], fences: Sequence[int], now: float) -> bool:
    """Renew many holds at once, if all of them live under their fences; False: one by one. Those
    that live have been extended then already, which asking again one by one repeats."""
    done = rows.executemany(
        "UPDATE holds SET ends = ? WHERE name = ? AND id = ? AND fence = ? AND ends > ?",
        [
            (now + lease, name, claim_id, fence, now)
            for (name, claim_id, _, lease, *_), fence in zip(claims, fences, strict=True)
        ],
    )
    return bool(done.rowcount == len(claims))

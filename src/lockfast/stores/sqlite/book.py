"""The rows of the SQLite file as the law of slots sees them, inside one transaction.

Rows are read only when the law needs them, and the queue only as far as it is served, so the cost
of a step does not grow with the number of waiters. Time is the host's BOOTTIME clock, read after
the write lock was obtained: all processes share it, it never steps, and after a reboot the file is
emptied (see `file`). When the process behind a row's ``wake_address`` is dead, all its rows are
deleted at once.

Fences come from the same clock, so that a grant need not write a counter. A fence is the time in µs
plus an offset that is fixed per boot. Grants are made under SQLite's write lock, one after the
other, and each reads the clock while it has the lock. Between two grants there is at least a
commit, which takes a few µs. So the later fence is the greater one, in any process. Within a
process the fence is incremented if the clock has not advanced. The clock starts again at each boot.
The file therefore stores a *ceiling* above all fences: it is raised a minute ahead, before fences
reach it, and a new boot begins above it or at the wall clock, whichever is higher. The wall clock
is read only then, and when a new file is created.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Protocol

from lockfast.core.law import DETACHED, Row
from lockfast.model import Claim, Granted

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

# ---- statements of the law -------------------------------------------------------------------

_ROW = "id, who, take, slots, lease, fair, fence, since, ends, wake_address"
# The holds, and the first fair waiters: a lock grants to one of them, and looks at the next.
NAME = f"""
    SELECT -1, {_ROW} FROM holds WHERE name = ?1
    UNION ALL SELECT * FROM (
        SELECT position, {_ROW} FROM waiters
        WHERE name = ?1 AND fair = 1 ORDER BY position LIMIT 2)
"""
QUEUE = f"""
    SELECT position, {_ROW} FROM waiters
    WHERE name = ?1 AND fair = ?2 AND position > ?3 ORDER BY position LIMIT 16
"""
WAITER = f"SELECT {_ROW} FROM waiters WHERE id = ?1 AND name = ?2"
PREDECESSOR = """
    SELECT wake_address FROM waiters WHERE name = ?1 AND fair = 1 AND ends > ?3
      AND position < (SELECT position FROM waiters WHERE id = ?2 AND fair = 1)
    ORDER BY position DESC LIMIT 1
"""
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
EXTEND = "UPDATE holds SET ends = ? WHERE name = ? AND id = ? AND fence = ? AND ends > ?"
SWEEP_HOLDS = """
    DELETE FROM holds WHERE (name, id) IN (SELECT name, id FROM holds WHERE ends <= ?1 LIMIT 1000)
"""
SWEEP_WAITERS = """
    DELETE FROM waiters WHERE id IN (SELECT id FROM waiters WHERE ends <= ?1 LIMIT 1000)
"""
# The rows of a process: a wake address is the process's own, or one of its threads' (see `peers`).
DELETE_HOLDS_OF = "DELETE FROM holds WHERE wake_address = ?1 OR wake_address GLOB ?1 || '.*'"
DELETE_WAITERS_OF = "DELETE FROM waiters WHERE wake_address = ?1 OR wake_address GLOB ?1 || '.*'"
NAMES = """
    SELECT name FROM (SELECT name, ends FROM holds UNION ALL SELECT name, ends FROM waiters)
    WHERE ends > ?1 AND substr(name, 1, length(?2)) = ?2 GROUP BY name ORDER BY name
"""

# ---- common cases in one statement -----------------------------------------------------------

# They never decide differently from the law: where the name has no row, expired or not, a claim is
# granted; where live holds take all slots, it is queued; where there is no waiter, a release serves
# none. In every other case they change nothing, and the law decides.
#
# `boottime` and `note` are functions of C alone (see `file`): in one of Python, SQLite would turn a
# KeyboardInterrupt into an error of its own. `note` remembers a value under a new key.
CLAIM_UNCONTENDED = """
    INSERT INTO holds
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7,
           note(?11, max(?12, ?13 + CAST(boottime() * 1000000.0 AS INTEGER))), ?8, ?9, ?10
    WHERE NOT EXISTS (SELECT 1 FROM holds WHERE name = ?1)
      AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)
"""
# Notes the fence, when the first hold ends, who holds, and who is the waiter before this one.
CLAIM_TAKEN = """
    INSERT INTO waiters
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7,
           note(?12, printf('%d %!.17g %s,%s',
               max(?13, ?14 + CAST(boottime() * 1000000.0 AS INTEGER)), held.ends, held.by,
               (SELECT wake_address FROM waiters WHERE name = ?1 AND fair AND ?7 AND ends > ?11
                ORDER BY position DESC LIMIT 1)
           )) * 0, ?8, ?9, ?10,
           coalesce((SELECT max(position) FROM waiters WHERE name = ?1 AND fair = ?7), 0) + 1
    FROM (SELECT min(ends) AS ends, group_concat(wake_address) AS by, sum(take) AS taken,
                 min(slots = ?5 AND id <> ?2 AND ends > ?11) AS all_live
          FROM holds WHERE name = ?1) AS held
    WHERE all_live AND taken >= ?5 AND NOT EXISTS (SELECT 1 FROM waiters WHERE id = ?2)
"""
RELEASE_UNCONTENDED = """
    DELETE FROM holds WHERE name = ?1 AND id = ?2 AND ends > ?3
      AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)
"""

_columns: Callable[[Row], tuple[Any, ...]] = attrgetter(
    "id", "who", "take", "slots", "lease", "fair", "fence", "since", "ends", "wake_address"
)


class Fences:
    """The fences of one connection. ``ceiling`` is the file's, as last read."""

    AHEAD = 60_000_000  # µs by which the ceiling is raised at a time

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.offset = self.ceiling = self.last = 0
        self._safe_until = 0.0  # on the clock: until then fences stay well below the ceiling
        # Of the statements that issue a fence: each has a key of its own, so that the remains of an
        # interrupted one can never be taken for another's fence.
        self.noted: dict[int, Any] = {}
        self.keys = itertools.count(1)

    def load(self, offset: int, ceiling: int) -> None:
        """Set the values that the file stores."""
        self.offset, self.ceiling = offset, ceiling
        self._safe_until = (ceiling - offset - self.AHEAD // 10) / 1e6

    def is_new_boot(self, offset: int, ceiling: int) -> bool:
        """True if the clock is behind its value when the ceiling was last raised: then this is
        another boot, even where the system has no boot id."""
        return offset + int(self.clock() * 1e6) < ceiling - self.AHEAD

    def restart(self, wall: float, ceiling: int) -> tuple[int, int]:
        """The offset and the ceiling to store for a new boot or a new file."""
        start = max(int(wall * 1e6), ceiling + 1)
        return start - int(self.clock() * 1e6), start + self.AHEAD

    def current(self) -> int:
        """A number that no earlier fence exceeds and every later fence exceeds."""
        self.last = max(self.last, self.offset + int(self.clock() * 1e6))
        return self.last

    def next(self) -> int:
        """The next fence. The caller has the write lock."""
        self.last = max(self.last + 1, self.offset + int(self.clock() * 1e6))
        return self.last

    @property
    def ceiling_due(self) -> bool:
        return self.clock() > self._safe_until

    def take(self, key: int) -> Any:
        """The value that a statement noted under this key: a fence, or a text that begins with
        one."""
        noted = self.noted.pop(key)
        self.last = noted if type(noted) is int else int(noted.partition(" ")[0])
        return noted


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
        fences: Fences,
        is_dead: Callable[[str], bool],
    ) -> None:
        self.now = now
        self.wall = wall
        self.wake_address = wake_address
        self.woken: list[tuple[Row, Granted | None]] = []
        self.dead_peers: list[str] = []
        self._alive = {process_of(wake_address), DETACHED}  # addresses found alive in this step
        self._rows = rows
        self.name = name
        self._fences = fences
        self._is_dead = is_dead
        self._holds: dict[str, Row] | None = None
        self._heads: dict[bool, list[tuple[int, Row]]] = {}  # the first rows of a queue, once read
        self._had_waiters = False

    @property
    def has_waiters(self) -> bool | None:
        """Whether the name has waiters, or had when this step began; None: not known."""
        return True if self._had_waiters else False if len(self._heads) == 2 else None

    @property
    def holds(self) -> dict[str, Row]:
        if self._holds is None:
            self._holds = {}
            found = self._read(self._rows.execute(NAME, (self.name,)))
            for position, row in found:
                if position < 0 and self._is_alive(row):
                    self._holds[row.id] = row
                elif position < 0:
                    self._rows.execute(DELETE_HOLD, (self.name, row.id))
            self._note_head(True, [entry for entry in found if entry[0] >= 0])
        return self._holds

    @property
    def last_fence(self) -> int:
        return self._fences.current()

    def next_fence(self) -> int:
        """The next fence. The ceiling is raised before fences reach it."""
        fences = self._fences
        if fences.ceiling_due:
            fences.load(*self._rows.execute(CEILING).fetchone())
            if fences.ceiling_due:
                fences.load(fences.offset, fences.current() + fences.AHEAD)
                self._rows.execute(RAISE_CEILING, (fences.ceiling,))
        return fences.next()

    def waiting(self, *, fair: bool) -> Iterator[Row] | tuple[Row, ...]:
        if fair and self._holds is None:
            self.holds  # noqa: B018  (reads the head of the queue, too)
        head = self._heads.get(fair)
        if head is None:
            head = self._note_head(fair, self._page(fair, -1))
        return self._living(fair, head.copy()) if head else ()

    def _living(self, fair: bool, page: list[tuple[int, Row]]) -> Iterator[Row]:
        while page:
            for _, row in page:
                if self._is_alive(row):
                    yield row
                else:
                    self.remove_waiter(row)
            page = self._page(fair, page[-1][0])

    def _page(self, fair: bool, after: int) -> list[tuple[int, Row]]:
        return self._read(self._rows.execute(QUEUE, (self.name, fair, after)))

    def _read(self, found: Any) -> list[tuple[int, Row]]:
        return [(position, Row(*columns)) for position, *columns in found.fetchall()]

    def _note_head(self, fair: bool, head: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
        self._heads[fair] = head
        self._had_waiters = self._had_waiters or bool(head)
        return head

    def _is_alive(self, row: Row) -> bool:
        if row.ends <= self.now:
            return False
        process = process_of(row.wake_address)
        if process in self._alive:
            return True
        if self._is_dead(process):
            self._rows.execute(DELETE_HOLDS_OF, (process,))
            self._rows.execute(DELETE_WAITERS_OF, (process,))
            self.dead_peers.append(process)
            return False
        self._alive.add(process)
        return True

    def waiter(self, claim_id: str) -> Row | None:
        found = self._rows.execute(WAITER, (claim_id, self.name)).fetchone()
        if found is None:
            return None
        row = Row(*found)
        if row.ends > self.now:
            return row
        self.remove_waiter(row)
        return None

    def add_hold(self, row: Row) -> None:
        self.holds[row.id] = row
        self._rows.execute(ADD_HOLD, (self.name, *_columns(row)))

    def keep_hold(self, row: Row) -> None:
        arguments = (row.who, row.take, row.slots, row.ends, row.wake_address, self.name, row.id)
        self._rows.execute(KEEP_HOLD, arguments)

    def end_hold(self, claim_id: str) -> bool:
        if self._holds is not None:
            self._holds.pop(claim_id, None)
        return bool(self._rows.execute(END_HOLD, (self.name, claim_id, self.now)).rowcount)

    def add_waiter(self, row: Row) -> None:
        self._had_waiters = True
        self._heads.pop(row.fair, None)
        self._rows.execute(ADD_WAITER, (self.name, *_columns(row)))

    def keep_waiter(self, row: Row) -> None:
        self._heads.pop(row.fair, None)
        self._rows.execute(KEEP_WAITER, (row.slots, row.ends, row.wake_address, row.id))

    def remove_waiter(self, row: Row) -> None:
        head = self._heads.get(row.fair)
        if head is not None:
            self._heads[row.fair] = [entry for entry in head if entry[1].id != row.id]
        self._rows.execute(DELETE_WAITER, (row.id,))

    def predecessor(self, claim_id: str) -> str | None:
        """The wake address of the fair waiter before this one."""
        found = self._rows.execute(PREDECESSOR, (self.name, claim_id, self.now)).fetchone()
        return found[0] if found else None

    def wake(self, row: Row, grant: Granted | None) -> None:
        self.woken.append((row, grant))


def process_of(wake_address: str) -> str:
    """The part of a wake address that names the process; the rest names one of its threads."""
    return wake_address.partition(".")[0]


def extend_batch(rows: Rows, claims: Sequence[Claim], fences: Sequence[int], now: float) -> bool:
    """Renew a batch of holds if all are alive under their fences; False: renew them one by one.
    Those alive are extended by then, and renewing them again does no harm."""
    arguments = [
        (now + lease, name, claim_id, fence, now)
        for (name, claim_id, _, lease, *_), fence in zip(claims, fences, strict=True)
    ]
    return bool(rows.executemany(EXTEND, arguments).rowcount == len(claims))

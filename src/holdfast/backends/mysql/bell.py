"""How a process that waits is woken on MariaDB and MySQL: its ear sleeps, and who rings ends that.

Neither server can push. What blocks there can be ended by nobody but its owner (GET_LOCK, a row's
lock), and who will release, and so ring, is not known while one waits; but one session may end
another's statement. So each process that waits has one connection, its *ear*, that owns a lock of
the ear's name and says ``DO SLEEP(20)``, again and again. Who grants says, after its commit,
``KILL QUERY IS_USED_LOCK(that name)``: the server finds the ear by the lock that it owns *now*, and
ends its sleep, no error for anybody.

**Why this can hit nobody else.** No number of a session is ever stored: after a restart, or when
the ear is gone, nobody owns the lock, and nothing is killed. Only who knows our home, a random
number, could own a lock of that name. Between the look-up and the kill the session would have to
end and 2³² others to begin before its number meant another one. And KILL QUERY ends a statement,
not a session; the ear has no other statement than its sleep.

**Who may.** The user of the ear itself: no right is needed for that. If releaser and waiter are
different users, the server refuses (1095), nobody is rung, and the ear finds out (see
`rows.ears`): it looks then, at a pace.

A bell between two sleeps is lost: a KILL is forgotten when the next statement begins. So the ear
sleeps again first, and then looks, on another connection.

``python bench/run.py sql_bells`` measures this beside paced reads alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from holdfast.backends.mysql import schema
from holdfast.backends.mysql.conditions import explained
from holdfast.backends.mysql.links import Link, code_and_words
from holdfast.backends.mysql.words import bell_of, filled
from holdfast.errors import BackendError
from holdfast.model import Granted

# Long, so that it costs nothing, and shorter than what networks take for silence.
SLEEP = 20.0
ANSWERING, ENDING = 1.0, 0.25
# Its sleep was ended by an error, as SELECT's would be, or by a limit for statements.
_AWAKE = (1317, 1969, 3024)


class Listener:
    """The ear: a session that sleeps."""

    says = False

    def __init__(self, link: Link, tell: Callable[[str, float], object]) -> None:
        """``tell`` says something on another connection."""
        self._link = link
        self._tell = tell
        self._bell = ""
        self._connection: Any = link._connection
        self.fd: int = self._connection._sock.fileno()

    @property
    def broken(self) -> bool:
        return self._link.broken

    def listen(self, home: str, budget: float) -> None:
        self._bell = bell_of(home)
        owned = self._link.ask(filled(schema.HEAR, self._bell, 0), budget)[0].rows[0][0]
        if owned != 1:  # an ear that we lost, and that the server has not noticed to be gone
            self._link.ask(filled(schema.END, self._bell), budget)
            owned = self._link.ask(filled(schema.HEAR, self._bell, 1), budget)[0].rows[0][0]
        if owned != 1:
            raise BackendError(f"{self._link._where}: another session is our ear already")
        self._sleep()

    def bells(self) -> list[tuple[str, Granted | None]]:
        """It woke up: somebody rang, or it slept long enough. Nothing more is said."""
        self._connection._read_timeout = ANSWERING
        try:
            self._connection._read_query_result()
        except (pymysql.MySQLError, OSError) as error:
            code, said = code_and_words(error)
            if code not in _AWAKE:
                self._link.broken = True
                raise BackendError(str(explained(code, said, self._link._where))) from error
        self._sleep()
        return []

    def _sleep(self) -> None:
        self._connection._write_timeout = ANSWERING
        try:
            self._connection._execute_command(COMMAND.COM_QUERY, schema.SLEEP.format(SLEEP))
        except (pymysql.MySQLError, OSError) as error:
            self._link.broken = True
            raise BackendError(f"the connection to {self._link._where} is lost: {error}") from error

    def close(self) -> None:
        """The server would notice within five seconds that nobody listens any more."""
        if not self.broken:
            try:
                self._tell(filled(schema.END, self._bell), ENDING)
            except BackendError:
                pass  # then so
        self._link.close()

    def after_fork_in_child(self) -> None:
        self._link.after_fork_in_child()

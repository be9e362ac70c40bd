"""A storm on PostgreSQL or MariaDB: the server restarts, crashes and freezes, sessions are killed,
replies lost. See `storm`. Committed data survives a crash, so no breach is excused by amnesia."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from storm import ServerStorm

from lockfast import clock

# Longer than on Redis: a request has a sixth of the lease, and a PostgreSQL session is a process.
LEASES = {"quick": 0.9, "usual": 1.2, "slow": 1.5}

# Queries for lockfast's sessions, for the listening ones among them, and to end one; substrings of
# requests on the wire. Of a statement that MariaDB prepared only the owner's host is readable, and
# with MySQL only its hexadecimal form.
SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockfast'",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = 'lockfast'",
}
LISTENERS = {
    "postgres": "AND query LIKE 'LISTEN%%'",
    "mariadb": "AND info LIKE 'DO SLEEP%%'",
}
KILL = {"postgres": "SELECT pg_terminate_backend(%s)", "mariadb": "KILL %s"}
NODE = platform.node().encode()
REQUESTS = {
    "postgres": [b"lockfast_claim", b"lockfast_release", b"lockfast_write", b"lockfast_extend"],
    "mariadb": [b"UPDATE lockfast_names", b"FROM lockfast_rows", NODE, NODE.hex().encode()],
}


class SqlStorm(ServerStorm):
    leases = LEASES

    def __init__(self, kind: str, server: Any, seed: int) -> None:
        super().__init__(server, seed)
        self.kind = kind
        store = "mysql" if kind == "mariadb" else kind
        self.module = f"lockfast.stores.sql.{store}.endpoint"

    def url(self, ports: Sequence[int]) -> str:
        return str(self.server.url).replace(f":{self.server.port}/", f":{ports[0]}/")

    def requests(self) -> list[bytes]:
        return REQUESTS[self.kind]

    # -- faults --------------------------------------------------------------------------------

    def kill_a_holder(self) -> None:
        """Kill one process at a time: a waiter that dies in the queue is still granted once."""
        caught = self.catch([self.random.choice(list(LEASES))])
        self.kill(caught, list(caught.values()))

    def crash(self) -> None:
        self.server.kill()
        self.server.start()
        self.wait_for_recovery("crash", clock.now())

    def kill_sessions(self) -> None:
        """Kill half of the sessions, chosen at random, whatever they are doing."""
        self.kill_some("kill of sessions", "", 0.5)

    def kill_listeners(self) -> None:
        self.kill_some("kill of listeners", LISTENERS[self.kind], 1.0)

    def kill_some(self, kind: str, restriction: str, share: float) -> None:
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"{SESSIONS[self.kind]} {restriction}", () if restriction else None)
            own = connection.thread_id() if self.kind == "mariadb" else 0
            for (number,) in list(cursor.fetchall()):
                if number != own and self.random.random() < share:
                    self.faults[f"{kind}: number"] += 1
                    try:
                        cursor.execute(KILL[self.kind], (number,))
                    except Exception as error:
                        if "Unknown thread" not in str(error):  # that session has ended by itself
                            raise
        self.wait_for_recovery(kind, clock.now())

"""A storm on PostgreSQL or MariaDB: the server restarts, crashes and freezes, its sessions are
killed, its replies lost. See `storm`. What a server was told and committed it still knows after a
crash, so nothing is ever excused by amnesia."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

from storm import ServerStorm

from lockfast import clock

# Longer than on Redis: a budget is a sixth of it, and a session of PostgreSQL is a process.
LEASES = {"quick": 0.9, "usual": 1.2, "slow": 1.5}

# All that are lockfast's; those that hear; how to end one; what is in requests on the wire (of what
# MariaDB prepared only who asks can be read, and of what MySQL did that in digits).
SESSIONS = {
    "postgres": "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockfast'",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = 'lockfast'",
}
EARS = {
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
        self.module = f"lockfast.stores.{store}.store"

    def url(self, ports: Sequence[int]) -> str:
        return str(self.server.url).replace(f":{self.server.port}/", f":{ports[0]}/")

    def requests(self) -> list[bytes]:
        return REQUESTS[self.kind]

    # -- faults --------------------------------------------------------------------------------

    def kill_a_holder(self) -> None:
        """One process at a time: who dies in the queue is granted it once, before the next."""
        caught = self.catch([self.random.choice(list(LEASES))])
        self.kill(caught, list(caught.values()))

    def crash(self) -> None:
        self.server.kill()
        self.server.start()
        self.goes_on("crash", clock.now())

    def kill_sessions(self) -> None:
        """Half of them, whoever's they are, in the middle of whatever they do."""
        self.kill_some("kill of sessions", "", 0.5)

    def kill_ears(self) -> None:
        self.kill_some("kill of ears", EARS[self.kind], 1.0)

    def kill_some(self, kind: str, which: str, share: float) -> None:
        with self.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"{SESSIONS[self.kind]} {which}", () if which else None)
            mine = connection.thread_id() if self.kind == "mariadb" else 0
            for (number,) in list(cursor.fetchall()):
                if number != mine and self.random.random() < share:
                    self.faults[f"{kind}: how many"] += 1
                    try:
                        cursor.execute(KILL[self.kind], (number,))
                    except Exception as error:
                        if "Unknown thread" not in str(error):  # it went by itself
                            raise
        self.goes_on(kind, clock.now())

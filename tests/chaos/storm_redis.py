"""A storm on Redis: the server restarts with and without its data and freezes, connections are
killed, scripts flushed, replies lost. See `storm`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from storm import ServerStorm
from storm_checker import Amnesia

from lockfast import clock
from lockfast.stores.redis import scripts

LEASES = {"quick": 0.5, "usual": 0.8, "slow": 1.3}


class RedisStorm(ServerStorm):
    leases = LEASES
    module = "lockfast.stores.redis.endpoint"

    def url(self, ports: Sequence[int]) -> str:
        return f"redis://127.0.0.1:{ports[0]}/0"

    # -- faults --------------------------------------------------------------------------------

    def kill_all_after_their_listeners(self) -> None:
        """Kill the waiters' listening connections, and all local workers once they listen again.

        The server then knows that the dead waiters no longer listen, and grants them nothing.
        """
        caught = self.catch(list(LEASES), list(self.local))
        self.faults["killed listeners"] += self.server.call("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.1)
        self.kill(caught, list(self.local))

    def restart_empty(self) -> None:
        """Restart without data: lingering holders must learn that the server forgot them."""
        for name in self.catch(list(LEASES)):
            self.ask("answer", name, "linger")
        began = clock.now()
        self.server.kill()
        fence = int(clock.wall() * 1e6)
        self.server.restart(keep_data=False)
        self.amnesias.append(Amnesia(began, clock.now(), fence))
        self.wait_for_recovery("empty restart", clock.now())

    def kill_clients(self) -> None:
        """Kill half of all connections, chosen at random."""
        with self.server.client() as client:
            for one in client.client_list():
                if self.random.random() < 0.5:
                    self.faults["killed connections"] += client.client_kill_filter(_id=one["id"])
        self.wait_for_recovery("kill of connections", clock.now())

    def kill_listeners(self) -> None:
        self.faults["killed listeners"] += self.server.call("CLIENT", "KILL", "TYPE", "pubsub")
        self.wait_for_recovery("kill of listeners", clock.now())

    def flush_scripts(self) -> None:
        self.server.call("SCRIPT", "FLUSH")
        self.wait_for_recovery("flushed scripts", clock.now())

    def requests(self) -> list[bytes]:
        verbs = (scripts.CLAIM, scripts.RELEASE, scripts.RENEW, scripts.REFRESH)
        return [verb.sha.encode() for verb in verbs]

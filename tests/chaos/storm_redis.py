"""A storm on Redis: its server restarts, forgets and freezes, its connections are killed, its
scripts forgotten, its replies lost. See `storm`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from storm import ServerStorm
from storm_verdict import Amnesia

from lockfast import clock
from lockfast.stores.redis import scripts

LEASES = {"quick": 0.5, "usual": 0.8, "slow": 1.3}


class RedisStorm(ServerStorm):
    leases = LEASES
    module = "lockfast.stores.redis.store"

    def url(self, ports: Sequence[int]) -> str:
        return f"redis://127.0.0.1:{ports[0]}/0"

    # -- faults --------------------------------------------------------------------------------

    def kill_all_after_their_ears(self) -> None:
        """Who waits is cut off from its bells, and has time to be heard again: so when it is dead,
        it is known to be dead, and nothing is granted to it."""
        caught = self.catch(list(LEASES), list(self.near))
        self.faults["killed ears"] += self.server.call("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(0.1)
        self.kill(caught, list(self.near))

    def restart_empty(self) -> None:
        """Those who hold it stay, and must learn that nobody knows them any more."""
        for name in self.catch(list(LEASES)):
            self.ask("answer", name, "stay")
        began = clock.now()
        self.server.kill()
        fence = int(clock.wall() * 1e6)
        self.server.restart(keep_data=False)
        self.amnesias.append(Amnesia(began, clock.now(), fence))
        self.goes_on("empty restart", clock.now())

    def kill_clients(self) -> None:
        """Half of all connections, whoever's they are."""
        with self.server.client() as client:
            for one in client.client_list():
                if self.random.random() < 0.5:
                    self.faults["killed connections"] += client.client_kill_filter(_id=one["id"])
        self.goes_on("kill of connections", clock.now())

    def kill_ears(self) -> None:
        self.faults["killed ears"] += self.server.call("CLIENT", "KILL", "TYPE", "pubsub")
        self.goes_on("kill of ears", clock.now())

    def flush_scripts(self) -> None:
        self.server.call("SCRIPT", "FLUSH")
        self.goes_on("flushed scripts", clock.now())

    def requests(self) -> list[bytes]:
        verbs = (scripts.CLAIM, scripts.RELEASE, scripts.RENEW, scripts.REFRESH)
        return [verb.sha.encode() for verb in verbs]

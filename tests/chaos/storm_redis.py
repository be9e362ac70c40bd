"""A storm on Redis: its server restarts, forgets and freezes, its connections are killed, its
scripts forgotten, its replies lost. See `storm`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storm import POLL, Storm
from storm_verdict import Amnesia

from holdfast import clock
from holdfast.backends.redis import scripts

if TYPE_CHECKING:
    from servers.redis_server import RedisServer

LEASES = {"quick": 0.5, "usual": 0.8, "slow": 1.3}


class RedisStorm(Storm):
    leases = LEASES
    module = "holdfast.backends.redis.store"

    def __init__(self, server: RedisServer, seed: int) -> None:
        super().__init__(seed)
        self.server = server

    def ports(self) -> list[int]:
        return [self.server.port]

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

    def restart_with_data(self) -> None:
        self.server.restart(keep_data=True)
        self.goes_on("restart", clock.now())

    def freeze_shortly(self) -> None:
        self.freeze(0.3 * LEASES["quick"], "short freeze")

    def freeze_for_long(self) -> None:
        self.freeze(1.2 * LEASES["slow"], "long freeze")

    def freeze(self, seconds: float, kind: str) -> None:
        self.server.pause()
        time.sleep(seconds)
        self.server.resume()
        self.goes_on(kind, clock.now())

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

    def drop_replies(self) -> None:
        verb = self.random.choice([scripts.CLAIM, scripts.RELEASE, scripts.RENEW, scripts.REFRESH])
        then = self.random.choice(["reset", "silence"])
        (net,) = self.near_nets
        before = net.dropped
        net.drop_replies(3, match=verb.sha.encode(), then=then)  # type: ignore[arg-type]
        until = clock.now() + 0.5
        while net.dropped - before < 3 and clock.now() < until:
            time.sleep(POLL)
        net.drop_replies(0)
        net.heal()
        self.faults["dropped replies"] += net.dropped - before
        self.goes_on("drop", clock.now())

"""A storm on Redis behind Sentinel: the master is killed, paused or cut off, and a replica takes
over. See `storm`.

Clients, replicas and sentinels reach each server through its own proxy (`RedisSentinels`,
proxied), so that a master that is cut off still considers itself the master. The storm's own
proxies are in front of the sentinels.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from storm import Storm

from lockfast import clock

if TYPE_CHECKING:
    from lab.servers.redis_sentinel import RedisSentinels

LEASES = {"quick": 1.5, "usual": 2.5, "slow": 4.0}


class SentinelStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.redis.endpoint"

    def __init__(self, servers: RedisSentinels, seed: int) -> None:
        super().__init__(seed)
        self.servers = servers
        # Kind of fault → seconds until all sentinels knew the new master.
        self.elections: dict[str, list[float]] = defaultdict(list)

    def ports(self) -> list[int]:
        return [sentinel.port for sentinel in self.servers.sentinels]

    def url(self, ports: Sequence[int]) -> str:
        return f"{self.servers.url_of(list(ports))}?replicas=1"

    # -- failovers -----------------------------------------------------------------------------

    def kill_the_master(self) -> None:
        old = self.servers.master
        self.fail_over("killed master", old, self.servers.servers[old].kill)
        self.servers.servers[old].start()
        self.servers.wait_until_whole()

    def pause_the_master(self) -> None:
        old = self.servers.master
        self.fail_over("paused master", old, self.servers.servers[old].pause)
        self.servers.servers[old].resume()
        self.servers.wait_until_whole()

    def cut_off_the_master(self) -> None:
        """Cut the master off: it runs on and reports the role of master until it is reachable."""
        old = self.servers.master
        self.fail_over("cut off master", old, self.servers.networks[old].black_hole)
        assert self.servers.servers[old].call("ROLE")[0] == b"master"
        self.servers.networks[old].heal()
        self.servers.wait_until_whole()

    def fail_over(self, kind: str, old: int, fault: Callable[[], None]) -> None:
        began = clock.now()
        fault()
        self.servers.wait_for_new_master(old)
        self.faults[kind] += 1
        elected = clock.now()
        self.elections[kind].append(elected - began)
        for name in self.leases:
            self.recoveries[kind].append((name, self.first_hold(name, elected) - began))

    # -- other faults --------------------------------------------------------------------------

    def kill_the_sentinels(self) -> None:
        """Kill all sentinels: without a failover no client needs them, not even to reconnect."""
        for sentinel in self.servers.sentinels:
            sentinel.kill()
        with self.servers.servers[self.last_master].client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        self.wait_for_recovery("no sentinels", clock.now())
        for sentinel in self.servers.sentinels:
            sentinel.start()
            self.servers.speed_up(sentinel)
        self.servers.wait_until_whole()

    @property
    def last_master(self) -> int:
        roles = [server.call("ROLE")[0] for server in self.servers.servers]
        return roles.index(b"master")

    def silence_a_replica(self) -> None:
        """Pause one replica: the other one acknowledges, and no client notices."""
        master = self.servers.master
        replica = self.servers.servers[(master + 1) % len(self.servers.servers)]
        replica.pause()
        time.sleep(0.3)
        self.wait_for_recovery("silent replica", clock.now())
        replica.resume()
        self.servers.wait_until_whole()

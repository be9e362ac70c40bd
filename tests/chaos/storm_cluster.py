"""A storm on a Redis Cluster: masters are killed and fall silent, slots move under those who hold
and wait, connections are killed, scripts forgotten. See `storm`.

Nodes tell clients where the others are, so the proxies of a storm stand in nobody's way here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storm import PATIENCE, POLL, Storm
from storm_verdict import Amnesia

from lockfast import clock
from lockfast.stores.redis_cluster.slots import slot_of

if TYPE_CHECKING:
    from lab.servers.redis_cluster import ClusterNode, RedisCluster

LEASES = {"quick": 0.8, "usual": 1.2, "slow": 2.0}


class ClusterStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.redis_cluster.store"

    def __init__(self, cluster: RedisCluster, seed: int) -> None:
        super().__init__(seed)
        self.cluster = cluster

    def ports(self) -> list[int]:
        return [node.port for node in self.cluster.nodes]

    def url(self, ports: Sequence[int]) -> str:
        return self.cluster.url

    def slot(self, name: str) -> int:
        return slot_of(f"default:{name}")

    def served_by(self, node: ClusterNode) -> list[str]:
        return [name for name in LEASES if self.cluster.owner(self.slot(name)) is node]

    # -- faults of the cluster -----------------------------------------------------------------

    def kill_a_master(self) -> None:
        """Of a name that is held and waited for. Its replica takes over, and may not have heard of
        the last grant."""
        self.fail_over("kill of a master", silent=False)

    def silence_a_master(self) -> None:
        """It accepts connections and answers nobody, until another has its place."""
        self.fail_over("silence of a master", silent=True)

    def fail_over(self, kind: str, *, silent: bool) -> None:
        name = self.random.choice(list(LEASES))
        master = self.cluster.owner(self.slot(name))
        names = self.served_by(master)
        began = clock.now()
        if silent:
            master.pause()
        else:
            master.kill()
        fence = int(clock.wall() * 1e6)
        self.faults[kind] += 1
        # Not before another has its place: a master that came back empty, and then is replaced all
        # the same, would forget twice. And what it had granted when it ended may be told late.
        until = began + PATIENCE
        while self.cluster.owner(self.slot(name)) is master:
            assert clock.now() < until, "nobody takes its place"
            time.sleep(POLL)
        told = began + self.cluster.node_timeout / 2
        for one in names:
            self.recoveries[kind].append((one, self.first(one, told) - began))
        if silent:
            # It would go on as a master for a moment, for those who still ask it: only fences
            # protect from that, and this is about those who were told to wait.
            master.kill()
        self.amnesias.append(Amnesia(began, clock.now(), fence))
        master.start()
        self.cluster.settle()

    def move_a_slot(self) -> None:
        """While it is held and waited for, keys and all."""
        name = self.random.choice(list(LEASES))
        source = self.cluster.owner(self.slot(name))
        to = self.random.choice([node for node in self.cluster.masters if node is not source])
        self.cluster.move(self.slot(name), to)
        self.goes_on("move of a slot", clock.now(), [name])

    def move_a_slot_slowly(self) -> None:
        """For longer than some leases its keys are half here, half there. Holds are renewed all the
        same; whoever wants to acquire or to release waits, or is told that it is unknown."""
        name = self.random.choice(list(LEASES))
        source = self.cluster.owner(self.slot(name))
        to = self.random.choice([node for node in self.cluster.masters if node is not source])
        self.cluster.begin_to_move(self.slot(name), to)
        time.sleep(0.5 * LEASES["quick"])
        self.cluster.move_keys(self.slot(name), source, to)
        time.sleep(0.5 * LEASES["quick"])
        self.cluster.end_to_move(self.slot(name), source, to)
        self.goes_on("slow move of a slot", clock.now(), [name])

    # -- faults of connections -----------------------------------------------------------------

    def kill_clients(self) -> None:
        """Half of all connections, whoever's they are."""
        for node in self.cluster.masters:
            with node.client() as client:
                for one in client.client_list(_type="normal"):
                    if self.random.random() < 0.5:
                        killed = client.client_kill_filter(_id=one["id"])
                        self.faults["killed connections"] += killed
        self.goes_on("kill of connections", clock.now())

    def kill_ears(self) -> None:
        for killed in self.cluster.call_all("CLIENT", "KILL", "TYPE", "pubsub"):
            self.faults["killed ears"] += killed
        self.goes_on("kill of ears", clock.now())

    def flush_scripts(self) -> None:
        self.cluster.call_all("SCRIPT", "FLUSH")
        self.goes_on("flushed scripts", clock.now())

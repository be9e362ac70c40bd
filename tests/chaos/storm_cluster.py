"""A storm on a Redis Cluster: masters are killed or fall silent, slots move while their names are
held and waited for, connections are killed, scripts are flushed. See `storm`.

Clients learn the nodes' own addresses from the cluster, so the proxies of the storm are bypassed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storm import PATIENCE, POLL, Storm
from storm_checker import Amnesia

from lockfast import clock
from lockfast.stores.redis_cluster.slots import slot_of

if TYPE_CHECKING:
    from lab.servers.redis_cluster import ClusterNode, RedisCluster

LEASES = {"quick": 0.8, "usual": 1.2, "slow": 2.0}


class ClusterStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.redis_cluster.endpoint"

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
        """Kill the master of a name that is held and waited for.

        Its replica takes over and may not have received the last grant.
        """
        self.fail_over("kill of a master", silent=False)

    def silence_a_master(self) -> None:
        """Stop a master: it accepts connections and answers none until a replica has taken over."""
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
        # Wait for the replacement first: a master that came back empty and was replaced all the
        # same would forget twice. Workers may also report late what the old master granted last.
        until = began + PATIENCE
        while self.cluster.owner(self.slot(name)) is master:
            assert clock.now() < until, "no replica takes over"
            time.sleep(POLL)
        reported = began + self.cluster.node_timeout / 2
        for one in names:
            self.recoveries[kind].append((one, self.first_hold(one, reported) - began))
        if silent:
            # After SIGCONT the old master would still serve its clients for a moment. Only fences
            # protect from that, and this storm is about the clients that follow the failover.
            master.kill()
        self.amnesias.append(Amnesia(began, clock.now(), fence))
        master.start()
        self.cluster.settle()

    def move_a_slot(self) -> None:
        """Move the slot of a name, keys and all, while the name is held and waited for."""
        name = self.random.choice(list(LEASES))
        source = self.cluster.owner(self.slot(name))
        to = self.random.choice([node for node in self.cluster.masters if node is not source])
        self.cluster.move(self.slot(name), to)
        self.wait_for_recovery("move of a slot", clock.now(), [name])

    def move_a_slot_slowly(self) -> None:
        """Leave a slot half moved for as long as the shortest lease.

        Holds are renewed all the same; an acquire or a release waits, or fails with an unknown
        outcome.
        """
        name = self.random.choice(list(LEASES))
        source = self.cluster.owner(self.slot(name))
        to = self.random.choice([node for node in self.cluster.masters if node is not source])
        self.cluster.begin_to_move(self.slot(name), to)
        time.sleep(0.5 * LEASES["quick"])
        self.cluster.move_keys(self.slot(name), source, to)
        time.sleep(0.5 * LEASES["quick"])
        self.cluster.end_to_move(self.slot(name), source, to)
        self.wait_for_recovery("slow move of a slot", clock.now(), [name])

    # -- faults of connections -----------------------------------------------------------------

    def kill_clients(self) -> None:
        """Kill half of all connections, chosen at random."""
        for node in self.cluster.masters:
            with node.client() as client:
                for one in client.client_list(_type="normal"):
                    if self.random.random() < 0.5:
                        killed = client.client_kill_filter(_id=one["id"])
                        self.faults["killed connections"] += killed
        self.wait_for_recovery("kill of connections", clock.now())

    def kill_listeners(self) -> None:
        for killed in self.cluster.call_all("CLIENT", "KILL", "TYPE", "pubsub"):
            self.faults["killed listeners"] += killed
        self.wait_for_recovery("kill of listeners", clock.now())

    def flush_scripts(self) -> None:
        self.cluster.call_all("SCRIPT", "FLUSH")
        self.wait_for_recovery("flushed scripts", clock.now())

"""A storm on three ZooKeepers: leaders are killed and paused, followers restart, connections are
reset, replies lost. See `storm`. A session is a client's, so all names have the same lease."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storm import POLL, Storm

from lockfast import clock

if TYPE_CHECKING:
    from lab.servers.zookeeper_server import ZooKeepers

LEASE = 2.0
LEASES = {"quick": LEASE, "usual": LEASE, "slow": LEASE}


class ZooKeeperStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.zookeeper.store"

    def __init__(self, servers: ZooKeepers, seed: int) -> None:
        super().__init__(seed)
        self.servers = servers

    def ports(self) -> list[int]:
        return [node.port for node in self.servers.nodes]

    def url(self, ports: Sequence[int]) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"zookeeper://{hosts}?session_timeout={LEASE}"

    # -- faults --------------------------------------------------------------------------------

    def kill_the_leader(self) -> None:
        """It comes back when another leads, and everybody goes on."""
        leader = self.servers.leader()
        leader.kill()
        self.servers.leader()
        self.goes_on("kill of the leader", clock.now())
        leader.start()
        self.servers.settle()

    def kill_the_leader_and_a_holder(self) -> None:
        """The next leader must end a session that it never spoke to."""
        caught = self.catch(["slow"])
        leader = self.servers.leader()
        leader.kill()
        pid = caught["slow"]
        self.nursery("kill", pid)
        self.ask("answer", "slow", "go")
        self.servers.leader()
        voted = clock.now()
        self.replace(pid)
        self.faults["kill"] += 1
        recovery = self.first("slow", voted, [pid]) - voted
        self.recoveries["kill beside the leader"].append(("slow", recovery))
        leader.start()
        self.servers.settle()

    def restart_a_follower(self) -> None:
        self.random.choice(self.servers.followers()).restart(keep_data=True)
        self.servers.settle()
        self.goes_on("restart of a follower", clock.now())

    def pause_the_leader(self) -> None:
        """For a part of a session; the others may choose another meanwhile, or not."""
        leader = self.servers.leader()
        leader.pause()
        time.sleep(0.4 * LEASE)
        leader.resume()
        self.servers.settle()
        self.goes_on("pause of the leader", clock.now())

    def lose_replies(self) -> None:
        """Of whatever is asked about the names: claims, releases, looks."""
        before = self.dropped()
        then = self.random.choice(["reset", "silence"])
        for net in self.near_nets:
            net.lose_replies(1, match=b"lockfast", then=then)  # type: ignore[arg-type]
        until = clock.now() + 0.5
        while self.dropped() == before and clock.now() < until:
            time.sleep(POLL)
        for net in self.near_nets:
            net.lose_replies(0)
            net.heal()
        self.faults["dropped replies"] += self.dropped() - before
        self.goes_on("drop", clock.now())

    def dropped(self) -> int:
        return sum(net.dropped for net in self.near_nets)

"""A storm on three ZooKeeper servers: leaders are killed and paused, followers restart, connections
are reset, replies lost. See `storm`. A client has one session, so all names have the same lease."""

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
    module = "lockfast.stores.zookeeper.endpoint"

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
        """Kill the leader, and start it again once another one leads and every name goes on."""
        leader = self.servers.leader()
        leader.kill()
        self.servers.leader()
        self.wait_for_recovery("kill of the leader", clock.now())
        leader.start()
        self.servers.settle()

    def kill_the_leader_and_a_holder(self) -> None:
        """Kill a holder with the leader: the next leader must end a session it never served."""
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
        recovery = self.first_hold("slow", voted, [pid]) - voted
        self.recoveries["kill beside the leader"].append(("slow", recovery))
        leader.start()
        self.servers.settle()

    def restart_a_follower(self) -> None:
        self.random.choice(self.servers.followers()).restart(keep_data=True)
        self.servers.settle()
        self.wait_for_recovery("restart of a follower", clock.now())

    def pause_the_leader(self) -> None:
        """Pause the leader for a part of a session; the others may elect a new one or not."""
        leader = self.servers.leader()
        leader.pause()
        time.sleep(0.4 * LEASE)
        leader.resume()
        self.servers.settle()
        self.wait_for_recovery("pause of the leader", clock.now())

    def lose_replies(self) -> None:
        """Lose replies to any request about the names: claims, releases, reads."""
        before = self.lost_replies()
        then = self.random.choice(["reset", "silence"])
        for proxy in self.local_proxies:
            proxy.lose_replies(1, match=b"lockfast", then=then)  # type: ignore[arg-type]
        until = clock.now() + 0.5
        while self.lost_replies() == before and clock.now() < until:
            time.sleep(POLL)
        for proxy in self.local_proxies:
            proxy.lose_replies(0)
            proxy.heal()
        self.faults["lost replies"] += self.lost_replies() - before
        self.wait_for_recovery("loss of replies", clock.now())

    def lost_replies(self) -> int:
        return sum(proxy.lost_replies for proxy in self.local_proxies)

"""A storm on Redlock: of five nodes some restart empty, freeze or stay down. See `storm`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storm import POLL, Storm

from lockfast import clock
from lockfast.stores.redis import scripts

if TYPE_CHECKING:
    from lab.servers.redlock_servers import RedlockServers

LEASES = {"quick": 1.0, "usual": 1.4, "slow": 2.0}
LONGEST = 2.0  # seconds for which a node that restarted empty does not vote


class RedlockStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.redlock.endpoint"

    def __init__(self, servers: RedlockServers, seed: int) -> None:
        super().__init__(seed)
        self.servers = servers

    def ports(self) -> list[int]:
        return self.servers.ports

    def url(self, ports: Sequence[int]) -> str:
        nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redlock://{nodes}?longest_lease={LONGEST}"

    # -- faults --------------------------------------------------------------------------------

    def restart_one_empty(self) -> None:
        self.restart_empty(1, "empty restart")

    def restart_two_empty(self) -> None:
        self.restart_empty(2, "two empty restarts")

    def restart_empty(self, number: int, kind: str) -> None:
        """Restart nodes without data while every name is held.

        No hold is lost, since a majority still knows it, and the nodes that forgot it must not help
        another claim to a majority.
        """
        caught = self.catch(list(LEASES))
        for node in self.random.sample(self.servers.nodes, number):
            node.restart(keep_data=False)
        restarted = clock.now()
        time.sleep(0.5 * LONGEST)
        for name in caught:
            self.ask("answer", name, "go")
        self.wait_for_recovery(kind, clock.now())
        time.sleep(max(restarted + 1.5 * LONGEST - clock.now(), 0))  # until they vote again

    def keep_one_down(self) -> None:
        node = self.random.choice(self.servers.nodes)
        node.kill()
        self.wait_for_recovery("a node down", clock.now())
        node.start()
        time.sleep(1.5 * LONGEST)

    def freeze_two(self) -> None:
        """Freeze two nodes for longer than any lease: the majority of three is not slowed down."""
        frozen = self.random.sample(self.servers.nodes, 2)
        for node in frozen:
            node.pause()
        began = clock.now()
        self.wait_for_recovery("two frozen", began)
        time.sleep(max(began + 1.2 * LEASES["slow"] - clock.now(), 0))
        for node in frozen:
            node.resume()
        self.wait_for_recovery("two thawed", clock.now())

    def kill_listeners(self) -> None:
        for node in self.servers.nodes:
            self.faults["killed listeners"] += node.call("CLIENT", "KILL", "TYPE", "pubsub")
        self.wait_for_recovery("kill of listeners", clock.now())

    def flush_scripts(self) -> None:
        self.servers.call("SCRIPT", "FLUSH")
        self.wait_for_recovery("flushed scripts", clock.now())

    def lose_replies(self) -> None:
        """Lose the replies to one script at all nodes."""
        verb = self.random.choice([scripts.VOTE, scripts.SETTLE, scripts.NODE_RELEASE])
        before = sum(proxy.lost_replies for proxy in self.local_proxies)
        for proxy in self.local_proxies:
            proxy.lose_replies(2, match=verb.sha.encode(), then="reset")
        time.sleep(40 * POLL)
        for proxy in self.local_proxies:
            proxy.lose_replies(0)
            proxy.heal()
        self.faults["lost replies"] += (
            sum(proxy.lost_replies for proxy in self.local_proxies) - before
        )
        self.wait_for_recovery("loss of replies", clock.now())

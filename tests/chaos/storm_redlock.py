"""A storm on Redlock: five nodes, of which some restart empty, freeze or stay away. See `storm`."""

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
LONGEST = 2.0  # so long does a node that forgot not vote


class RedlockStorm(Storm):
    leases = LEASES
    module = "lockfast.stores.redlock.store"

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
        """While somebody holds each name. It is lost to nobody, since a majority knows it; and
        those that forgot it must not help another to a majority."""
        caught = self.catch(list(LEASES))
        for node in self.random.sample(self.servers.nodes, number):
            node.restart(keep_data=False)
        restarted = clock.now()
        time.sleep(0.5 * LONGEST)
        for name in caught:
            self.ask("answer", name, "go")
        self.goes_on(kind, clock.now())
        time.sleep(max(restarted + 1.5 * LONGEST - clock.now(), 0))  # until they vote again

    def one_stays_away(self) -> None:
        node = self.random.choice(self.servers.nodes)
        node.kill()
        self.goes_on("a node away", clock.now())
        node.start()
        time.sleep(1.5 * LONGEST)

    def freeze_two(self) -> None:
        """Longer than any lease: three are a majority, and are not slowed down."""
        frozen = self.random.sample(self.servers.nodes, 2)
        for node in frozen:
            node.pause()
        began = clock.now()
        self.goes_on("two frozen", began)
        time.sleep(max(began + 1.2 * LEASES["slow"] - clock.now(), 0))
        for node in frozen:
            node.resume()
        self.goes_on("two thawed", clock.now())

    def kill_ears(self) -> None:
        for node in self.servers.nodes:
            self.faults["killed ears"] += node.call("CLIENT", "KILL", "TYPE", "pubsub")
        self.goes_on("kill of ears", clock.now())

    def flush_scripts(self) -> None:
        self.servers.call("SCRIPT", "FLUSH")
        self.goes_on("flushed scripts", clock.now())

    def lose_replies(self) -> None:
        """Of one verb, at all nodes."""
        verb = self.random.choice([scripts.VOTE, scripts.SETTLE, scripts.GIVE_BACK])
        before = sum(net.dropped for net in self.near_nets)
        for net in self.near_nets:
            net.lose_replies(2, match=verb.sha.encode(), then="reset")
        time.sleep(40 * POLL)
        for net in self.near_nets:
            net.lose_replies(0)
            net.heal()
        self.faults["dropped replies"] += sum(net.dropped for net in self.near_nets) - before
        self.goes_on("drop", clock.now())

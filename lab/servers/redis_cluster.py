"""A private Redis Cluster: each node is a `RedisServer`; half of them are masters, each with one
replica. Tests kill or pause nodes, and move slots, in one call or step by step."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import redis

from lab.servers.own_server import PATIENCE, _state
from lab.servers.redis_server import RedisServer

SLOTS = 16384


class ClusterNode(RedisServer):
    """One node. It copies the certificates of ``peer``, so that clients trust one authority."""

    def __init__(self, node_timeout: float, peer: ClusterNode | None, **options: Any) -> None:
        super().__init__(**options)
        self._node_timeout = node_timeout
        self._peer = peer

    def _prepare(self, folder: Path) -> None:
        super()._prepare(folder)
        if self.tls and self._peer is not None:
            for file in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key"):
                shutil.copy(self._peer.folder / file, folder / file)

    def _arguments(self, port: int) -> list[str]:
        arguments = {
            "--cluster-enabled": "yes",
            "--cluster-node-timeout": str(int(self._node_timeout * 1000)),
            "--cluster-port": str(port + 10000),
            "--cluster-replica-validity-factor": "0",
            "--repl-diskless-sync-delay": "0",  # no second replica to wait for
        }
        if self.tls:  # or nodes would announce plain ports, which they do not have
            arguments |= {
                "--tls-cluster": "yes",
                "--tls-replication": "yes",
                "--tls-client-cert-file": "client.pem",
                "--tls-client-key-file": "client.key",
            }
        if self.password:
            arguments["--masterauth"] = self.password
        more = [argument for pair in arguments.items() for argument in pair]
        return [*super()._arguments(port), *more]

    @property
    def id(self) -> str:
        return str(self.call("CLUSTER", "MYID").decode())

    @property
    def is_paused(self) -> bool:
        return _state(self.pid) == "T"

    @property
    def is_master(self) -> bool:
        return bool(self.call("ROLE")[0] == b"master")


class RedisCluster:
    """A cluster that is not running until `start`. ``node_timeout`` is the time after which a
    silent node counts as failed, in seconds; other options are those of `RedisServer`."""

    def __init__(
        self, masters: int = 3, replicas: int = 1, *, node_timeout: float = 1.0, **options: Any
    ) -> None:
        number = masters * (1 + replicas)
        self._masters = masters
        self.node_timeout = node_timeout
        self.nodes: list[ClusterNode] = []
        for _ in range(number):
            peer = self.nodes[0] if self.nodes else None
            self.nodes.append(ClusterNode(node_timeout, peer, **options))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self, *extra_args: str) -> Self:
        for node in self.nodes:
            node.start(*extra_args)
        self._form()
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def _form(self) -> None:
        """Create the cluster as ``redis-cli --cluster create`` does, without its pauses."""
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(masters):
            first = SLOTS * number // len(masters)
            last = SLOTS * (number + 1) // len(masters) - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
        port = self.nodes[0].port
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", port, port + 10000)
        _until(lambda: all(len(self._known(node)) == len(self.nodes) for node in self.nodes))
        for number, node in enumerate(replicas):
            node.call("CLUSTER", "REPLICATE", masters[number % len(masters)].id)
        self.settle()

    def settle(self) -> None:
        """Wait until all running nodes agree on the slots, and every replica is in sync with its
        master. A former master that comes back claims for a while that it still is one."""
        try:
            _until(self._is_settled_everywhere)
        except AssertionError as error:
            seen = [
                f"{node.port}: {node.call('CLUSTER', 'NODES').decode()}" for node in self.running
            ]
            raise AssertionError("\n".join([str(error), *seen])) from error

    def _is_settled_everywhere(self) -> bool:
        if not all(self._is_settled(node) for node in self.running):
            return False
        maps = [
            {
                (first, last, endpoint[1])
                for first, last, endpoint, *_ in node.call("CLUSTER", "SLOTS")
            }
            for node in self.running
        ]
        serving = {port for _, _, port in maps[0]}
        roles = {node.port: node.call("ROLE") for node in self.running}
        # A replica counts once its master streams new writes to it.
        fed = {
            (int(replica[1]), port)
            for port, role in roles.items()
            if role[0] == b"master"
            for replica in role[2]
        }
        following = {(port, role[2]) for port, role in roles.items() if role[0] != b"master"}
        masters = {port for port, role in roles.items() if role[0] == b"master"}
        return all(one == maps[0] for one in maps) and serving == masters and fed == following

    def _is_settled(self, node: ClusterNode) -> bool:
        try:
            info = node.call("CLUSTER", "INFO").decode()
            role = node.call("ROLE")
        except redis.RedisError:
            return False
        up = role[0] == b"master" or role[3] == b"connected"
        return up and "cluster_state:ok" in info and f"cluster_slots_ok:{SLOTS}" in info

    def _known(self, node: ClusterNode) -> list[str]:
        lines = node.call("CLUSTER", "NODES").decode().splitlines()
        return [line for line in lines if "handshake" not in line]

    # -- Connections ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.url_of([node.port for node in self.nodes])

    def url_of(self, ports: Sequence[int]) -> str:
        first = self.nodes[0]
        secret = f":{first.password}@" if first.password else ""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis{'s' if first.tls else ''}+cluster://{secret}{hosts}"

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_running]

    @property
    def masters(self) -> list[ClusterNode]:
        return [node for node in self.running if node.is_master]

    def call_all(self, *command: str | bytes | int | float) -> list[Any]:
        """Execute one command at every master; return all replies."""
        return [node.call(*command) for node in self.masters]

    def emptied(self) -> Self:
        """Remove all keys; return the cluster."""
        self.call_all("FLUSHALL")
        return self

    def owner(self, slot: int) -> ClusterNode:
        """Return the node that serves a slot, according to a running node."""
        asked = next(node for node in self.running if not node.is_paused)
        for first, last, (_, port, *_), *_ in asked.call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"no node serves slot {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        mine = [
            node
            for node in self.running
            if not node.is_master and node.call("ROLE")[2] == master.port
        ]
        return mine[0]

    # -- Moving a slot -------------------------------------------------------------------------

    def begin_to_move(self, slot: int, to: ClusterNode) -> ClusterNode:
        """Start to migrate a slot: from now on the old node redirects requests for missing keys to
        the new one (ASK). Return the old node."""
        source = self.owner(slot)
        to.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        return source

    def move_keys(self, slot: int, source: ClusterNode, to: ClusterNode) -> None:
        secret = ["AUTH", to.password] if to.password else []
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.call(
                "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "REPLACE", *secret, "KEYS", *keys
            )

    def end_to_move(self, slot: int, source: ClusterNode, to: ClusterNode) -> None:
        """End the migration as redis-cli does: tell the new owner, then the old one, then the other
        masters, each once. A second SETSLOT would end the subscriptions at the new owner."""
        self.move_keys(slot, source, to)
        identity = to.id
        for node in dict.fromkeys([to, source, *self.masters]):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", identity)

    def move(self, slot: int, to: ClusterNode) -> None:
        source = self.begin_to_move(slot, to)
        self.end_to_move(slot, source, to)


def _until(is_true: Any) -> None:
    until = time.monotonic() + 2 * PATIENCE
    while not is_true():
        assert time.monotonic() < until, f"not settled after {2 * PATIENCE:.0f} s"
        time.sleep(0.02)

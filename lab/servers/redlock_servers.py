"""Private, independent Redis servers: a quorum for Redlock."""

from __future__ import annotations

from typing import Any, Self

from lab.servers.redis_server import RedisServer


class RedlockServers:
    """A set of ``number`` servers, not running until `start`."""

    def __init__(self, number: int = 3, **options: Any) -> None:
        self.nodes = [RedisServer(**options) for _ in range(number)]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __getitem__(self, number: int) -> RedisServer:
        return self.nodes[number]

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    @property
    def url(self) -> str:
        return f"redlock://{','.join(f'127.0.0.1:{port}' for port in self.ports)}"

    def call(self, *command: Any) -> list[Any]:
        """Execute one command at every node; return all replies."""
        return [node.call(*command) for node in self.nodes]

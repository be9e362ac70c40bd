"""A transport that connects the Redis backend directly to `lab.miniredis`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from lab.miniredis import MiniError, MiniRedis
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.wakeups import Wakeups


class DirectTransport:
    """Commands reach the miniature Redis at once, and wake-ups the other client."""

    suspends = False

    def __init__(self, wake_address: str) -> None:
        self.wakeups = Wakeups()
        self.wake_address = wake_address
        self.server: MiniRedis

    def send(self, command: bytes, budget: float) -> Any:
        reader = hiredis.Reader()
        reader.feed(command)
        try:
            return self.server.call(*reader.gets())
        except MiniError as error:
            return ServerError(str(error))

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        return [self.send(command, budget) for command in commands]

    async def subscribe(self, since: float) -> bool:
        return False

    async def listen(self, timeout: float | None) -> None:
        """Nothing to do: wake-ups are delivered at once."""

    def interrupt(self) -> None: ...

    def distrust(self, why: str) -> None:
        raise AssertionError("the miniature Redis sent a malformed reply")

    def close(self) -> None: ...

"""A channel that connects the Redis store directly to `lab.miniredis`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from lab.miniredis import MiniError, MiniRedis
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.wakeups import Wakeups


class DirectChannel:
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

    def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> list[Any]:
        assert wait is None, "this server has no replicas"
        return [self.send(command, budget) for command in commands]

    def join(self, *_: Any) -> Any:
        raise AssertionError("threads share no script calls")

    def subscribe(self, since: float) -> bool:
        return False

    def signal(self, listens: bool) -> None:
        """Nothing: the runtime's signals do."""

    def listen(self, timeout: float | None) -> None:
        """Nothing to do: wake-ups are delivered at once."""

    def interrupt(self) -> None: ...

    def distrust(self, why: str) -> None:
        raise AssertionError("the miniature Redis sent a malformed reply")

    def close(self) -> None: ...

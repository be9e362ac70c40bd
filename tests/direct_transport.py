"""The Redis backend on the small Redis, with nothing between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from holdfast.backends.bells import Bells
from holdfast.backends.redis.conditions import ServerError
from holdfast.testing.miniredis import MiniError, MiniRedis


class DirectTransport:
    """Commands reach the small Redis at once, and bells the other client."""

    suspends = False

    def __init__(self, home: str) -> None:
        self.bells = Bells()
        self.home = home
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

    async def listen(self, since: float) -> bool:
        return False

    async def hear(self, timeout: float | None) -> None:
        """Bells came at once."""

    def poke(self) -> None: ...

    def distrust(self, why: str) -> None:
        raise AssertionError("the small Redis answered nonsense")

    def close(self) -> None: ...

"""Default client behind ``lockfast.lock``, for programs that need only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from lockfast import forks
from lockfast.api.client import BaseClient

C = TypeVar("C", bound=BaseClient)


class DefaultClient(Generic[C]):
    """Callable that returns the default client, connecting to ``$LOCKFAST_URL`` on the first call.

    A closed default client is replaced by a new one on the next call.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self.client: C | None = None
        self._connect = connect
        self._mutex = forks.ForkSafeMutex()

    def __call__(self) -> C:
        with self._mutex:
            if self.client is None or self.client.core.closed:
                self.client = self._connect()
            return self.client

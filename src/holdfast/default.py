"""The client behind ``holdfast.lock``, for those who need only one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast import forks
from holdfast.face.client import ClientFace

C = TypeVar("C", bound=ClientFace)


class DefaultClient(Generic[C]):
    """Made when first called, from ``$HOLDFAST_URL``."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self.client: C | None = None
        self._connect = connect
        self._mutex = forks.ForkSafeMutex()

    def __call__(self) -> C:
        with self._mutex:
            if self.client is None or self.client.core.closed:
                self.client = self._connect()
            return self.client

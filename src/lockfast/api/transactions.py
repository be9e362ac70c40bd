"""Holds of transaction locks: values with a fence, and without a release, because only the end of
the transaction ends them."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Self

from lockfast.api.hold import Error, ErrorType, Trace


@dataclass(frozen=True, slots=True)
class TransactionHold:
    """A hold that your open transaction keeps until commit, rollback or the loss of its connection.

    A ``with`` block only marks the code that runs under the lock: leaving it releases nothing.
    """

    name: str
    fence: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Do nothing: commit or roll back yourself."""


class TransactionClaim:
    """A transaction lock that is not taken yet: ``await`` it, or enter it with ``async with``."""

    def __init__(self, name: str, fence: Coroutine[Any, Any, int]) -> None:
        self._name = name
        self._fence = fence  # takes the lock when it is awaited

    def __await__(self) -> Generator[Any, None, TransactionHold]:
        return self._take().__await__()

    async def _take(self) -> TransactionHold:
        return TransactionHold(self._name, await self._fence)

    async def __aenter__(self) -> TransactionHold:
        return await self._take()

    async def __aexit__(self, kind: ErrorType, error: Error, trace: Trace) -> None:
        """Do nothing: commit or roll back yourself."""

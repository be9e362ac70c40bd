"""What a transaction lock gives: a value with a fence. It has no release, because only the end of
the transaction ends it."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class TransactionHold:
    """Held by your open transaction until that is committed or rolled back, or its connection ends.

    As a ``with`` block it only shows what is done under the lock: its end ends nothing.
    """

    name: str
    fence: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing: commit, or roll back, yourself."""


class TransactionClaim:
    """A transaction lock that is about to be taken, in asyncio: ``await`` it, or ``async with``."""

    def __init__(self, name: str, taking: Coroutine[Any, Any, int]) -> None:
        self._name = name
        self._taking = taking

    def __await__(self) -> Generator[Any, None, TransactionHold]:
        return self._taken().__await__()

    async def _taken(self) -> TransactionHold:
        return TransactionHold(self._name, await self._taking)

    async def __aenter__(self) -> TransactionHold:
        return await self._taken()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing: commit, or roll back, yourself."""

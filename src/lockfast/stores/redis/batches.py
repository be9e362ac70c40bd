"""Lots: claims, or releases, of many tasks that travel at the same time, joined into one call of
their script. To begin a call costs the server more than the work on a name: a full lot costs half.

They came together by chance, so each is answered for itself. If the server refuses the call, all
hear that and each asks again alone. That is safe: a claim is idempotent by its id, and a release
that fails does not keep the others from being answered (`release.lua`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockfast.stores.redis.commands import THREE_KEYS
from lockfast.stores.redis.scripts import CLAIM, RELEASE, Script, bulk

LOT = 32
# So many words each name has beside its three keys; and what is said behind all of them.
_EACH = {RELEASE: 1, CLAIM: 5}
_LAST = {RELEASE: b"", CLAIM: bulk(b"apart")}
# Who asked, and until when it wants to hear.
Asked = tuple["asyncio.Future[Any]", float]


class Lot:
    """What is to be said with one script, name by name."""

    __slots__ = ("_script", "asked", "keys", "words")

    def __init__(self, script: Script) -> None:
        self._script = script
        self.clear()

    def clear(self) -> None:
        self.keys: list[bytes] = []
        self.words: list[bytes] = []
        self.asked: list[Asked] = []

    def command(self) -> bytes:
        script, count = self._script, len(self.keys)
        if count == 1:
            return alone(script, self.keys[0], self.words[0])
        last = _LAST[script]
        head = script.head(1 + count * (3 + _EACH[script]) + bool(last))
        return b"".join((head, bulk(b"%d" % (3 * count)), *self.keys, *self.words, last))


def new_lots() -> dict[Script, Lot]:
    """In the order in which they are said: what is released is free for those who claim it."""
    return {script: Lot(script) for script in _EACH}


def alone(script: Script, keys: bytes, words: bytes) -> bytes:
    """The command for one name."""
    return b"".join((script.head(4 + _EACH[script]), THREE_KEYS, keys, words))


def answered(asked: list[Asked], answer: Any) -> None:
    """Each hears its part; all of it, if it has no parts, as an error has none."""
    parts = answer
    if len(asked) == 1 or type(answer) is not list or len(answer) != len(asked):
        parts = [answer] * len(asked)
    for (future, _), part in zip(asked, parts, strict=True):
        try:
            future.set_result(part)
        except asyncio.InvalidStateError:
            pass  # who asked was cancelled

"""Batches: claims, or releases, that several tasks send at the same time, as one script call.

Starting a script call costs the server more than the work on one name: a full batch costs half as
much as single calls. Coincidence brought the members together, so each is answered separately. If
the server refuses the call, each member receives the error and sends its own command again. That is
safe: a claim is idempotent by its id, and one release that fails does not keep the others from
being answered (`release.lua`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockfast.stores.redis.commands import THREE_KEYS
from lockfast.stores.redis.scripts import CLAIM, RELEASE, Script, bulk

BATCH_SIZE = 32
# The number of arguments of each name, beside its three keys; and the argument after all of them.
_ARGUMENTS_EACH = {RELEASE: 1, CLAIM: 5}
_LAST_ARGUMENT = {RELEASE: b"", CLAIM: bulk(b"independent")}
# The future of a reply, and the time until which the caller waits for it.
Pending = tuple["asyncio.Future[Any]", float]


class Batch:
    """The calls of one script that wait to be sent, name by name."""

    __slots__ = ("_script", "arguments", "keys", "pending")

    def __init__(self, script: Script) -> None:
        self._script = script
        self.clear()

    def clear(self) -> None:
        self.keys: list[bytes] = []
        self.arguments: list[bytes] = []
        self.pending: list[Pending] = []

    def command(self) -> bytes:
        script, count = self._script, len(self.keys)
        if count == 1:
            return single_command(script, self.keys[0], self.arguments[0])
        last = _LAST_ARGUMENT[script]
        head = script.head(1 + count * (3 + _ARGUMENTS_EACH[script]) + bool(last))
        return b"".join((head, bulk(b"%d" % (3 * count)), *self.keys, *self.arguments, last))


def new_batches() -> dict[Script, Batch]:
    """Empty batches in the order of sending: releases first, so that claims find the names free."""
    return {script: Batch(script) for script in _ARGUMENTS_EACH}


def single_command(script: Script, keys: bytes, arguments: bytes) -> bytes:
    """The command for one name."""
    return b"".join((script.head(4 + _ARGUMENTS_EACH[script]), THREE_KEYS, keys, arguments))


def resolve(pending: list[Pending], reply: Any) -> None:
    """Give each caller its part of a reply; the whole, if it has no parts, as an error has none."""
    parts = reply
    if len(pending) == 1 or type(reply) is not list or len(reply) != len(pending):
        parts = [reply] * len(pending)
    for (future, _), part in zip(pending, parts, strict=True):
        try:
            future.set_result(part)
        except asyncio.InvalidStateError:
            pass  # the caller was cancelled

"""A guard for a key of Redis: one command that writes it, refused if a higher fence was there.

Check and write are one script, so nothing comes between. What was seen is kept beside the key, in a
mark of its own, in the same slot: it works on a Cluster. A mark is as durable as the Redis that
keeps it: a failover that forgets a mark forgets the write that made it, but one that keeps the
data of a stale writer cannot be told from here.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

from lockfast.errors import ConfigurationError
from lockfast.guards.fence import fence_of, refuse_if_stale
from lockfast.inputs import Seconds, checked_lease, checked_name

_SOURCE = (Path(__file__).parent / "lua" / "write.lua").read_text()
_SHA = hashlib.sha1(_SOURCE.encode()).hexdigest()

Word = str | bytes | int | float


class RedisClient(Protocol):
    """What is needed of a client: `redis.Redis`, `redis.asyncio.Redis`, and those for Cluster."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...


class RedisGuard:
    """Writes through a client of yours, blocking or asyncio.

    ``keep``: for how many seconds after the last write a mark is remembered; without it, for ever,
    one small key for each guarded key. Give it where keys are many and short-lived, and make it
    much longer than a holder may be paused: one that sleeps longer than this is not refused.
    """

    def __init__(self, client: RedisClient, *, keep: Seconds | None = None) -> None:
        self._client = client
        self._keep_ms = 0 if keep is None else round(checked_lease(keep, what="keep") * 1000)

    def write(
        self, hold: object, command: str, key: str, *words: Word, mark: str | None = None
    ) -> Any:
        """Run a command whose only key is its first word, as ``("HSET", "user:7", "name", "Ann")``,
        and get what Redis answers, as it is (``b"OK"``, a number, None); `StaleFence` if a higher
        fence has written the key. Errors of the client pass through: after a lost connection it is
        unknown whether it was written, and writing again with the same fence is allowed.

        With an asyncio client, await what this returns.

        Keys that are written under one lock should share a ``mark``, the name of a key in the same
        slot: with marks of their own, a key that the new holder has not written yet would not
        refuse the old one.
        """
        key = checked_name(key, what="a key")
        mark = mark_of(key) if mark is None else checked_name(mark, what="a mark")
        if mark == key:
            raise ConfigurationError(f"mark={mark!r} is the key itself, which it would overwrite")
        if not isinstance(command, str) or not command:
            raise ConfigurationError(f"command={command!r}: the name of a command of Redis")
        fence = fence_of(hold)
        said = (key, mark, fence, self._keep_ms, command, *words)
        try:
            answer = self._client.evalsha(_SHA, 2, *said)
        except Exception as error:
            _raise_unless_unknown(error)
            answer = self._client.eval(_SOURCE, 2, *said)
        if inspect.isawaitable(answer):
            return self._written_later(answer, key, fence, said)
        return _judged(key, fence, answer)

    async def _written_later(
        self, answer: Awaitable[Any], key: str, fence: int, said: tuple[Word, ...]
    ) -> Any:
        try:
            return _judged(key, fence, await answer)
        except Exception as error:
            _raise_unless_unknown(error)
        return _judged(key, fence, await self._client.eval(_SOURCE, 2, *said))


def mark_of(key: str) -> str:
    """Where the highest fence that wrote this key is kept: in the key's own slot of a Cluster.

    What a Cluster hashes is what stands between the first ``{`` and the next ``}``, if something
    does, or else the whole key. The two endings keep the marks of ``x`` and ``{x}`` apart.
    """
    if re.search(r"^[^{]*\{[^}]+\}", key):
        return f"{key}:lf-fence"
    if "}" in key:
        raise ConfigurationError(
            f"no mark can stand in the slot of the key {key!r}: it has a '}}' but no hash tag like "
            "{this}; give mark= or another key"
        )
    return f"{{{key}}}:lf-mark"


def _judged(key: str, fence: int, answer: Any) -> Any:
    written, rest = answer
    if not written:
        refuse_if_stale(key, fence, int(rest))
    return rest


def _raise_unless_unknown(error: Exception) -> None:
    """Go on only if the server does not know the script (new, restarted, flushed): it did nothing,
    and gets the source. The driver is not imported here, so its error is known by what it says."""
    if type(error).__name__ != "NoScriptError" and not str(error).startswith("NOSCRIPT"):
        raise error

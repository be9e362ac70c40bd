"""Guard for a Redis key: one write command, refused if a higher fence has written the key.

Check and write are one script, so no other command runs between them. The highest fence is kept in
a key of its own, the mark, in the same hash slot, so that guards work on a Cluster. A mark is as
durable as its Redis: a failover that loses a mark also loses the write that made it. A failover
that keeps the data of a stale writer cannot be detected here.
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

Argument = str | bytes | int | float


class RedisClient(Protocol):
    """Client methods that the guard calls: of redis-py, blocking or asyncio, Cluster or not."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any: ...


class RedisGuard:
    """Guarded writes through your redis-py client, blocking or asyncio.

    ``keep``: seconds for which a mark is kept after the last write. By default marks are kept
    forever, one small key per guarded key. Pass it if keys are many and short-lived, and make it
    much longer than any pause of a holder: a holder that is paused longer is not refused.
    """

    def __init__(self, client: RedisClient, *, keep: Seconds | None = None) -> None:
        self._client = client
        self._keep_ms = 0 if keep is None else round(checked_lease(keep, what="keep") * 1000)

    def write(
        self, hold: object, command: str, key: str, *arguments: Argument, mark: str | None = None
    ) -> Any:
        """Run a write command and return Redis's reply unchanged (``b"OK"``, a number, None).

        The key must be the command's first argument and its only key, as in ``guard.write(hold,
        "HSET", "user:7", "name", "Ann")``. With an asyncio client, await the result. Raises
        `StaleFence` if a higher fence has written the key. Errors of the client pass through: after
        a lost connection the outcome is unknown, and writing again with the same fence is allowed.

        Keys that are written under one lock should share a ``mark``, the name of a key in the same
        slot. With separate marks, a key that the new holder has not written yet would still accept
        the old holder.
        """
        key = checked_name(key, what="a key")
        mark = mark_of(key) if mark is None else checked_name(mark, what="a mark")
        if mark == key:
            raise ConfigurationError(
                f"mark={mark!r} is the key itself: pass the name of another key"
            )
        if not isinstance(command, str) or not command:
            raise ConfigurationError(f"command={command!r} must be the name of a Redis command")
        fence = fence_of(hold)
        script_args = (key, mark, fence, self._keep_ms, command, *arguments)
        try:
            reply = self._client.evalsha(_SHA, 2, *script_args)
        except Exception as error:
            _raise_unless_unknown_script(error)
            reply = self._client.eval(_SOURCE, 2, *script_args)
        if inspect.isawaitable(reply):
            return self._awaited(reply, key, fence, script_args)
        return _checked(key, fence, reply)

    async def _awaited(
        self, reply: Awaitable[Any], key: str, fence: int, script_args: tuple[Argument, ...]
    ) -> Any:
        try:
            return _checked(key, fence, await reply)
        except Exception as error:
            _raise_unless_unknown_script(error)
        return _checked(key, fence, await self._client.eval(_SOURCE, 2, *script_args))


def mark_of(key: str) -> str:
    """Return the name of the mark: the key with the highest fence, in the slot of ``key``.

    A Cluster hashes the text between the first ``{`` and the next ``}`` if it is not empty, or else
    the whole key. The two suffixes keep the marks of ``x`` and ``{x}`` apart.
    """
    if re.search(r"^[^{]*\{[^}]+\}", key):
        return f"{key}:lf-fence"
    if "}" in key:
        raise ConfigurationError(
            f"no mark can share the slot of the key {key!r}, which has a '}}' but no hash tag such "
            "as {this}: pass mark= or use another key"
        )
    return f"{{{key}}}:lf-mark"


def _checked(key: str, fence: int, reply: Any) -> Any:
    """Return the command's reply, or raise `StaleFence` if the script refused to run it."""
    written, result = reply
    if not written:
        refuse_if_stale(key, fence, int(result))
    return result


def _raise_unless_unknown_script(error: Exception) -> None:
    """Return only if the server does not know the script (new, restarted or flushed). Such a server
    did nothing, and the caller sends it the source. The driver is not imported here, so the error
    is recognized by its name or text."""
    if type(error).__name__ != "NoScriptError" and not str(error).startswith("NOSCRIPT"):
        raise error

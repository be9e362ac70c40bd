"""One node of a cluster: a single server, except for batches. In a cluster a script may touch the
keys of one slot only, so each name of a batch has its own call, and the calls share one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.backend import MOST_SHOWN, RedisBackend, Transport
from lockfast.stores.redis.commands import claim_payload, keys_of, release_payload
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.scripts import Script, bulk, packed
from lockfast.stores.wakeups import Wakeups

_ASKING = packed("ASKING")
_SLOTS = packed("CLUSTER", "SLOTS")


class NodeBackend(RedisBackend):
    """The verbs at one node. ``wake_address_of`` gives the address to wake us at for a name."""

    per_name = True

    def __init__(
        self, transport: Transport, where: str, wake_address_of: Callable[[str], str]
    ) -> None:
        super().__init__(transport, where)
        self.wake_address_of = wake_address_of  # type: ignore[assignment, method-assign]

    async def slots(self, budget: float) -> Any:
        """Return the reply to CLUSTER SLOTS: the slot map as this node knows it."""
        reply = await self._call(_SLOTS, budget)
        if isinstance(reply, ServerError):
            raise explained(reply, self._where)
        return reply

    async def claim_each(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs | BackendError]:
        """Claim all of them, even if an earlier one is refused."""
        calls = [
            (scripts.CLAIM, claim_payload(claim, self.wake_address_of(claim.name)), 4 + 5)
            for claim in claims
        ]
        replies = await self._run_each(calls, budget)
        return [
            reply if isinstance(reply, BackendError) else self._claimed(reply, claim.lease)
            for reply, claim in zip(replies, claims, strict=True)
        ]

    async def release_each(
        self, claims: Sequence[Claim], budget: float
    ) -> list[bool | BackendError]:
        calls = [(scripts.RELEASE, release_payload(claim), 4 + 1) for claim in claims]
        replies = await self._run_each(calls, budget)
        return [reply if isinstance(reply, BackendError) else self._yes(reply) for reply in replies]

    async def leave_each(self, claims: Sequence[Claim], budget: float) -> list[Any]:
        shown = bulk(b"%d" % MOST_SHOWN)
        calls = [
            (scripts.LEAVE, keys_of(claim.name)[1] + bulk(claim.id.encode()) + shown, 6)
            for claim in claims
        ]
        return await self._run_each(calls, budget)

    async def _in_use(self, names: Sequence[str], budget: float) -> list[str]:
        calls = [(scripts.NAMES, keys_of(name)[1], 4) for name in names]
        found = []
        for name, reply in zip(names, await self._run_each(calls, budget), strict=True):
            if isinstance(reply, BackendError):
                raise reply
            with self._parsing(reply):
                if reply[0]:
                    found.append(name)
        return found

    async def _run_each(
        self, calls: Sequence[tuple[Script, bytes, int]], budget: float
    ) -> list[Any]:
        """Call the scripts in one write; return each reply, or the error of a refused call."""
        commands = [script.head(count) + payload for script, payload, count in calls]
        replies = await self._transport.calls(commands, budget)
        for number, reply in enumerate(replies):
            if isinstance(reply, ServerError):
                try:
                    replies[number] = await self._retry(reply, *calls[number], budget, "")
                except BackendError as error:
                    replies[number] = error
        return replies


class AskingTransport:
    """The node's connections for a slot that it imports: ASKING precedes each command."""

    suspends = True  # in both APIs, `send` returns an awaitable

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.wakeups: Wakeups = transport.wakeups
        self.wake_address = "."
        self.subscribe = transport.subscribe
        self.listen = transport.listen
        self.interrupt = transport.interrupt
        self.distrust = transport.distrust
        self.close = transport.close

    async def send(self, command: bytes, budget: float) -> Any:
        return (await self.calls([command], budget))[0]

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        return _answers(await self._transport.calls(_after_asking(commands), budget))

    async def calls_replicated(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        both = _after_asking(commands)
        *answers, last = await self._transport.calls_replicated(both, replicas, wait_ms, budget)
        return [*_answers(answers), last]


def _after_asking(commands: Sequence[bytes]) -> list[bytes]:
    return [part for command in commands for part in (_ASKING, command)]


def _answers(both: Sequence[Any]) -> list[Any]:
    """Return the commands' replies; a refused ASKING replaces its command's reply."""
    pairs = zip(both[::2], both[1::2], strict=True)
    return [asking if isinstance(asking, ServerError) else answer for asking, answer in pairs]

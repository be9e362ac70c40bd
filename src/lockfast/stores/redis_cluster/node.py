"""One node of a cluster: what is said to a single server, but for batches. There a script may touch
the keys of one slot only, so each name has a call of its own, and the calls travel in one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.model import Busy, Claim, Differs, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.backend import MOST_SHOWN, RedisBackend, Transport
from lockfast.stores.redis.commands import claiming, keys_of, releasing
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.scripts import Script, bulk, packed
from lockfast.stores.wakeups import Wakeups

_ASKING = packed("ASKING")
_SLOTS = packed("CLUSTER", "SLOTS")


class NodeBackend(RedisBackend):
    apart = True

    def __init__(
        self, transport: Transport, where: str, wake_address_of: Callable[[str], str]
    ) -> None:
        super().__init__(transport, where)
        self.wake_address_of = wake_address_of  # type: ignore[assignment, method-assign]

    async def slots(self, budget: float) -> Any:
        """Who serves which slots, as this node knows it."""
        reply = await self._call(_SLOTS, budget)
        if isinstance(reply, ServerError):
            raise explained(reply, self._where)
        return reply

    async def claim_each(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs | BackendError]:
        """All of them, whether those before were granted or not."""
        calls = [
            (scripts.CLAIM, claiming(claim, self.wake_address_of(claim.name)), 4 + 5)
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
        calls = [(scripts.RELEASE, releasing(claim), 4 + 1) for claim in claims]
        replies = await self._run_each(calls, budget)
        return [reply if isinstance(reply, BackendError) else self._yes(reply) for reply in replies]

    async def leave_each(self, claims: Sequence[Claim], budget: float) -> list[Any]:
        shown = bulk(b"%d" % MOST_SHOWN)
        calls = [
            (scripts.LEAVE, keys_of(claim.name)[1] + bulk(claim.id.encode()) + shown, 6)
            for claim in claims
        ]
        return await self._run_each(calls, budget)

    async def _living(self, names: Sequence[str], budget: float) -> list[str]:
        calls = [(scripts.NAMES, keys_of(name)[1], 4) for name in names]
        found = []
        for name, reply in zip(names, await self._run_each(calls, budget), strict=True):
            if isinstance(reply, BackendError):
                raise reply
            with self._sense(reply):
                if reply[0]:
                    found.append(name)
        return found

    async def _run_each(
        self, calls: Sequence[tuple[Script, bytes, int]], budget: float
    ) -> list[Any]:
        """The replies, or for each that the server refused, why."""
        commands = [script.head(words) + said for script, said, words in calls]
        replies = await self._transport.calls(commands, budget)
        for number, reply in enumerate(replies):
            if isinstance(reply, ServerError):
                try:
                    replies[number] = await self._again(reply, *calls[number], budget, "")
                except BackendError as error:
                    replies[number] = error
        return replies


class Asking:
    """The same connections, for a slot that is just arriving at the node: each command goes behind
    an ASKING, in the same write."""

    suspends = True  # as to its callers: what it gives must be awaited, in either colour

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
        return _answers(await self._transport.calls(_behind_asking(commands), budget))

    async def settled(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        both = _behind_asking(commands)
        *answers, last = await self._transport.settled(both, replicas, wait_ms, budget)
        return [*_answers(answers), last]


def _behind_asking(commands: Sequence[bytes]) -> list[bytes]:
    return [part for command in commands for part in (_ASKING, command)]


def _answers(both: Sequence[Any]) -> list[Any]:
    """To the commands; or why ASKING was refused, without which they mean nothing."""
    pairs = zip(both[::2], both[1::2], strict=True)
    return [asking if isinstance(asking, ServerError) else answer for asking, answer in pairs]

"""The verbs on Redis: which script each one calls, and what the reply means."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from lockfast.core.acquire import PATIENCE
from lockfast.core.ports import Signal, Wake
from lockfast.errors import BackendError, Unsupported
from lockfast.model import SIMPLE, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.redis import scripts, simple_layout
from lockfast.stores.redis.commands import (
    Plan,
    claim_arguments,
    claim_batch_payload,
    claim_payload,
    key_of,
    keys_of,
    micros,
    name_of,
    planned,
    release_arguments,
    release_batch_payload,
    release_payload,
)
from lockfast.stores.redis.errors import ServerError, explained, is_elsewhere
from lockfast.stores.redis.replies import (
    MALFORMED,
    claimed,
    gone,
    granted,
    seen,
    seen_held,
    seen_waiting,
)
from lockfast.stores.redis.scripts import Script, bulk, packed
from lockfast.stores.wakeups import Wakeups

CAPABILITIES = Capabilities(
    store="redis", across="network", layouts={SIMPLE: simple_layout.CAPABILITIES}
)
MOST_SHOWN = 1000  # waiters in the message of a time-out
EVERYBODY = 10**9
SCAN_COUNT = 1000
RELEASE_SINGLY = -1  # in the reply to a batch: release this one singly, to learn of its error
_READ_RENEWALS: dict[Script, Callable[..., list[Any]]] = {
    scripts.RENEW: seen_held,
    scripts.REFRESH: seen_waiting,
    scripts.SIMPLE_RENEW: simple_layout.seen,
}


class Transport(Protocol):
    """The connection of one API, sync or async."""

    wakeups: Wakeups

    suspends: bool

    @property
    def wake_address(self) -> str:
        """The address for our wake-ups; '.' while nobody listens."""

    def send(self, command: bytes, budget: float) -> Any:
        """Send one command. Returns its reply, or an awaitable if this API ``suspends``."""

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]: ...

    async def calls_replicated(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        """Send commands, then WAIT on the same connection, whose reply is the last."""

    async def subscribe(self, since: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def distrust(self, why: str) -> None:
        """Close the last connection: it is out of step, or leads to the wrong server."""

    def close(self) -> None: ...


class RedisBackend:
    """One server, for one API (the transport's)."""

    patience = PATIENCE
    # A cluster's script may touch one name only: a batch is then one call per name, in one write.
    per_name = False

    def __init__(self, transport: Transport, where: str) -> None:
        self._transport = transport
        self._where = where
        self.listen = transport.listen
        self.interrupt = transport.interrupt
        self.close = transport.close
        if not transport.suspends:
            self.claim_now = self.claim_at_once
            self.release_now = self.release_at_once
            new_listener: Callable[[bool], Signal] | None = getattr(transport, "new_listener", None)
            if new_listener is not None:  # plain locks have no wake-ups
                self.waiter_signal = lambda claim: new_listener(not claim.layout)
        else:
            self.claim_soon = self._send_claim
            self.release_soon = self._send_release
        # Claims, or releases, of several tasks may be sent as one call.
        self._join = None if self.per_name else getattr(transport, "join", None)
        # For 3 keys and their number, and 5 arguments or 1.
        self._claim_head = scripts.CLAIM.head(4 + 5)
        self._release_head = scripts.RELEASE.head(4 + 1)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def wake_address_of(self, name: str) -> str:
        """The address for wake-ups of a name; '.' while nobody listens."""
        return self._transport.wake_address

    async def _run(
        self, script: Script, payload: bytes, count: int, budget: float, name: str = ""
    ) -> Any:
        """Call a script; ``payload`` is its ``count`` encoded parts (see `commands`)."""
        reply = await self._call(script.head(count) + payload, budget)
        if isinstance(reply, ServerError):
            return await self._retry(reply, script, payload, count, budget, name)
        return reply

    async def _call(self, command: bytes, budget: float) -> Any:
        reply = self._transport.send(command, budget)
        return await reply if self._transport.suspends else reply

    async def _retry(
        self, why: ServerError, script: Script, payload: bytes, count: int, budget: float, name: str
    ) -> Any:
        """Send the source to a server that does not know the script; raise other errors."""
        if str(why).startswith("NOSCRIPT"):
            reply = await self._call(script.head_with_source(count) + payload, budget)
            if not isinstance(reply, ServerError):
                return reply
            why = reply
        raise self._refused(why, name, script.source)

    def _refused(self, error: ServerError, name: str = "", source: str = "") -> BackendError:
        if is_elsewhere(error):
            self._transport.distrust("has a master elsewhere")
        return explained(error, self._where, key_of(name) if name else "", source)

    # ---- claim and release: the hot path -----------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.layout:
            payload = simple_layout.claim_payload(claim)
            reply = await self._run(scripts.SIMPLE_CLAIM, payload, 4, budget)
            with self._parsing(reply):
                answer = simple_layout.answer(claim, reply[0], reply[-1])
            assert not isinstance(answer, Gone)
            return answer
        payload = claim_payload(claim, self.wake_address_of(claim.name))
        reply = await self._run(scripts.CLAIM, payload, 4 + 5, budget, claim.name)
        return self._claimed(reply, claim.lease)

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        if claims[0].layout:
            return [await self.claim(claims[0], budget)]
        payload, count = claim_batch_payload(claims, self._transport.wake_address)
        reply = await self._run(scripts.CLAIM, payload, count, budget)
        if len(claims) == 1:
            return [self._claimed(reply, claims[0].lease)]
        with self._parsing(reply):
            return [claimed(one, claim.lease) for one, claim in zip(reply, claims, strict=False)]

    def claim_at_once(self, claim: Claim, budget: float) -> Granted | Busy | Differs | None:
        """`claim` for a transport that does not suspend. None: call `claim`."""
        reply = self._send_claim(claim, budget)
        return None if reply is None else self.claim_result(claim, reply)

    def _send_claim(self, claim: Claim, budget: float) -> Any:
        """The reply, or an awaitable. None: call `claim`."""
        name, _, _, _, slots, take, _, _, layout = claim
        if layout or take > slots:
            return None
        _, counted, keys = keys_of(name)
        wake_address = self.wake_address_of(name)
        if self._join is not None:
            return self._join(scripts.CLAIM, keys, claim_arguments(claim, wake_address), budget)
        return self._transport.send(
            claim_arguments(claim, wake_address, self._claim_head + counted), budget
        )

    def claim_result(self, claim: Claim, reply: Any) -> Granted | Busy | Differs | None:
        try:
            return claimed(reply, claim.lease)
        except MALFORMED:
            if type(reply) is ServerError:
                return None
            raise self._unexpected_reply(reply) from None

    def _claimed(self, reply: Any, lease: float) -> Granted | Busy | Differs:
        try:
            return claimed(reply, lease)
        except MALFORMED:
            raise self._unexpected_reply(reply) from None

    async def release(self, claim: Claim, budget: float) -> bool:
        if claim.layout:
            payload = simple_layout.release_payload(claim)
            return self._yes(await self._run(scripts.SIMPLE_RELEASE, payload, 3, budget))
        payload = release_payload(claim)
        return self._yes(await self._run(scripts.RELEASE, payload, 4 + 1, budget, claim.name))

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        if len(claims) == 1 or any(claim.layout for claim in claims):
            return [await self.release(claim, budget) for claim in claims]
        payload, count = release_batch_payload(claims)
        reply = await self._run(scripts.RELEASE, payload, count, budget)
        with self._parsing(reply):
            pairs = list(zip(reply, claims, strict=True))
        return [
            await self.release(claim, budget) if known == RELEASE_SINGLY else self._yes(known)
            for known, claim in pairs
        ]

    def release_at_once(self, claim: Claim, budget: float) -> bool | None:
        """`release` for a transport that does not suspend. None: call `release`."""
        reply = self._send_release(claim, budget)
        return None if reply is None else self.release_result(reply)

    def _send_release(self, claim: Claim, budget: float) -> Any:
        if claim.layout:
            return None
        _, counted, keys = keys_of(claim[0])
        if self._join is not None:
            return self._join(scripts.RELEASE, keys, release_arguments(claim), budget)
        return self._transport.send(release_arguments(claim, self._release_head + counted), budget)

    def release_result(self, reply: Any) -> bool | None:
        if type(reply) is int and reply >= 0:
            return reply != 0
        return None if type(reply) is ServerError or reply == RELEASE_SINGLY else self._yes(reply)

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        """Renew holds, waiters and plain locks, with one script call each, in one write."""
        plan = planned(claims, fences, self.wake_address_of, per_name=self.per_name)
        replies = await self._transport.calls(plan.commands, budget)
        return await self._renewals(plan, claims, fences, replies, budget)

    async def _renewals(
        self,
        plan: Plan,
        claims: Sequence[Claim],
        fences: Sequence[int],
        replies: Sequence[Any],
        budget: float,
    ) -> list[Granted | Busy | Gone | BackendError]:
        answers: list[Any] = [None] * len(claims)
        for (script, numbers), (payload, count), reply in zip(
            plan.calls, plan.payloads, replies, strict=True
        ):
            try:
                if isinstance(reply, ServerError):
                    name = claims[numbers[0]].name if len(numbers) == 1 else ""
                    reply = await self._retry(reply, script, payload, count, budget, name)
                with self._parsing(reply):
                    mine, theirs = [claims[n] for n in numbers], [fences[n] for n in numbers]
                    read = _READ_RENEWALS[script](reply, mine, theirs)
                    for number, answer in zip(numbers, read, strict=True):
                        answers[number] = answer
            except BackendError as error:
                if not self.per_name:
                    raise
                for number in numbers:
                    answers[number] = error
        return answers

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        if claim.layout:
            await self.release(claim, budget)
            return await self.inspect(claim.name, budget, claim.layout)
        payload = keys_of(claim.name)[1] + bulk(claim.id.encode()) + bulk(b"%d" % MOST_SHOWN)
        reply = await self._run(scripts.LEAVE, payload, 6, budget, claim.name)
        return self._snapshot(claim.name, reply)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        if claim.layout:
            raise Unsupported("a plain lock cannot be detached: it does not record its holder")
        arguments = (claim.id, str(micros(claim.lease)), "1" if attached else "0", claim.who)
        payload = b"$1\r\n1\r\n" + keys_of(claim.name)[0]
        payload += b"".join(bulk(argument.encode()) for argument in arguments)
        reply = await self._run(scripts.TRANSFER, payload, 6, budget, claim.name)
        with self._parsing(reply):
            return granted(reply[1], reply[2], claim.lease) if reply[0] == 1 else gone(reply[0])

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        payload = keys_of(claim.name)[1] + bulk(claim.id.encode()) + bulk(b"%d" % claim.take)
        reply = await self._run(scripts.SHRINK, payload, 6, budget, claim.name)
        with self._parsing(reply):
            return granted(reply[1], reply[2], reply[2]) if reply[0] == 1 else gone(reply[0])

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        payload = keys_of(name)[1] + bulk(b"%d" % expected) + bulk(b"%d" % slots)
        had = await self._run(scripts.RESIZE, payload, 6, budget, name)
        if type(had) is not int:
            raise self._unexpected_reply(had)
        return had

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self._transport.wakeups.watch(claim.id, wake)
        return False if claim.layout else await self._transport.subscribe(since)

    def unwatch(self, claim: Claim) -> None:
        self._transport.wakeups.unwatch(claim.id)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        if layout:
            rest = await self._call(packed("PTTL", simple_layout.key_of(name)), budget)
            if isinstance(rest, ServerError):
                raise self._refused(rest)
            if type(rest) is not int:
                raise self._unexpected_reply(rest)
            return simple_layout.snapshot(name, rest)
        payload = keys_of(name)[1] + bulk(b"%d" % EVERYBODY)
        return self._snapshot(name, await self._run(scripts.INSPECT, payload, 5, budget, name))

    async def names(self, prefix: str, budget: float) -> list[str]:
        """Scan the whole keyspace in small steps; names that exist throughout are found."""
        start = key_of(prefix)[:-1]
        pattern = re.sub(r"([*?\[\]^\\-])", r"\\\1", start) + "*"
        found: set[str] = set()
        cursor: Any = b"0"
        while True:
            reply = await self._call(
                packed("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT), budget
            )
            if isinstance(reply, ServerError):
                raise self._refused(reply)
            with self._parsing(reply):
                cursor, keys = reply
                fresh = sorted({name for key in keys if (name := name_of(key))} - found)
            if fresh:
                found.update(await self._in_use(fresh, budget))
            if cursor in (b"0", 0):
                return sorted(found)

    async def _in_use(self, names: Sequence[str], budget: float) -> list[str]:
        keys = [keys_of(name)[2] for name in names]
        payload = bulk(b"%d" % (3 * len(names))) + b"".join(keys)
        reply = await self._run(scripts.NAMES, payload, 1 + 3 * len(names), budget)
        with self._parsing(reply):
            return [name for name, in_use in zip(names, reply, strict=True) if in_use]

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        payload = keys_of(name)[1] + bulk(b"%d" % fence)
        return self._yes(await self._run(scripts.BREAK, payload, 5, budget, name))

    # ---- replies -----------------------------------------------------------------------------

    def _snapshot(self, name: str, reply: Any) -> Snapshot:
        with self._parsing(reply):
            return seen(name, *reply)

    def _yes(self, reply: Any) -> bool:
        if type(reply) is not int:
            raise self._unexpected_reply(reply)
        return reply != 0

    @contextlib.contextmanager
    def _parsing(self, reply: Any) -> Iterator[None]:
        """Parse a reply, which has another shape if it did not come from Redis."""
        try:
            if type(reply) is not list:
                raise TypeError
            yield
        except MALFORMED:
            raise self._unexpected_reply(reply) from None

    def _unexpected_reply(self, reply: Any) -> BackendError:
        self._transport.distrust("sent an unexpected reply")
        kind = type(reply).__name__
        return BackendError(
            f"unexpected reply ({kind}) from {self._where}: is a proxy answering instead?",
            transient=False,
        )

"""The verbs on Redis: which script is called with what, and what its answer means.

The decisions are the scripts' (`lua/`, the law of slots), the words are packed in `words`, the
connection is the transport's.
"""

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
    claim_words,
    claiming,
    claiming_many,
    key_of,
    keys_of,
    micros,
    name_of,
    planned,
    release_words,
    releasing,
    releasing_many,
)
from lockfast.stores.redis.errors import ServerError, explained, is_elsewhere
from lockfast.stores.redis.replies import (
    NONSENSE,
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
UNCONTENDED = -1  # of many releases: ask for this one alone, so that we hear what is in the way
_READ_RENEWALS: dict[Script, Callable[..., list[Any]]] = {
    scripts.RENEW: seen_held,
    scripts.REFRESH: seen_waiting,
    scripts.SIMPLE_RENEW: simple_layout.seen,
}


class Transport(Protocol):
    """How commands travel; one colour."""

    wakeups: Wakeups

    suspends: bool

    @property
    def wake_address(self) -> str:
        """Where our bells are heard; '.' while nobody listens."""

    def send(self, command: bytes, budget: float) -> Any:
        """Send one command. The answer, or if this colour ``suspends``, what to await for it."""

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]: ...

    async def settled(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        """The same, and behind them on the same connection a WAIT, whose answer is the last."""

    async def subscribe(self, since: float) -> bool: ...

    async def listen(self, timeout: float | None) -> None: ...

    def interrupt(self) -> None: ...

    def distrust(self, why: str) -> None:
        """Close the connection that answered last: it is out of step, or leads to the wrong one."""

    def close(self) -> None: ...


class RedisBackend:
    """One server, one colour (the transport's)."""

    patience = PATIENCE
    # Whether a script may touch one name only, so that a batch is a call for each, in one write.
    apart = False

    def __init__(self, transport: Transport, where: str) -> None:
        self._transport = transport
        self._where = where
        self.listen = transport.listen
        self.interrupt = transport.interrupt
        self.close = transport.close
        if not transport.suspends:
            self.claim_now = self.claim_at_once
            self.release_now = self.release_at_once
            new_ear: Callable[[bool], Signal] | None = getattr(transport, "new_ear", None)
            if new_ear is not None:  # each thread hears its bells itself; plain locks have none
                self.ear = lambda claim: new_ear(not claim.layout)
        else:
            self.claim_soon = self._ask_claim
            self.release_soon = self._ask_release
        # Those of many tasks may travel as one call.
        self._join = None if self.apart else getattr(transport, "join", None)
        # Before 3 keys and their number, and 5 words or 1.
        self._claim_head = scripts.CLAIM.head(4 + 5)
        self._release_head = scripts.RELEASE.head(4 + 1)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def wake_address_of(self, name: str) -> str:
        """Where the bells of a name are heard; '.' while nobody listens."""
        return self._transport.wake_address

    async def _run(
        self, script: Script, said: bytes, words: int, budget: float, name: str = ""
    ) -> Any:
        """Call a script; ``said`` is the number of keys, the keys and the words, packed."""
        reply = await self._call(script.head(words) + said, budget)
        if isinstance(reply, ServerError):
            return await self._again(reply, script, said, words, budget, name)
        return reply

    async def _call(self, command: bytes, budget: float) -> Any:
        reply = self._transport.send(command, budget)
        return await reply if self._transport.suspends else reply

    async def _again(
        self, error: ServerError, script: Script, said: bytes, words: int, budget: float, name: str
    ) -> Any:
        """The server refused. If it only does not know the script, tell it."""
        if str(error).startswith("NOSCRIPT"):
            reply = await self._call(script.head_in_full(words) + said, budget)
            if not isinstance(reply, ServerError):
                return reply
            error = reply
        raise self._refused(error, name, script.source)

    def _refused(self, error: ServerError, name: str = "", source: str = "") -> BackendError:
        if is_elsewhere(error):
            self._transport.distrust("has a master elsewhere")
        return explained(error, self._where, key_of(name) if name else "", source)

    # ---- claim and release: the hot ones -----------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.layout:
            reply = await self._run(
                scripts.SIMPLE_CLAIM, simple_layout.claim_said(claim), 4, budget
            )
            with self._sense(reply):
                answer = simple_layout.answer(claim, reply[0], reply[-1])
            assert not isinstance(answer, Gone)
            return answer
        said = claiming(claim, self.wake_address_of(claim.name))
        reply = await self._run(scripts.CLAIM, said, 4 + 5, budget, claim.name)
        return self._claimed(reply, claim.lease)

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        if claims[0].layout:
            return [await self.claim(claims[0], budget)]
        said, words = claiming_many(claims, self._transport.wake_address)
        reply = await self._run(scripts.CLAIM, said, words, budget)
        if len(claims) == 1:
            return [self._claimed(reply, claims[0].lease)]
        with self._sense(reply):
            return [claimed(one, claim.lease) for one, claim in zip(reply, claims, strict=False)]

    def claim_at_once(self, claim: Claim, budget: float) -> Granted | Busy | Differs | None:
        """`claim`, where the transport does not suspend. None: ask the long way."""
        reply = self._ask_claim(claim, budget)
        return None if reply is None else self.claim_said(claim, reply)

    def _ask_claim(self, claim: Claim, budget: float) -> Any:
        """The reply, or what to await for it. None: ask the long way."""
        name, _, _, _, slots, take, _, _, layout = claim
        if layout or take > slots:
            return None
        _, counted, keys = keys_of(name)
        wake_address = self.wake_address_of(name)
        if self._join is not None:
            return self._join(scripts.CLAIM, keys, claim_words(claim, wake_address), budget)
        return self._transport.send(
            claim_words(claim, wake_address, self._claim_head + counted), budget
        )

    def claim_said(self, claim: Claim, reply: Any) -> Granted | Busy | Differs | None:
        try:
            return claimed(reply, claim.lease)
        except NONSENSE:
            if type(reply) is ServerError:
                return None
            raise self._senseless(reply) from None

    def _claimed(self, reply: Any, lease: float) -> Granted | Busy | Differs:
        try:
            return claimed(reply, lease)
        except NONSENSE:
            raise self._senseless(reply) from None

    async def release(self, claim: Claim, budget: float) -> bool:
        if claim.layout:
            said = simple_layout.release_said(claim)
            return self._yes(await self._run(scripts.SIMPLE_RELEASE, said, 3, budget))
        said = releasing(claim)
        return self._yes(await self._run(scripts.RELEASE, said, 4 + 1, budget, claim.name))

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        if len(claims) == 1 or any(claim.layout for claim in claims):
            return [await self.release(claim, budget) for claim in claims]
        said, words = releasing_many(claims)
        reply = await self._run(scripts.RELEASE, said, words, budget)
        with self._sense(reply):
            pairs = list(zip(reply, claims, strict=True))
        return [
            await self.release(claim, budget) if known == UNCONTENDED else self._yes(known)
            for known, claim in pairs
        ]

    def release_at_once(self, claim: Claim, budget: float) -> bool | None:
        """`release`, where the transport does not suspend. None: ask the long way."""
        reply = self._ask_release(claim, budget)
        return None if reply is None else self.release_said(reply)

    def _ask_release(self, claim: Claim, budget: float) -> Any:
        if claim.layout:
            return None
        _, counted, keys = keys_of(claim[0])
        if self._join is not None:
            return self._join(scripts.RELEASE, keys, release_words(claim), budget)
        return self._transport.send(release_words(claim, self._release_head + counted), budget)

    def release_said(self, reply: Any) -> bool | None:
        if type(reply) is int and reply >= 0:
            return reply != 0
        return None if type(reply) is ServerError or reply == UNCONTENDED else self._yes(reply)

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        """Holds in one script call, places in another, plain locks in a third; in one write."""
        plan = planned(claims, fences, self.wake_address_of, apart=self.apart)
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
        for (script, numbers), (said, words), reply in zip(
            plan.kinds, plan.calls, replies, strict=True
        ):
            try:
                if isinstance(reply, ServerError):
                    name = claims[numbers[0]].name if len(numbers) == 1 else ""
                    reply = await self._again(reply, script, said, words, budget, name)
                with self._sense(reply):
                    mine, theirs = [claims[n] for n in numbers], [fences[n] for n in numbers]
                    read = _READ_RENEWALS[script](reply, mine, theirs)
                    for number, answer in zip(numbers, read, strict=True):
                        answers[number] = answer
            except BackendError as error:
                if not self.apart:
                    raise
                for number in numbers:
                    answers[number] = error
        return answers

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        if claim.layout:
            await self.release(claim, budget)
            return await self.inspect(claim.name, budget, claim.layout)
        said = keys_of(claim.name)[1] + bulk(claim.id.encode()) + bulk(b"%d" % MOST_SHOWN)
        reply = await self._run(scripts.LEAVE, said, 6, budget, claim.name)
        return self._snapshot(claim.name, reply)

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        if claim.layout:
            raise Unsupported("a plain lock cannot be detached: who holds it is not written there")
        words = (claim.id, str(micros(claim.lease)), "1" if attached else "0", claim.who)
        said = b"$1\r\n1\r\n" + keys_of(claim.name)[0]
        said += b"".join(bulk(word.encode()) for word in words)
        reply = await self._run(scripts.TRANSFER, said, 6, budget, claim.name)
        with self._sense(reply):
            return granted(reply[1], reply[2], claim.lease) if reply[0] == 1 else gone(reply[0])

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        said = keys_of(claim.name)[1] + bulk(claim.id.encode()) + bulk(b"%d" % claim.take)
        reply = await self._run(scripts.SHRINK, said, 6, budget, claim.name)
        with self._sense(reply):
            return granted(reply[1], reply[2], reply[2]) if reply[0] == 1 else gone(reply[0])

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        said = keys_of(name)[1] + bulk(b"%d" % expected) + bulk(b"%d" % slots)
        had = await self._run(scripts.RESIZE, said, 6, budget, name)
        if type(had) is not int:
            raise self._senseless(had)
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
                raise self._senseless(rest)
            return simple_layout.snapshot(name, rest)
        said = keys_of(name)[1] + bulk(b"%d" % EVERYBODY)
        return self._snapshot(name, await self._run(scripts.INSPECT, said, 5, budget, name))

    async def names(self, prefix: str, budget: float) -> list[str]:
        """A walk over the whole keyspace, in small steps; what is there all the while is found."""
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
            with self._sense(reply):
                cursor, keys = reply
                fresh = sorted({name for key in keys if (name := name_of(key))} - found)
            if fresh:
                found.update(await self._living(fresh, budget))
            if cursor in (b"0", 0):
                return sorted(found)

    async def _living(self, names: Sequence[str], budget: float) -> list[str]:
        keys = [keys_of(name)[2] for name in names]
        said = bulk(b"%d" % (3 * len(names))) + b"".join(keys)
        reply = await self._run(scripts.NAMES, said, 1 + 3 * len(names), budget)
        with self._sense(reply):
            return [name for name, lives in zip(names, reply, strict=True) if lives]

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        said = keys_of(name)[1] + bulk(b"%d" % fence)
        return self._yes(await self._run(scripts.BREAK, said, 5, budget, name))

    # ---- answers -----------------------------------------------------------------------------

    def _snapshot(self, name: str, reply: Any) -> Snapshot:
        with self._sense(reply):
            return seen(name, *reply)

    def _yes(self, reply: Any) -> bool:
        if type(reply) is not int:
            raise self._senseless(reply)
        return reply != 0

    @contextlib.contextmanager
    def _sense(self, reply: Any) -> Iterator[None]:
        """Take an answer apart, which may be of another shape if it is not Redis's."""
        try:
            if type(reply) is not list:
                raise TypeError
            yield
        except NONSENSE:
            raise self._senseless(reply) from None

    def _senseless(self, reply: Any) -> BackendError:
        self._transport.distrust("answered what makes no sense")
        return BackendError(
            f"{self._where} answered what makes no sense here ({type(reply).__name__}): is it "
            "Redis, and only Redis, between us?",
            transient=False,
        )

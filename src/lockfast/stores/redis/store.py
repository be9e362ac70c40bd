"""The verbs on Redis: which script each one calls, and what the reply means.

A verb of several requests is a generator (`stores/steps.py`): NOSCRIPT, a walk over all names, in
a cluster redirections. A request is a function of a channel with its arguments. Claims and
releases of one name, which are hot, send their one request themselves, and become a generator only
if the reply is not an answer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from lockfast.core.ports import Answer, Reply, Signal, Store, Wake
from lockfast.errors import BackendError, Unsupported
from lockfast.model import SIMPLE, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import (
    MALFORMED,
    RELEASE_SINGLY,
    Call,
    claim_arguments,
    claim_call,
    claimed,
    gone,
    granted,
    key_of,
    keys_of,
    name_call,
    name_of,
    names_call,
    plain_claimed,
    plain_inspect_call,
    plain_seen,
    release_call,
    renewal_calls,
    renewed,
    seen,
    transfer_call,
)
from lockfast.stores.redis.connections import Channel, Unfinished
from lockfast.stores.redis.errors import ServerError, explained, is_elsewhere
from lockfast.stores.redis.scripts import packed
from lockfast.stores.steps import Steps, perform, perform_soon

T = TypeVar("T")
PLAIN_CAPABILITIES = Capabilities(
    store="redis", across="network", fair=False, fences=False, wakes="paced"
)
CAPABILITIES = Capabilities(store="redis", across="network", layouts={SIMPLE: PLAIN_CAPABILITIES})
MOST_SHOWN = 1000  # waiters in the message of a time-out
EVERYBODY = 10**9
SCAN_COUNT = 1000


class RedisStore(Store):
    """One server, for one API (the channel's)."""

    # A cluster's script may touch one name only: a batch is then one call per name.
    per_name = False

    def __init__(self, channel: Channel, where: str) -> None:
        self._channel = channel
        self._where = where
        self.suspends = channel.suspends
        # For 3 keys and their number, and 5 arguments or 1.
        self._claim_head = scripts.CLAIM.head(4 + 5)
        self._release_head = scripts.RELEASE.head(4 + 1)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def wake_address_of(self, name: str) -> str:
        """The address for wake-ups of a name; '.' while nobody listens."""
        return self._channel.wake_address

    def _perform(self, steps: Steps[T]) -> Reply[T]:
        return perform_soon(steps, _send) if self.suspends else perform(steps, _send)

    # ---- claim and release: the hot path -----------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[list[Answer]]:
        claim = claims[0]
        name, _, _, lease, slots, take, _, _, layout = claim
        if layout or take > slots or len(claims) > 1:
            return self._perform(self._claim(claims, budget))
        channel = self._channel
        address = channel.wake_address
        if self.suspends:
            arguments = claim_arguments(claim, address)
            return channel.join(scripts.CLAIM, claim, arguments, budget, self._answer_to_claim)
        head = self._claim_head + keys_of(name)[1]
        reply = channel.send(claim_arguments(claim, address, head), budget)
        try:
            return [claimed(reply, lease)]
        except MALFORMED:
            return self._perform(self._claim(claims, budget, reply))

    def _answer_to_claim(self, reply: Any, claim: Claim, budget: float) -> list[Answer]:
        try:
            return [claimed(reply, claim[3])]
        except MALFORMED:
            raise Unfinished(self._claim((claim,), budget, _own(reply))) from None

    def _claim(
        self, claims: Sequence[Claim], budget: float, reply: Any = None
    ) -> Steps[list[Answer]]:
        """Claim in order. ``reply``: to an attempt that was made already."""
        claim = claims[0]
        if claim.take > claim.slots:
            return [Differs(claim.slots)]
        call = claim_call(claims, self.wake_address_of(claim.name))
        reply = yield from self._run(call, budget, reply)
        if claim.layout:
            with self._parsing(reply):
                answer = plain_claimed(claim, reply[0], reply[-1])
            assert not isinstance(answer, Gone)
            return [answer]
        if len(claims) == 1:
            return [self._claimed(reply, claim)]
        with self._parsing(reply):
            return [claimed(one, claim.lease) for one, claim in zip(reply, claims, strict=False)]

    def _claimed(self, reply: Any, claim: Claim) -> Answer:
        try:
            return claimed(reply, claim.lease)
        except MALFORMED:
            raise self._unexpected_reply(reply) from None

    def release(self, claims: Sequence[Claim], budget: float) -> Reply[list[bool]]:
        claim = claims[0]
        if len(claims) > 1 or claim.layout:
            return self._perform(self._release(claims, budget))
        encoded = claim[1].encode()
        argument = b"$%d\r\n%b\r\n" % (len(encoded), encoded)
        if self.suspends:
            decode = self._answer_to_release
            return self._channel.join(scripts.RELEASE, claim, argument, budget, decode)
        command = b"".join((self._release_head, keys_of(claim[0])[1], argument))
        reply = self._channel.send(command, budget)
        if type(reply) is int:
            return [reply != 0]
        return self._perform(self._release(claims, budget, reply))

    def _answer_to_release(self, reply: Any, claim: Claim, budget: float) -> list[bool]:
        if type(reply) is int and reply >= 0:
            return [reply != 0]
        own = None if reply == RELEASE_SINGLY else _own(reply)
        raise Unfinished(self._release((claim,), budget, own))

    def _release(
        self, claims: Sequence[Claim], budget: float, reply: Any = None
    ) -> Steps[list[bool]]:
        if len(claims) == 1:
            return [self._yes((yield from self._run(release_call(claims), budget, reply)))]
        if any(claim.layout for claim in claims):
            known = [RELEASE_SINGLY] * len(claims)
        else:
            known = yield from self._run(release_call(claims), budget)
            with self._parsing(known):
                known = [one for one, _ in zip(known, claims, strict=True)]
        answers = []
        for one, claim in zip(known, claims, strict=True):
            if one == RELEASE_SINGLY:
                one = yield from self._run(release_call([claim]), budget)
            answers.append(self._yes(one))
        return answers

    # ---- other verbs of the core -------------------------------------------------------------

    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Reply[list[Granted | Busy | Gone | BackendError]]:
        """Renew holds, waiters and plain locks, with one script call each, in one write."""
        return self._perform(self._renew(claims, fences, budget))

    def _renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Steps[list[Granted | Busy | Gone | BackendError]]:
        calls = renewal_calls(claims, fences, self.wake_address_of, per_name=self.per_name)
        replies = yield from self._run_all([call for call, _ in calls], budget)
        return self._renewals(calls, claims, fences, replies)

    def _renewals(
        self,
        calls: Sequence[tuple[Call, list[int]]],
        claims: Sequence[Claim],
        fences: Sequence[int],
        replies: Sequence[Any],
    ) -> list[Granted | Busy | Gone | BackendError]:
        """The answer for each claim: the error, if its call was refused."""
        answers: list[Any] = [None] * len(claims)
        for (call, numbers), reply in zip(calls, replies, strict=True):
            found: list[Any] = [reply] * len(numbers)
            if not isinstance(reply, BackendError):
                with self._parsing(reply):
                    mine, theirs = [claims[n] for n in numbers], [fences[n] for n in numbers]
                    found = list(renewed(call.script, reply, mine, theirs))
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        errors = [answer for answer in answers if isinstance(answer, BackendError)]
        if errors and len(errors) == len(answers):
            raise errors[0]
        return answers

    def leave(self, claim: Claim, budget: float) -> Reply[Snapshot]:
        return self._perform(self._leave(claim, budget))

    def _leave(self, claim: Claim, budget: float) -> Steps[Snapshot]:
        if claim.layout:
            yield from self._release((claim,), budget)
            return (yield from self._inspect(claim.name, budget, claim.layout))
        call = name_call(scripts.LEAVE, claim.name, claim.id, MOST_SHOWN)
        return self._seen(claim.name, (yield from self._run(call, budget)))

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Reply[Granted | Gone]:
        if claim.layout:
            raise Unsupported("a plain lock cannot be detached: it does not record its holder")
        return self._perform(self._amend(transfer_call(claim, attached), claim.lease, budget))

    def shrink(self, claim: Claim, budget: float) -> Reply[Granted | Gone]:
        call = name_call(scripts.SHRINK, claim.name, claim.id, claim.take)
        return self._perform(self._amend(call, None, budget))

    def _amend(self, call: Call, lease: float | None, budget: float) -> Steps[Granted | Gone]:
        """Change a hold. Without a ``lease``, the hold keeps the one that the store reports."""
        reply = yield from self._run(call, budget)
        with self._parsing(reply):
            if reply[0] != 1:
                return gone(reply[0])
            return granted(reply[1], reply[2], reply[2] if lease is None else lease)

    def resize(self, name: str, expected: int, slots: int, budget: float) -> Reply[int]:
        return self._perform(self._resize(name, expected, slots, budget))

    def _resize(self, name: str, expected: int, slots: int, budget: float) -> Steps[int]:
        had = yield from self._run(name_call(scripts.RESIZE, name, expected, slots), budget)
        if type(had) is not int:
            raise self._unexpected_reply(had)
        return had

    # ---- wake-ups ----------------------------------------------------------------------------

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        self._channel.wakeups.watch(claim.id, wake)
        if claim.layout:
            return self._perform(known(False))
        return self._channel.subscribe(since)

    def unwatch(self, claim: Claim) -> None:
        self._channel.wakeups.unwatch(claim.id)

    def signal(self, claim: Claim) -> Signal | None:
        return self._channel.signal(not claim.layout)

    def listen(self, timeout: float | None) -> Reply[None]:
        return self._channel.listen(timeout)

    def interrupt(self) -> None:
        self._channel.interrupt()

    def close(self) -> None:
        self._channel.close()

    # ---- for operators -----------------------------------------------------------------------

    def inspect(self, name: str, budget: float, layout: str = "") -> Reply[Snapshot]:
        return self._perform(self._inspect(name, budget, layout))

    def _inspect(self, name: str, budget: float, layout: str) -> Steps[Snapshot]:
        if not layout:
            call = name_call(scripts.INSPECT, name, EVERYBODY)
            return self._seen(name, (yield from self._run(call, budget)))
        rest = yield from self._run(plain_inspect_call(name), budget)
        if type(rest) is not int:
            raise self._unexpected_reply(rest)
        return plain_seen(name, rest)

    def names(self, prefix: str, budget: float) -> Reply[list[str]]:
        return self._perform(self._names(self._channel, prefix, budget))

    def _names(self, channel: Channel, prefix: str, budget: float) -> Steps[list[str]]:
        """Scan the whole keyspace in small steps; names that exist throughout are found."""
        pattern = re.sub(r"([*?\[\]^\\-])", r"\\\1", key_of(prefix)[:-1]) + "*"
        found: set[str] = set()
        cursor: Any = b"0"
        while True:
            command = packed("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            reply = yield channel.send, command, budget
            if isinstance(reply, ServerError):
                raise self._refused(reply)
            with self._parsing(reply):
                cursor, keys = reply
                fresh = sorted({name for key in keys if (name := name_of(key))} - found)
            if fresh:
                found.update((yield from self._in_use(fresh, budget)))
            if cursor in (b"0", 0):
                return sorted(found)

    def _in_use(self, names: Sequence[str], budget: float) -> Steps[list[str]]:
        """Those of the names that are held or waited for."""
        reply = yield from self._run(names_call(names), budget)
        with self._parsing(reply):
            return [name for name, in_use in zip(names, reply, strict=True) if in_use]

    def break_hold(self, name: str, fence: int, budget: float) -> Reply[bool]:
        return self._perform(self._break(name, fence, budget))

    def _break(self, name: str, fence: int, budget: float) -> Steps[bool]:
        return self._yes((yield from self._run(name_call(scripts.BREAK, name, fence), budget)))

    # ---- requests and replies ----------------------------------------------------------------

    def _run(self, call: Call, budget: float, reply: Any = None) -> Steps[Any]:
        """Call a script. ``reply``: to a first attempt that was made already."""
        if reply is None:
            reply = yield self._channel.send, call.packed(), budget
        if is_unknown_script(reply):
            reply = yield self._channel.send, call.with_source(), budget
        if isinstance(reply, ServerError):
            raise self._refused(reply, call)
        return reply

    def _run_all(self, calls: Sequence[Call], budget: float) -> Steps[list[Any]]:
        """Call scripts in one write. The reply to a call that was refused is a `BackendError`."""
        replies = yield self._channel.send_all, [call.packed() for call in calls], budget
        for number, reply in enumerate(replies):
            if isinstance(reply, ServerError):
                try:
                    replies[number] = yield from self._run(calls[number], budget, reply)
                except BackendError as error:
                    replies[number] = error
        return list(replies)

    def _refused(self, error: ServerError, call: Call | None = None) -> BackendError:
        if is_elsewhere(error):
            self._distrust("has a master elsewhere")
        source = call.script.source if call and call.script else ""
        return explained(error, self._where, call.key if call else "", source)

    def _distrust(self, why: str) -> None:
        self._channel.distrust(why)

    def _seen(self, name: str, reply: Any) -> Snapshot:
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
        self._distrust("sent an unexpected reply")
        kind = type(reply).__name__
        return BackendError(
            f"unexpected reply ({kind}) from {self._where}: is a proxy answering instead?",
            transient=False,
        )


def _send(request: tuple[Any, ...]) -> Any:
    """Send what a step yields: a function of a channel, and its arguments."""
    return request[0](*request[1:])


def known(answer: T) -> Steps[T]:
    return answer
    yield  # without a request


def _own(reply: Any) -> Any:
    """The reply, if it is certainly to this claim: an error may be that of a whole batch."""
    return reply if not isinstance(reply, ServerError) or is_unknown_script(reply) else None


def is_unknown_script(reply: Any) -> bool:
    return isinstance(reply, ServerError) and str(reply).startswith("NOSCRIPT")

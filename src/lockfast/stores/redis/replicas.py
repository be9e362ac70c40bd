"""Claims that count only once replicas have them: `replicas=` of `connect`.

Redis replies before its replicas have the data. If a replica takes over in between, a granted claim
is forgotten, and the name granted again. So where replicas are counted, every command that creates
or extends a hold is followed by WAIT, in the same write and on the same connection (WAIT covers the
writes of its own connection), and a result that too few replicas acknowledged does not count:

- a granted claim raises `NotReplicated`; the client then leaves, which withdraws the grant;
- a renewal has an unknown outcome, as if the reply had been lost. It is retried until the deadline,
  and the hold's validity is not extended;
- a grant in a wake-up or a refresh is requested once more, as a claim. A wake-up stems from another
  client's release, which did not wait for replicas: it is only a hint.

Releases do not wait: if one is forgotten, a name becomes free later, not sooner. And replicas
receive writes in order, so one that has acknowledged a hold also has the releases before it.

The number may be an integer; ``majority``: with the master more than half of all servers, so that
at most one side of a partition can grant; or ``all``. Counted are the replicas that the master has,
or has had since we connected, and those that Sentinel knows. Absent replicas count, too: a master
that is cut off would otherwise soon be a majority by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lockfast.core.ledger import bare, shown
from lockfast.core.ports import Answer, Reply, Wake
from lockfast.errors import BackendError, ConfigurationError, NotReplicated
from lockfast.model import Busy, Capabilities, Claim, Gone, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import GONE, Call, renewal_calls
from lockfast.stores.redis.connections import Channel
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.scripts import Script, packed
from lockfast.stores.redis.store import RedisStore, is_unknown_script
from lockfast.stores.steps import Steps

MOST_REPLICAS = 1000
QUANTIFIERS = ("majority", "all")
ROLE = packed("ROLE")
# The share of the budget that WAIT may take: the replies need the rest.
PART = 0.6
# Redis checks for WAITs that are over ten times a second, so its reply that too few replicas have
# acknowledged may come this much later than the time-out of the WAIT.
GRAIN = 0.12


def checked_replicas(value: object) -> int | str:
    """The value of ``replicas=``, a keyword or an option of a URL."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if number in QUANTIFIERS and isinstance(number, str):
        return number
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= MOST_REPLICAS:
        return number
    raise ConfigurationError(
        f"replicas={value!r} is not valid: give a number from 1 to {MOST_REPLICAS}, 'majority' or "
        "'all', or omit it to wait for no replica"
    )


class _TooFew(Exception):
    """Executed, but too few replicas have acknowledged it."""

    def __init__(self, acknowledged: int, wanted: int) -> None:
        self.acknowledged, self.wanted = acknowledged, wanted

    def __str__(self) -> str:
        return f"only {self.acknowledged} of {self.wanted} replicas acknowledged it in time"


class ReplicatedStore(RedisStore):
    """A store that waits for replicas. ``known`` returns how many Sentinel knows."""

    def __init__(
        self,
        channel: Channel,
        where: str,
        replicas: int | str,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(channel, where)
        self._replicas = replicas
        self._known = known
        self._seen_replicas = 0
        self._shortest = float("inf")  # the smallest budget so far
        self._capabilities = replace(super().capabilities, wakes="notify", replicas=replicas)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ---- the verbs ---------------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[list[Answer]]:
        return self._perform(self._claim(claims, budget))

    def _claim(
        self, claims: Sequence[Claim], budget: float, reply: Any = None
    ) -> Steps[list[Answer]]:
        try:
            return (yield from super()._claim(claims, budget, reply))
        except _TooFew as too_few:
            raise self._not_replicated(claims, too_few) from None

    def _renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Steps[list[Granted | Busy | Gone | BackendError]]:
        calls = renewal_calls(claims, fences, self.wake_address_of, per_name=False)
        replies, too_few = yield from self._replicated([call for call, _ in calls], budget)
        for number, reply in enumerate(replies):
            if isinstance(reply, ServerError):
                replies[number] = self._refused(reply, calls[number][0])
        answers = self._renewals(calls, claims, fences, replies)
        if too_few is None:
            return answers
        unknown = BackendError(f"{self._where} renewed the lease, but {too_few}")
        # A waiter that was granted is claimed again. (A plain lock has no fence when held.)
        counted: list[Granted | Busy | Gone | BackendError] = [
            answer
            if not isinstance(answer, Granted)
            else unknown
            if fence or claim.layout
            else GONE
            for answer, fence, claim in zip(answers, fences, claims, strict=True)
        ]
        if all(answer is unknown for answer in counted):
            raise unknown
        return counted

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        return super().watch(claim, lambda _grant: wake(None), since)

    # ---- waiting for replicas ----------------------------------------------------------------

    def _run(self, call: Call, budget: float, reply: Any = None) -> Steps[Any]:
        grants = None if call.script is None else _GRANTS.get(call.script)
        if grants is None:
            return (yield from super()._run(call, budget, reply))
        (reply,), too_few = yield from self._replicated([call], budget)
        if isinstance(reply, ServerError):
            raise self._refused(reply, call)
        if too_few is not None and grants(reply):
            if call.script in (scripts.CLAIM, scripts.SIMPLE_CLAIM):
                raise too_few
            raise BackendError(f"{self._where} executed the command, but {too_few}")
        return reply

    def _replicated(
        self, calls: Sequence[Call], budget: float
    ) -> Steps[tuple[list[Any], _TooFew | None]]:
        """The replies, and why they do not count, if they do not."""
        counts = isinstance(self._replicas, str)
        if counts and not self._seen_replicas:
            self._see((yield self._channel.send, ROLE, budget))
        commands = [call.packed() for call in calls]
        while True:
            wanted = self._wanted()
            asked = [*commands, ROLE] if counts else commands
            wait = wanted, self._wait_ms(budget)
            *replies, acknowledged = yield self._channel.send_all, asked, budget + GRAIN, wait
            if isinstance(acknowledged, ServerError):
                raise self._refused(acknowledged)
            if type(acknowledged) is not int:
                raise self._unexpected_reply(acknowledged)
            if counts:
                self._see(replies.pop())
            if any(map(is_unknown_script, replies)):
                sources = [call.with_source() for call in calls]
                if commands == sources:
                    return replies, None
                commands = sources
                continue
            if acknowledged >= self._wanted():
                return replies, None
            if acknowledged < wanted:
                return replies, _TooFew(acknowledged, self._wanted())
            # There are more replicas than we knew: send the commands again, which is harmless, and
            # wait for all. A bare WAIT covers no write if the connection is another one by then.

    def _wait_ms(self, budget: float) -> int:
        """The time-out of a WAIT. On a connection that tasks share, the commands behind a WAIT wait
        with it, and perhaps for the next one: both together must fit into the smallest budget."""
        if self.suspends:
            self._shortest = min(self._shortest, budget)
            budget = self._shortest / 2
        return max(round(budget * PART * 1000), 1)

    def _wanted(self) -> int:
        if isinstance(self._replicas, int):
            return self._replicas
        most = max(self._seen_replicas, self._known(), 1)
        return most if self._replicas == "all" else (most + 1) // 2

    def _see(self, role: Any) -> None:
        if isinstance(role, ServerError):
            raise self._refused(role)
        with self._parsing(role):
            if role[0] == b"master":
                self._seen_replicas = max(self._seen_replicas, len(role[2]))

    def _not_replicated(self, claims: Sequence[Claim], too_few: _TooFew) -> NotReplicated:
        names = ", ".join(shown(claim.name) for claim in claims[:3])
        more = f" and {len(claims) - 3} more" if len(claims) > 3 else ""
        return NotReplicated(
            f"{names}{more}: {self._where} granted the claim, but {too_few}; it was withdrawn",
            name=bare(claims[0].name),
            acknowledged=too_few.acknowledged,
            wanted=too_few.wanted,
        )


def _is_list(reply: Any) -> bool:
    return type(reply) is list


def _grants(reply: Any) -> bool:
    """Does the reply to a claim, or to one of a batch, grant anything?"""
    return type(reply) is bytes or (
        _is_list(reply) and (reply[:1] == [1] or any(map(_grants, reply)))
    )


# The scripts after which replicas are waited for, and which of their replies affect a hold.
_GRANTS: dict[Script, Callable[[Any], bool]] = {
    scripts.CLAIM: _grants,
    scripts.SIMPLE_CLAIM: lambda reply: _is_list(reply) and reply[:1] == [1],
    scripts.TRANSFER: lambda reply: _is_list(reply) and reply[:1] == [1],
    scripts.RESIZE: lambda reply: type(reply) is int,
}

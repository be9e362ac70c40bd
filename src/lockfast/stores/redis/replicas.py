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
from lockfast.core.ports import Wake
from lockfast.errors import BackendError, ConfigurationError, NotReplicated
from lockfast.model import Busy, Capabilities, Claim, Differs, Gone, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.backend import RedisBackend, Transport
from lockfast.stores.redis.commands import planned
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.replies import GONE
from lockfast.stores.redis.scripts import Script, packed

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


class ReplicatedBackend(RedisBackend):
    """A backend that waits for replicas. ``known`` returns how many Sentinel knows."""

    def __init__(
        self,
        transport: Transport,
        where: str,
        replicas: int | str,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(transport, where)
        # The short paths do not wait for replicas.
        if transport.suspends:
            del self.claim_soon
        else:
            del self.claim_now
        self._replicas = replicas
        self._known = known
        self._seen = 0
        self._shortest = float("inf")  # the smallest budget so far
        self._capabilities = replace(super().capabilities, wakes="notify", replicas=replicas)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ---- the verbs ---------------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        if not claim.layout and claim.take <= claim.slots:
            return (await self.claim_batch([claim], budget))[0]
        try:
            return await super().claim(claim, budget)
        except _TooFew as too_few:
            raise self._not_replicated([claim], too_few) from None

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        try:
            return await super().claim_batch(claims, budget)
        except _TooFew as too_few:
            raise self._not_replicated(claims, too_few) from None

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        plan = planned(claims, fences, self.wake_address_of)
        replies, too_few = await self._replicated(plan.commands, budget)
        if any(_is_unknown_script(reply) for reply in replies):
            await super().renew(claims, fences, budget)  # which sends the scripts to the server
            replies, too_few = await self._replicated(plan.commands, budget)
        answers = await self._renewals(plan, claims, fences, replies, budget)
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

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        return await super().watch(claim, lambda _grant: wake(None), since)

    # ---- waiting for replicas ----------------------------------------------------------------

    async def _run(
        self, script: Script, payload: bytes, count: int, budget: float, name: str = ""
    ) -> Any:
        grants = _GRANTS.get(script)
        if grants is None:
            return await super()._run(script, payload, count, budget, name)
        for head in (script.head(count), script.head_with_source(count)):
            (reply,), too_few = await self._replicated([head + payload], budget)
            if not _is_unknown_script(reply):
                break
        if isinstance(reply, ServerError):
            raise self._refused(reply, name, script.source)
        if too_few is not None and grants(reply):
            if script in (scripts.CLAIM, scripts.SIMPLE_CLAIM):
                raise too_few
            raise BackendError(f"{self._where} executed the command, but {too_few}")
        return reply

    async def _replicated(
        self, commands: Sequence[bytes], budget: float
    ) -> tuple[list[Any], _TooFew | None]:
        """The replies, and why they do not count, if they do not."""
        counts = isinstance(self._replicas, str)
        if counts and not self._seen:
            self._see(await self._call(ROLE, budget))
        asked = [*commands, ROLE] if counts else list(commands)
        while True:
            wanted = self._wanted()
            *replies, acknowledged = await self._transport.calls_replicated(
                asked, wanted, self._wait_ms(budget), budget + GRAIN
            )
            if isinstance(acknowledged, ServerError):
                raise self._refused(acknowledged)
            if type(acknowledged) is not int:
                raise self._unexpected_reply(acknowledged)
            if counts:
                self._see(replies.pop())
            if acknowledged >= self._wanted():
                return replies, None
            if acknowledged < wanted:
                return replies, _TooFew(acknowledged, self._wanted())
            # There are more replicas than we knew: send the commands again, which is harmless, and
            # wait for all. A bare WAIT covers no write if the connection is another one by then.

    def _wait_ms(self, budget: float) -> int:
        """The time-out of a WAIT. On a connection that tasks share, the commands behind a WAIT wait
        with it, and perhaps for the next one: both together must fit into the smallest budget."""
        if self._transport.suspends:
            self._shortest = min(self._shortest, budget)
            budget = self._shortest / 2
        return max(round(budget * PART * 1000), 1)

    def _wanted(self) -> int:
        if isinstance(self._replicas, int):
            return self._replicas
        most = max(self._seen, self._known(), 1)
        return most if self._replicas == "all" else (most + 1) // 2

    def _see(self, role: Any) -> None:
        if isinstance(role, ServerError):
            raise self._refused(role)
        with self._parsing(role):
            if role[0] == b"master":
                self._seen = max(self._seen, len(role[2]))

    def _not_replicated(self, claims: Sequence[Claim], too_few: _TooFew) -> NotReplicated:
        names = ", ".join(shown(claim.name) for claim in claims[:3])
        more = f" and {len(claims) - 3} more" if len(claims) > 3 else ""
        return NotReplicated(
            f"{names}{more}: {self._where} granted the claim, but {too_few}; it was withdrawn",
            name=bare(claims[0].name),
            acknowledged=too_few.acknowledged,
            wanted=too_few.wanted,
        )


def _is_unknown_script(reply: Any) -> bool:
    return isinstance(reply, ServerError) and str(reply).startswith("NOSCRIPT")


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

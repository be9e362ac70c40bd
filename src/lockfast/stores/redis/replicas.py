"""A claim counts only when replicas have it, too: `replicas=` of `connect`.

Redis answers before its replicas know. If one of them takes over just then, a claim that was
granted is forgotten, and granted again to another. So where replicas are counted, every command
that makes or prolongs a belief is followed by WAIT, in the same write and on the same connection
(WAIT is about what its own connection wrote), and what too few acknowledged is not believed:

- a claim that was granted: `NotReplicated`; whoever asked leaves, which undoes it;
- a renewal: its outcome is unknown, as if the answer had been lost. It is tried again until the
  deadline, and belief does not grow;
- a grant by a bell or by a refresh: it is asked for once more, as a claim. A bell comes from the
  release of another, and nobody waited for replicas there: it is only a ring.

What ends a hold is not waited for: if it is forgotten, a name is free later, not sooner. And what
was written before is acknowledged with what is written after it, so a hold that is acknowledged
knows of all that made way for it.

How many: a number; ``majority``: so many that with the master they are more than half of all, so
that of two sides of a partition at most one can grant; ``all``. All are those that the master
knows, or has known since we are connected, and those that Sentinel knows: one that is away is
counted, or a master that is cut off would soon be in the majority of one.
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
WORDS = ("majority", "all")
ROLE = packed("ROLE")
# WAIT may take so much of the budget: the answers need some of it, too.
PART = 0.6
# Redis looks ten times a second whose WAIT is over: so much longer than we said it may take to tell
# us that too few have acknowledged.
GRAIN = 0.12


def checked_replicas(said: object) -> int | str:
    """What ``replicas=`` may be, as a keyword or in a URL."""
    number = int(said) if isinstance(said, str) and said.isdecimal() else said
    if number in WORDS and isinstance(number, str):
        return number
    if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= MOST_REPLICAS:
        return number
    raise ConfigurationError(
        f"replicas={said!r}: how many must acknowledge a claim, a number from 1 on, 'majority' or "
        "'all'; leave it away to wait for none"
    )


class _Lacking(Exception):
    """Granted, but too few have acknowledged it."""

    def __init__(self, acknowledged: int, wanted: int) -> None:
        self.acknowledged, self.wanted = acknowledged, wanted

    def __str__(self) -> str:
        return f"only {self.acknowledged} replicas acknowledged it in time, of {self.wanted}"


class ReplicatedBackend(RedisBackend):
    """``known`` tells how many replicas somebody else knows of (Sentinel)."""

    def __init__(
        self,
        transport: Transport,
        where: str,
        replicas: int | str,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(transport, where)
        # They wait for nobody.
        if transport.suspends:
            del self.claim_soon
        else:
            del self.claim_now
        self._replicas = replicas
        self._known = known
        self._seen = 0
        self._shortest = float("inf")  # budget so far
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
        except _Lacking as lacking:
            raise self._not_replicated([claim], lacking) from None

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        try:
            return await super().claim_batch(claims, budget)
        except _Lacking as lacking:
            raise self._not_replicated(claims, lacking) from None

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        plan = planned(claims, fences, self.wake_address_of)
        replies, lacking = await self._settled(plan.commands, budget)
        if any(_is_unknown_script(reply) for reply in replies):
            await super().renew(claims, fences, budget)  # which teaches the server its scripts
            replies, lacking = await self._settled(plan.commands, budget)
        answers = await self._renewals(plan, claims, fences, replies, budget)
        if lacking is None:
            return answers
        unknown = BackendError(f"{self._where} renewed, but {lacking}")
        # A place that was granted is asked for as a claim. (A plain lock has no fence when held.)
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

    # ---- the waiting -------------------------------------------------------------------------

    async def _run(
        self, script: Script, said: bytes, words: int, budget: float, name: str = ""
    ) -> Any:
        grants = _GRANTS.get(script)
        if grants is None:
            return await super()._run(script, said, words, budget, name)
        for head in (script.head(words), script.head_in_full(words)):
            (reply,), lacking = await self._settled([head + said], budget)
            if not _is_unknown_script(reply):
                break
        if isinstance(reply, ServerError):
            raise self._refused(reply, name, script.source)
        if lacking is not None and grants(reply):
            if script in (scripts.CLAIM, scripts.SIMPLE_CLAIM):
                raise lacking
            raise BackendError(f"{self._where} did it, but {lacking}")
        return reply

    async def _settled(
        self, commands: Sequence[bytes], budget: float
    ) -> tuple[list[Any], _Lacking | None]:
        """The answers, and what is lacking for them to count."""
        counts = isinstance(self._replicas, str)
        if counts and not self._seen:
            self._see(await self._call(ROLE, budget))
        asked = [*commands, ROLE] if counts else list(commands)
        while True:
            wanted = self._wanted()
            *replies, acknowledged = await self._transport.settled(
                asked, wanted, self._wait_ms(budget), budget + GRAIN
            )
            if isinstance(acknowledged, ServerError):
                raise self._refused(acknowledged)
            if type(acknowledged) is not int:
                raise self._senseless(acknowledged)
            if counts:
                self._see(replies.pop())
            if acknowledged >= self._wanted():
                return replies, None
            if acknowledged < wanted:
                return replies, _Lacking(acknowledged, self._wanted())
            # There are more replicas than we knew: say it again (it is harmless), and wait for
            # them. WAIT alone would be about nothing, were the connection another one by then.

    def _wait_ms(self, budget: float) -> int:
        """On a connection that tasks share, whatever comes behind a WAIT waits with it, and perhaps
        for the next one, too: so two may not take longer than the shortest budget allows."""
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
        with self._sense(role):
            if role[0] == b"master":
                self._seen = max(self._seen, len(role[2]))

    def _not_replicated(self, claims: Sequence[Claim], lacking: _Lacking) -> NotReplicated:
        names = ", ".join(shown(claim.name) for claim in claims[:3])
        more = f" and {len(claims) - 3} more" if len(claims) > 3 else ""
        return NotReplicated(
            f"{names}{more}: {self._where} granted it, but {lacking}: it was given back",
            name=bare(claims[0].name),
            acknowledged=lacking.acknowledged,
            wanted=lacking.wanted,
        )


def _is_unknown_script(reply: Any) -> bool:
    return isinstance(reply, ServerError) and str(reply).startswith("NOSCRIPT")


def _is_list(reply: Any) -> bool:
    return type(reply) is list


def _grants(reply: Any) -> bool:
    """The answer to a claim; or to one of many."""
    return type(reply) is bytes or (
        _is_list(reply) and (reply[:1] == [1] or any(map(_grants, reply)))
    )


# After which scripts replicas are waited for, and whether the answer is one that makes a belief.
_GRANTS: dict[Script, Callable[[Any], bool]] = {
    scripts.CLAIM: _grants,
    scripts.SIMPLE_CLAIM: lambda reply: _is_list(reply) and reply[:1] == [1],
    scripts.TRANSFER: lambda reply: _is_list(reply) and reply[:1] == [1],
    scripts.RESIZE: lambda reply: type(reply) is int,
}

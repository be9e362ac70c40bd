"""Multi-locks: all of the names, or none.

Every caller acquires the names in the same order, so that no two callers can each hold what the
other waits for. As many names as are free are acquired in one request; the caller waits in the
queue of the first that is not, while it holds those before it, and then continues behind it.

This survives a lost reply (the claims are sent again with the same ids), time-out, cancellation and
Ctrl-C at any instant (everything is released, shielded), and the loss of one hold while waiting for
another (everything is released, and `HoldLost` raised).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lockfast.core.acquire import Begun
from lockfast.core.claim import GRACE, LEAST_BUDGET
from lockfast.core.keeper import MAX_BUDGET, budget_for
from lockfast.core.ledger import HELD, Held
from lockfast.core.locks import Core
from lockfast.core.release import LARGEST_BATCH
from lockfast.core.terms import FOREVER, Terms
from lockfast.errors import LockfastError
from lockfast.model import Claim, Granted, Snapshot


class Part(NamedTuple):
    """One of the names, and the client that acquires it."""

    core: Core
    terms: Terms


class Refused(NamedTuple):
    """The name that was not acquired in time, and a snapshot of its holders, if known."""

    part: Part
    outcome: Snapshot | None


# The client, the hold, and how many slots this entry asked for: a writer may re-enter as a reader.
Entry = tuple[Core, Held, int]


def in_order(parts: Iterable[tuple[str, Part]]) -> list[Part]:
    """Sort by name, then by the store's address, without duplicates. Of a read and a write lock of
    one name the writer stays: it covers both."""
    known: dict[tuple[str, str], Part] = {}
    for url, part in parts:
        key = (part.terms.name, url)
        if key not in known or part.terms.take > known[key].terms.take:
            known[key] = part
    return [known[key] for key in sorted(known)]


async def attempt_all(parts: Sequence[Part], timeout: float | None) -> list[Held] | Refused:
    """Acquire a hold of each part, in the order of ``parts`` (that of `in_order`); or return the
    part that was not acquired."""
    runtime = parts[0].core.runtime
    until = FOREVER if timeout is None else runtime.now() + timeout
    held: list[Held | None] = [None] * len(parts)
    try:
        while None in held:
            rest = None if timeout is None else max(until - runtime.now(), 0.0)
            refused = await _go_on(parts, held.index(None), held, rest)
            if refused is not None:
                got = _got(parts, held)
                held[:] = [None] * len(parts)  # or an interrupt now would release them twice
                await release_all(got)
                return refused
        got = _got(parts, held)
        now = runtime.now()
        for core, one, _ in got:
            if one.state is not HELD or now >= one.deadline:
                core.check(one)  # the first may be lost by the time the last is acquired
        return [one for _, one, _ in got]
    except GeneratorExit:
        raise
    except BaseException:
        limit = budget_for(parts[0].terms.lease)
        await runtime.shielded(release_all(_got(parts, held)), limit)
        raise


def _got(parts: Sequence[Part], held: Sequence[Held | None]) -> list[Entry]:
    pairs = zip(parts, held, strict=True)
    return [(part.core, one, part.terms.take) for part, one in pairs if one is not None]


async def _go_on(
    parts: Sequence[Part], first: int, held: list[Held | None], timeout: float | None
) -> Refused | None:
    """Acquire the free names, from ``first`` on as far as one request reaches, then wait for the
    first one that is taken; add the holds to ``held``. Re-enter names that this owner holds."""
    core = parts[first].core
    until = FOREVER if timeout is None else core.runtime.now() + timeout
    begun: list[tuple[int, Begun]] = []
    asked: list[Claim] = []
    answered = 0
    try:
        for at in range(first, min(first + LARGEST_BATCH, len(parts))):
            terms = parts[at].terms
            if parts[at].core is not core or (terms.layout and at > first):
                break
            if held[at] is None:
                one = core.begin(terms, timeout)
                if isinstance(one, Held):
                    held[at] = one
                else:
                    begun.append((at, one))
                    asked.append(one[0])
            if terms.layout:
                break  # locks of another layout are acquired one by one
        if not begun:
            return None
        now = core.runtime.now()
        sent, now, answers = await core.claim_until_known(asked, until, now)
        for (at, one), answer in zip(begun, answers, strict=False):
            terms = parts[at].terms
            if isinstance(answer, Granted):
                held[at] = core.enter(terms, one, sent, now, answer, False)
                answered += 1
                continue
            answered += 1  # `go_on` withdraws this one itself
            outcome = await core.go_on(terms, timeout, one, [answer])
            if not isinstance(outcome, Held):
                return Refused(parts[at], outcome)
            held[at] = outcome
        return None
    except GeneratorExit:
        raise
    except BaseException as error:
        limit = min(budget_for(parts[first].terms.lease), until + GRACE - core.runtime.now())
        await core.runtime.shielded(_leave_all(core, asked[answered:], limit), max(limit, 0.0))
        if core.ledger.listeners is not None:
            now = core.runtime.now()
            for at, (claim, _, began) in begun[answered:]:
                template = parts[at].terms.template
                core.ledger.listeners.failed(claim, template, now - began, error)
        raise
    finally:
        core.ledger.asking.difference_update([one[0].id for _, one in begun])


async def _leave_all(core: Core, claims: Sequence[Claim], limit: float) -> None:
    """Withdraw unwanted claims at the store. When it does not answer, the keeper continues."""
    until = core.runtime.now() + limit
    for claim in claims:
        core.discard(claim)
    answers = True
    for claim in claims:
        rest = min(budget_for(claim.lease), until - core.runtime.now())
        if not answers or rest <= LEAST_BUDGET:
            core.keeper.keep_withdrawing(claim)
        elif await core.withdraw(claim, rest) is None:
            answers = False


async def renew_all(holds: Iterable[tuple[Core, Held]], lease: float | None) -> None:
    """Extend each hold; raise for the first that cannot be extended."""
    for core, held in holds:
        await core.renew(held, lease)


async def release_all(acquired: Iterable[Entry]) -> list[LockfastError]:
    """Leave one entry of each hold, the last first, and return the errors. If cancelled or
    interrupted, all of them are released nevertheless. A retry after an unknown outcome only
    releases the holds whose release is unknown."""
    entries = list(acquired)[::-1]
    if any(held.unknown for _, held, _ in entries):
        entries = [entry for entry in entries if entry[1].unknown]
    groups = [(core, list(some)) for core, some in itertools.groupby(entries, lambda one: one[0])]
    errors: list[LockfastError] = []
    try:
        while groups:
            core, some = groups.pop(0)
            errors += await core.release_batch([(held, take) for _, held, take in some])
    except GeneratorExit:
        raise
    except BaseException:
        rest = [entry for _, some in reversed(groups) for entry in reversed(some)]
        if rest:
            await rest[0][0].runtime.shielded(release_all(rest), MAX_BUDGET)
        raise
    return errors

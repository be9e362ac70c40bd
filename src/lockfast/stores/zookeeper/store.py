"""The verbs on ZooKeeper: enqueue a node, list the nodes before it, watch the one that blocks it.

    claim     Create a node and list the name, in one round trip. If all nodes before ours fit
              beside it, the claim is granted. Otherwise watch the node that blocks it (see `nodes`)
              and answer Busy. A repeated claim only lists.
    release   Delete the node. The server notifies the client that watches it.
    renew     Check that the node exists in this session: the session is alive, and its time-out
              starts again. A lease shorter than the session is written again (see `nodes`).

A fired watch carries no grant: the waiter asks again. So a hand-over costs one delete and one list,
however many wait, and waiting costs nothing.

Why no orphan is left: a session is answered in order. A request that was sent and timed out is
executed before any later one, so a later list shows its node. If the connection broke in between,
the next server refuses what the old one still forwards, and `queue.find_own_nodes` brings the new
server up to date. Only then is another node created.

Each verb is a generator that yields batches of requests and receives their replies, for both APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lockfast.core.law import REFRESH
from lockfast.core.ports import Answer, Reply, Signal, Store, Wake
from lockfast.errors import BackendError, Unsupported
from lockfast.model import LATCH, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.steps import Steps, perform, perform_soon
from lockfast.stores.zookeeper import holds, latches
from lockfast.stores.zookeeper import requests as zk
from lockfast.stores.zookeeper.nodes import HOLDS, TIMED
from lockfast.stores.zookeeper.queue import (
    answer_claim,
    enqueue,
    find_own_nodes,
    is_taken,
    remove,
    rewrite,
)
from lockfast.stores.zookeeper.registry import QueueEntry, Registry
from lockfast.stores.zookeeper.session import Exchange

T = TypeVar("T")
GONE = Gone()
# A write is forced to the disks of a majority. The budget of a release or a renewal is a part of
# the lease: of a very short one, so small that a busy server would count as unreachable.
MIN_BUDGET = 0.15
IN_KAZOO_LAYOUT = Capabilities(store="zookeeper", across="network", overtakes=False, wakes="notify")
CAPABILITIES = replace(IN_KAZOO_LAYOUT, survives_restart=True, layouts={"kazoo": IN_KAZOO_LAYOUT})


class ZooKeeperStore(Store):
    """The store of one session for one API."""

    in_session = True

    def __init__(
        self,
        registry: Registry,
        signal: Signal,
        close: Callable[[], None],
        *,
        suspends: bool,
    ) -> None:
        self.suspends = suspends
        self._registry = registry
        self._signal = signal
        self._close = close

    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, session=self._registry.session.timeout)

    def _run(self, steps: Steps[T], budget: float) -> Reply[T]:
        exchange = Exchange(self._registry.session, budget)
        if self.suspends:
            return perform_soon(steps, exchange.ask_soon)
        return perform(steps, exchange.ask)

    # ---- claims ------------------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[Answer]]:
        return self._run(self._claim(claims), budget)

    def release(self, claims: Sequence[Claim], budget: float) -> Reply[Sequence[bool]]:
        return self._run(self._release(claims), max(budget, MIN_BUDGET))

    def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Reply[Sequence[Granted | Busy | Gone | BackendError]]:
        return self._run(self._renew(claims, fences), max(budget, MIN_BUDGET))

    def leave(self, claim: Claim, budget: float) -> Reply[Snapshot]:
        return self._run(self._leave(claim), budget)

    def _claim(self, claims: Sequence[Claim]) -> Steps[list[Answer]]:
        """Claim all names in one round trip. If one is not free, the claims behind it are withdrawn
        before the answer: no caller may hold a later name while it waits for an earlier one."""
        registry, first = self._registry, claims[0]
        if first.take > first.slots:
            return [Differs(first.slots)]
        if first.slots >= LATCH:
            return [(yield from latches.claim(registry, first))]
        if not first.wait and (yield from is_taken(registry, first)):
            return [Busy(REFRESH, 0)]
        claims = claims[: next((n for n, one in enumerate(claims) if one.take > one.slots), None)]
        entries = [registry.entry(claim) for claim in claims]
        asked_at = registry.clock()
        listed = yield from enqueue(registry, claims, entries)
        answers: list[Answer] = []
        for claim, entry, seen in zip(claims, entries, listed, strict=True):
            answer = yield from answer_claim(registry, claim, entry, *seen)
            answers.append(answer)
            if isinstance(answer, Granted):
                entry.confirmed = asked_at
                continue
            unwanted = entries[len(answers) :]
            if isinstance(answer, Differs) or not claim.wait:
                registry.mark_contended(entry.parent)
                unwanted.append(entry)
            yield from remove(registry, unwanted)
            break
        return answers

    def _release(self, claims: Sequence[Claim]) -> Steps[list[bool]]:
        registry = self._registry
        entries = [registry.entries.get(claim.id) for claim in claims]
        there = iter((yield from remove(registry, [entry for entry in entries if entry])))
        answers = []
        for claim, entry in zip(claims, entries, strict=True):
            if entry is not None:
                answers.append(next(there))
            elif claim.layout:
                answers.append(False)
            else:
                answers.append((yield from holds.release_detached(registry, claim)))
        return answers

    def _renew(self, claims: Sequence[Claim], fences: Sequence[int]) -> Steps[list[Any]]:
        """Renew all holds in one round trip. Waiters ask again only if no watch would wake them."""
        registry = self._registry
        asked_at = registry.clock()
        answers: list[Any] = [GONE] * len(claims)
        requests: list[zk.Request] = []
        asked: list[tuple[int, QueueEntry, str]] = []
        entries = [registry.entries.get(claim.id) for claim in claims]
        # Not of waiters: the entry of a claim under way belongs to its caller.
        unsure = [
            entry
            for entry, fence in zip(entries, fences, strict=True)
            if fence and entry is not None and (entry.uncertain or entry.in_flight)
        ]
        if unsure:
            yield from find_own_nodes(registry, unsure)
        for number, (claim, entry) in enumerate(zip(claims, entries, strict=True)):
            if not fences[number]:
                answers[number] = self._refresh(entry)
            elif entry is None:
                answers[number] = yield from holds.renew_detached(registry, claim)
            elif entry.name and registry.is_ours(entry):
                asked.append((number, entry, entry.name))
                requests.append(_renewal(claim, entry))
        replies = yield requests
        for (number, entry, name), reply in zip(asked, replies, strict=True):
            if reply not in (None, zk.Refusal.NO_NODE) and reply.ephemeralOwner == entry.owner:
                entry.confirmed = asked_at
                lease = registry.valid_for(claims[number].lease)
                answers[number] = Granted(entry.fence, lease)
            elif entry.uncertain or entry.name != name:
                # Another node replaced it meanwhile. The next renewal covers that one.
                raise BackendError(
                    f"{registry.session.where}: the hold on {claims[number].name!r} changed while "
                    "it was renewed"
                )
        return answers

    def _refresh(self, entry: QueueEntry | None) -> Busy | Gone:
        registry = self._registry
        if entry is None or not registry.is_ours(entry) or not entry.name:
            return GONE
        time_left = entry.recheck_at - registry.clock()
        if entry.armed and time_left > 0 and registry.session.connected:
            return Busy(min(time_left, REFRESH), 0)
        # The waiter has to claim again: only `claim` may create a queue entry.
        return GONE

    def _leave(self, claim: Claim) -> Steps[Snapshot]:
        registry = self._registry
        entry = registry.entries.get(claim.id)
        crossed = False
        if entry is not None and claim.slots >= LATCH:
            crossed = yield from latches.leave(registry, claim, entry)
        elif entry is not None:
            crossed = entry.granted
            yield from remove(registry, [entry])
        elif not claim.layout:
            # A transfer whose answer was lost may have detached it.
            yield from holds.release_detached(registry, claim)
        seen = yield from holds.inspect(registry, claim.name, claim.layout)
        return replace(seen, crossed=crossed)

    # ---- changes -----------------------------------------------------------------------------

    def transfer(self, claim: Claim, attached: bool, budget: float) -> Reply[Granted | Gone]:
        if claim.layout:
            raise Unsupported(
                f"the lock {claim.name!r} has layout='kazoo' and cannot be detached: kazoo has no "
                "locks without a session"
            )
        change = holds.attach if attached else holds.detach
        return self._run(change(self._registry, claim), max(budget, MIN_BUDGET))

    def shrink(self, claim: Claim, budget: float) -> Reply[Granted | Gone]:
        return self._run(holds.shrink(self._registry, claim), budget)

    def resize(self, name: str, expected: int, slots: int, budget: float) -> Reply[int]:
        return self._run(holds.resize(self._registry, name, expected, slots), budget)

    # ---- wake-ups ----------------------------------------------------------------------------

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        """Register the waiter. `claim` has set the watch already, and an early wake-up is kept."""
        self._registry.wakeups.watch(claim.id, wake)
        return _nothing_missed() if self.suspends else False

    def unwatch(self, claim: Claim) -> None:
        self._registry.wakeups.unwatch(claim.id)

    def listen(self, timeout: float | None) -> Reply[None]:
        """Sweep unused parents, and sleep: watches wake their waiters on the session's thread."""
        self._registry.sweep()
        soon = self._registry.next_sweep()
        return self._sleep(soon if timeout is None else min(timeout, soon))

    async def _sleep(self, seconds: float) -> None:
        await self._signal.wait(seconds)

    def interrupt(self) -> None:
        self._signal.set()

    def on_uncertain(self, callback: Callable[[], None]) -> None:
        self._registry.on_uncertain(callback)

    # ---- for operators -----------------------------------------------------------------------

    def inspect(self, name: str, budget: float, layout: str = "") -> Reply[Snapshot]:
        return self._run(holds.inspect(self._registry, name, layout), budget)

    def names(self, prefix: str, budget: float) -> Reply[list[str]]:
        return self._run(holds.names(self._registry, prefix), budget)

    def break_hold(self, name: str, fence: int, budget: float) -> Reply[bool]:
        return self._run(holds.break_hold(self._registry, name, fence), budget)

    def close(self) -> None:
        self._close()


async def _nothing_missed() -> bool:
    return False


def _renewal(claim: Claim, entry: QueueEntry) -> zk.Request:
    """Rewrite a lease that other clients enforce; else any request keeps the session alive."""
    return rewrite(claim, entry, HOLDS) if entry.lifetime == TIMED else zk.Exists(entry.path)

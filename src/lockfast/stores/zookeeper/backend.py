"""The verbs on ZooKeeper: enqueue a node, list the nodes before it, watch the one that blocks it.

    claim     Create a node and list the name, in one round trip. If all nodes before ours fit
              beside it, the claim is granted. Otherwise watch the node that blocks it (see `order`)
              and answer Busy. A repeated claim only lists.
    release   Delete the node. The server notifies the client that watches it.
    renew     Check that the node exists in this session: the session is alive, and its time-out
              starts again. A lease shorter than the session is written again (see `nodes`).

A fired watch carries no grant: the waiter asks again. So a hand-over costs one delete and one list,
however many wait, and waiting costs nothing.

Why no orphan is left: a session is answered in order. A request that was sent and timed out is
executed before any later one, so a later list shows its node. If the connection broke in between,
the next server refuses what the old one still forwards, and `Operation.find_own_node` brings the
new server up to date. Only then is another node created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from lockfast.core.law import REFRESH
from lockfast.core.ports import Wake
from lockfast.errors import BackendError, Unsupported
from lockfast.model import LATCH, Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.zookeeper import amend, inspection, kazoo_layout, latches
from lockfast.stores.zookeeper.enqueue import enqueue, enqueue_batch, is_taken
from lockfast.stores.zookeeper.nodes import HOLDS, TIMED, facts_of
from lockfast.stores.zookeeper.operation import Listed, Operation, Transport
from lockfast.stores.zookeeper.registry import QueueEntry, Registry
from lockfast.stores.zookeeper.requests import Delete, Exists, Put, Refusal, Request
from lockfast.stores.zookeeper.waiting import take_or_watch

GONE = Gone()
# A write is forced to the disks of a majority. A budget is a fraction of a lease; of a very short
# lease it would be so small that a server that is merely busy would count as unreachable.
MIN_BUDGET = 0.15


class ZooKeeperBackend:
    """The backend of one session for one API, which the transport determines."""

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        capabilities: Capabilities,
        pause: Callable[[float | None], Awaitable[object]],
        interrupt: Callable[[], None],
        sweep: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._registry = registry
        self.capabilities = capabilities
        self._pause = pause
        self._sweep = sweep
        self.interrupt = interrupt
        self.close = close
        self.on_uncertain = registry.on_uncertain

    def _operation(self, budget: float) -> Operation:
        return Operation(self._transport, self._registry, max(budget, MIN_BUDGET))

    # ---- claim -------------------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        operation = self._operation(budget)
        if claim.layout:
            return await kazoo_layout.claim(operation, claim)
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.slots >= LATCH:
            return await latches.claim(operation, claim)
        if not claim.wait and await is_taken(operation, claim):
            return Busy(REFRESH, 0)
        return await self._claim(operation, claim)

    async def _claim(
        self, operation: Operation, claim: Claim, listed: Listed | None = None
    ) -> Granted | Busy | Differs:
        """Claim; ``listed`` is the list with our node, if that was created just now."""
        asked_at = self._registry.clock()
        entry = self._registry.entry(claim.id, operation.parent(claim.name))
        fresh = True
        if listed is None:
            listed, fresh = await enqueue(operation, claim, entry)
        while True:
            answer = await take_or_watch(operation, claim, entry, listed, fresh)
            if answer is None:  # our node was deleted: others considered it expired
                entry.reset()
                listed, fresh = await enqueue(operation, claim, entry)
                continue
            if isinstance(answer, Listed):
                listed, fresh = answer, False
                continue
            if isinstance(answer, Granted):
                entry.confirmed = asked_at
            elif isinstance(answer, Differs) or not claim.wait:
                self._registry.mark_contended(entry.parent)
                await operation.remove(entry)
            return answer

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """Claim all names in one round trip. If one is not free, the claims behind it are withdrawn
        before the answer: no caller may hold a later name while it waits for an earlier one."""
        if claims[0].layout or any(claim.take > claim.slots for claim in claims):
            return [await self.claim(claims[0], budget)]
        operation = self._operation(budget)
        new = not any(claim.id in self._registry.entries for claim in claims)
        listed: list[Listed | None] = [None] * len(claims)
        if new and len({claim.name for claim in claims}) == len(claims):
            entries = [self._registry.entry(one.id, operation.parent(one.name)) for one in claims]
            listed = await enqueue_batch(operation, claims, entries)
        answers: list[Granted | Busy | Differs] = []
        for claim, one in zip(claims, listed, strict=True):
            answers.append(await self._claim(operation, claim, one))
            if not isinstance(answers[-1], Granted):
                break
        await self._withdraw_rest(operation, claims[len(answers) :])
        return answers

    async def _withdraw_rest(self, operation: Operation, claims: Sequence[Claim]) -> None:
        """Withdraw the claims that the caller no longer makes."""
        entries = [self._registry.entries.get(claim.id) for claim in claims]
        known = [entry for entry in entries if entry is not None and entry.name]
        if known:
            await operation.ask(*(Delete(entry.path) for entry in known))
        for entry in entries:
            if entry is not None:
                self._registry.discard(entry)

    # ---- renewal, by the keeper --------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        """Renew all holds in one round trip. Waiters ask again only if no watch would wake them."""
        operation = self._operation(budget)
        asked_at = self._registry.clock()
        answers: list[Any] = [None] * len(claims)
        requests: list[Request] = []
        asked: list[tuple[int, QueueEntry, str]] = []
        for number, claim in enumerate(claims):
            entry = self._registry.entries.get(claim.id)
            if not fences[number]:
                answers[number] = self._refresh(entry)
                continue
            if entry is not None and (entry.uncertain or entry.in_flight):
                await operation.find_own_node(entry)
            if entry is None:
                answers[number] = await amend.renew_detached(operation, claim)
            elif not entry.name or not self._registry.is_ours(entry):
                answers[number] = GONE
            else:
                asked.append((number, entry, entry.name))
                requests.append(_renewal(claim, entry))
        if requests:
            replies = await operation.ask(*requests)
            for (number, entry, name), reply in zip(asked, replies, strict=True):
                if reply not in (None, Refusal.NO_NODE) and reply.ephemeralOwner == entry.owner:
                    entry.confirmed = asked_at
                    lease = self._registry.valid_for(claims[number].lease)
                    answers[number] = Granted(entry.fence, lease)
                elif entry.uncertain or entry.name != name:
                    # Another node replaced it meanwhile. The next renewal covers that one.
                    raise BackendError(
                        f"{self._registry.session.where}: the hold on {claims[number].name!r} "
                        "changed while it was renewed"
                    )
                else:
                    answers[number] = GONE
        return answers

    def _refresh(self, entry: QueueEntry | None) -> Busy | Gone:
        if entry is None or not self._registry.is_ours(entry) or not entry.name:
            return GONE
        time_left = entry.recheck_at - self._registry.clock()
        if entry.armed and time_left > 0 and self._registry.session.connected:
            return Busy(min(time_left, REFRESH), 0)
        # The waiter has to claim again: only `claim` may create a queue entry.
        return GONE

    # ---- the end of a claim ------------------------------------------------------------------

    async def release(self, claim: Claim, budget: float) -> bool:
        operation = self._operation(budget)
        entry = self._registry.entries.get(claim.id)
        if entry is None:
            return not claim.layout and await amend.release_detached(operation, claim)
        return await operation.remove(entry)

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        operation, is_ours = self._operation(budget), self._registry.is_ours
        known: list[QueueEntry] = []
        for claim in claims:
            entry = self._registry.entries.get(claim.id)
            if entry is None or entry.in_flight or entry.uncertain or not is_ours(entry):
                return [await self.release(claim, budget) for claim in claims]
            known.append(entry)
        answers = await operation.ask(*(Delete(entry.path) for entry in known))
        for entry in known:
            self._registry.discard(entry)
        return [answer is not Refusal.NO_NODE for answer in answers]

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        operation = self._operation(budget)
        entry = self._registry.entries.get(claim.id)
        crossed = False
        if entry is not None and claim.slots >= LATCH:
            crossed = await latches.leave(operation, claim, entry)
        elif entry is not None:
            crossed = entry.granted
            await operation.remove(entry)
        elif not claim.layout:
            # A transfer whose answer was lost may have detached it.
            await amend.release_detached(operation, claim)
        return replace(await self._inspect(operation, claim.name, claim.layout), crossed=crossed)

    # ---- changes -----------------------------------------------------------------------------

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        if claim.layout:
            raise Unsupported(
                f"the lock {claim.name!r} has layout='kazoo' and cannot be detached: kazoo has no "
                "locks without a session"
            )
        operation = self._operation(budget)
        return await (amend.attach if attached else amend.detach)(operation, claim)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return await amend.shrink(self._operation(budget), claim)

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        return await amend.resize(self._operation(budget), name, expected, slots)

    # ---- wake-ups ----------------------------------------------------------------------------

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """Register the waiter. `claim` has set the watch already, and an early wake-up is kept."""
        self._registry.wakeups.watch(claim.id, wake)
        return False

    def unwatch(self, claim: Claim) -> None:
        self._registry.wakeups.unwatch(claim.id)

    async def listen(self, timeout: float | None) -> None:
        """Sweep unused parents, and sleep: watches wake their waiters on the session's thread."""
        self._sweep()
        soon = max(self._registry.next_sweep(), 0.0)
        await self._pause(soon if timeout is None else min(timeout, soon))

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._inspect(self._operation(budget), name, layout)

    async def _inspect(self, operation: Operation, name: str, layout: str) -> Snapshot:
        return await (kazoo_layout.inspect if layout else inspection.inspect)(operation, name)

    async def names(self, prefix: str, budget: float) -> list[str]:
        return await inspection.names(self._operation(budget), prefix)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        return await inspection.break_hold(self._operation(budget), name, fence)


def _renewal(claim: Claim, entry: QueueEntry) -> Request:
    """Rewrite a lease that other clients enforce; else any request keeps the session alive."""
    if entry.lifetime == TIMED:
        return Put(entry.path, facts_of(claim, HOLDS, entry.fence, entry.since).encoded())
    return Exists(entry.path)

"""The verbs on a Redis Cluster. Each goes to the node that serves its name; a batch goes to the
nodes of its names, in one write each.

A name is as safe as on a single server: all its keys are in one slot, and one master serves a slot.
A batch is not atomic across names: if a node is unavailable the batch is done in part, and each
claim has its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.model import Busy, Capabilities, Claim, Differs, Gone, Granted, Snapshot
from lockfast.stores.redis import simple_layout
from lockfast.stores.redis.backend import CAPABILITIES
from lockfast.stores.redis.errors import Redirected, Unreachable, Unsettled
from lockfast.stores.redis_cluster.listeners import Listeners
from lockfast.stores.redis_cluster.node import NodeBackend
from lockfast.stores.redis_cluster.routing import Router, Verb, with_reason
from lockfast.stores.redis_cluster.slots import PATIENCE, slot_of, slot_of_key

# Attempts to send a batch by the map before its claims are routed one by one.
PASSES = 2
# Errors after which another node, or the same one a little later, may answer.
UNSETTLED = (Redirected, Unsettled, Unreachable)


class ClusterBackend:
    """One cluster for one API. ``listens``: its keeper reads the listeners."""

    def __init__(
        self, router: Router, listeners: Listeners, now: Callable[[], float], *, listens: bool
    ) -> None:
        self._router = router
        self._slots = router.slots
        self.listeners = listeners
        self._now = now
        self._listens = listens
        self.interrupt = listeners.interrupt
        if listens:
            self.claim_now = self._claim_now
            self.release_now = self._release_now

    def share_listener_of(self, keeper_backend: ClusterBackend) -> None:
        """Receive wake-ups through the keeper's listeners. The keeper of tasks is a thread."""
        self.listeners = keeper_backend.listeners
        self.interrupt = self.listeners.interrupt

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _ask(
        self,
        name: str,
        layout: str,
        verb: Verb[Any],
        budget: float,
        reason: BackendError | None = None,
    ) -> Any:
        return await self._router.ask(_slot(name, layout), verb, budget, reason=reason)

    # ---- claim and release -------------------------------------------------------------------

    def _claim_now(self, claim: Claim, budget: float) -> Granted | Busy | Differs | None:
        """Claim without suspending, if the map knows the node. None if the node does not serve the
        name any more; after a failure too, `claim` asks again, with redirections and refreshes."""
        node = self._router.nodes.get(self._slots.owners[slot_of(claim.name)])
        return None if node is None else node[0].claim_at_once(claim, min(budget, PATIENCE))

    def _release_now(self, claim: Claim, budget: float) -> bool | None:
        node = self._router.nodes.get(self._slots.owners[slot_of(claim.name)])
        return None if node is None else node[0].release_at_once(claim, min(budget, PATIENCE))

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        """Ask the node that the map names, which mostly suffices; else have the claim routed."""
        began, endpoint = self._now(), self._slots.owners[slot_of(claim.name)]
        node = self._router.nodes.get(endpoint)
        reason: BackendError | None = None
        if node is not None and not claim.layout:
            try:
                return await node[0].claim(claim, min(budget, PATIENCE))
            except UNSETTLED as error:
                reason = error
                if isinstance(error, Redirected):
                    self._router.follow(error, endpoint)
                budget = max(began + budget - self._now(), 0.001)
        answer: Granted | Busy | Differs = await self._ask(
            claim.name, claim.layout, lambda node, rest: node.claim(claim, rest), budget, reason
        )
        return answer

    async def release(self, claim: Claim, budget: float) -> bool:
        began, endpoint = self._now(), self._slots.owners[slot_of(claim.name)]
        node = self._router.nodes.get(endpoint)
        reason: BackendError | None = None
        if node is not None and not claim.layout:
            try:
                return await node[0].release(claim, min(budget, PATIENCE))
            except Unreachable:
                await self._router.mark_unreachable(endpoint, began, began + budget)
                raise
            except (Redirected, Unsettled) as error:
                reason = error
                if isinstance(error, Redirected):
                    self._router.follow(error, endpoint)
                budget = max(began + budget - self._now(), 0.001)
        slot = _slot(claim.name, claim.layout)
        return await self._router.ask(
            slot, lambda node, rest: node.release(claim, rest), budget, once=True, reason=reason
        )

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """Claim all at once, in one write per node: mostly all names are free. If one is not, the
        claims after it are withdrawn before the caller waits for it: a caller that holds later
        names while it waits for an earlier one could deadlock."""
        if len(claims) == 1 or claims[0].layout:
            return [await self.claim(claims[0], budget)]
        until = self._now() + budget
        answers = await self._in_batches(claims, NodeBackend.claim_each, self.claim, until)
        for number, answer in enumerate(answers):
            if isinstance(answer, BackendError):
                raise answer
            if not isinstance(answer, Granted):
                await self._leave_each(claims[number + 1 :], until)
                return answers[: number + 1]
        return answers

    async def _leave_each(self, claims: Sequence[Claim], until: float) -> None:
        answers = await self._in_batches(claims, NodeBackend.leave_each, self.leave, until)
        for answer in answers:
            if isinstance(answer, BackendError):
                raise answer

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        if len(claims) == 1 or any(claim.layout for claim in claims):
            return [await self.release(claim, budget) for claim in claims]
        until = self._now() + budget
        answers = await self._in_batches(
            claims, NodeBackend.release_each, self.release, until, once=True
        )
        for answer in answers:
            if isinstance(answer, BackendError):
                raise answer
        return answers

    async def _in_batches(
        self,
        claims: Sequence[Claim],
        batch_verb: Any,
        single_verb: Any,
        until: float,
        *,
        once: bool = False,
    ) -> list[Any]:
        """Run ``batch_verb`` at every node, then ``single_verb`` for each claim that was
        redirected. A claim that failed has its error as the answer."""

        async def ask(node: NodeBackend, numbers: Sequence[int], rest: float) -> list[Any]:
            mine = [claims[number] for number in numbers]
            answers: list[Any] = await batch_verb(node, mine, rest)
            return answers

        answers = await self._at_all_nodes(claims, ask, until, once=once)
        for number, answer in enumerate(answers):
            if isinstance(answer, Redirected | Unsettled):
                try:
                    rest = max(until - self._now(), 0.001)
                    answers[number] = await single_verb(claims[number], rest)
                except BackendError as error:
                    answers[number] = with_reason(error, answer)
        return answers

    # ---- for the keeper ----------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        """Renew at every node. A node that does not answer affects its own claims only."""

        async def ask(node: NodeBackend, numbers: Sequence[int], rest: float) -> list[Any]:
            mine = [claims[number] for number in numbers]
            return list(await node.renew(mine, [fences[number] for number in numbers], rest))

        until = self._now() + budget
        answers = await self._at_all_nodes(claims, ask, until)
        for number, answer in enumerate(answers):
            if isinstance(answer, Redirected | Unsettled):
                answers[number] = await self._renew_one(
                    claims[number], fences[number], until, reason=answer
                )
        errors = [answer for answer in answers if isinstance(answer, BackendError)]
        if len(errors) == len(answers):
            raise errors[0]
        return answers

    async def _renew_one(
        self, claim: Claim, fence: int, until: float, *, reason: BackendError
    ) -> Any:
        async def ask(node: NodeBackend, rest: float) -> Any:
            (answer,) = await node.renew([claim], [fence], rest)
            if isinstance(answer, BackendError):
                raise answer
            return answer

        try:
            rest = max(until - self._now(), 0.001)
            return await self._ask(claim.name, claim.layout, ask, rest, reason)
        except BackendError as error:
            return error

    async def _at_all_nodes(
        self, claims: Sequence[Claim], ask: Any, until: float, *, once: bool = False
    ) -> list[Any]:
        """Ask every node for its claims, and the new owner of a slot that moved meanwhile. A claim
        that is not settled then has its error as the answer."""
        answers: list[Any] = [None] * len(claims)
        slots = [_slot(claim.name, claim.layout) for claim in claims]
        unsettled: Sequence[int] = range(len(claims))
        for _ in range(PASSES):
            endpoints: dict[str, list[int]] = {}
            for number in unsettled:
                endpoint = await self._router.owner(slots[number], until)
                endpoints.setdefault(endpoint, []).append(number)
            now = self._now()
            unsettled = []
            # Nodes that timed out come last.
            for endpoint in sorted(
                endpoints, key=lambda endpoint: self._slots.is_silent(endpoint, now)
            ):
                await self._ask_node(endpoint, endpoints[endpoint], ask, until, answers)
                unsettled += [
                    number
                    for number in endpoints[endpoint]
                    if isinstance(answers[number], BackendError)
                    and not (once and isinstance(answers[number], Unreachable))
                    and self._slots.owners[slots[number]] not in (endpoint, "")
                ]
        return answers

    async def _ask_node(
        self, endpoint: str, numbers: Sequence[int], ask: Any, until: float, answers: list[Any]
    ) -> None:
        began = self._now()
        if self._slots.is_silent(endpoint, began):
            error: BackendError = Unreachable(f"redis at {endpoint} did not answer just now")
            await self._router.refresh_slots(until, avoid=endpoint)
        else:
            try:
                rest = max(min(until - began, self._slots.patience(endpoint)), 0.001)
                got = await ask(self._router.node(endpoint)[0], numbers, rest)
                self._slots.mark_answered(endpoint)
                for number, answer in zip(numbers, got, strict=True):
                    answers[number] = answer
                    if isinstance(answer, Redirected):
                        self._router.follow(answer, endpoint)
                return
            except BackendError as caught:
                error = caught
                if isinstance(error, Unreachable):
                    await self._router.mark_unreachable(endpoint, began, until)
        for number in numbers:
            answers[number] = error

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        seen: Snapshot = await self._ask(
            claim.name, claim.layout, lambda node, rest: node.leave(claim, rest), budget
        )
        return seen

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        answer: Granted | Gone = await self._ask(
            claim.name, "", lambda node, rest: node.transfer(claim, attached, rest), budget
        )
        return answer

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        answer: Granted | Gone = await self._ask(
            claim.name, "", lambda node, rest: node.shrink(claim, rest), budget
        )
        return answer

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        had: int = await self._ask(
            name, "", lambda node, rest: node.resize(name, expected, slots, rest), budget
        )
        return had

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self.listeners.wakeups.watch(claim.id, wake)
        return False if claim.layout else self.listeners.add_waiter(claim.name, claim.id, since)

    def unwatch(self, claim: Claim) -> None:
        self.listeners.wakeups.unwatch(claim.id)
        self.listeners.remove_waiter(claim.name, claim.id)

    async def listen(self, timeout: float | None) -> None:
        if self.listeners.needs_slot_map:
            self.listeners.needs_slot_map = False
            await self._router.refresh_slots(self._now())
        await self.listeners.listen(timeout)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        seen: Snapshot = await self._ask(
            name, layout, lambda node, rest: node.inspect(name, rest, layout), budget
        )
        return seen

    async def names(self, prefix: str, budget: float) -> list[str]:
        """List the names of all masters in sequence; a name in a moving slot may be missed."""
        await self._router.owner(slot_of(prefix), self._now() + budget)
        found: set[str] = set()
        for endpoint in self._slots.masters:
            found.update(await self._router.node(endpoint)[0].names(prefix, budget))
        return sorted(found)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        done: bool = await self._ask(
            name, "", lambda node, rest: node.break_hold(name, fence, rest), budget
        )
        return done

    def close(self) -> None:
        if self._listens:
            self.listeners.close()
        for node, _ in list(self._router.nodes.values()):
            node.close()


def _slot(name: str, layout: str) -> int:
    return slot_of_key(simple_layout.key_of(name)) if layout else slot_of(name)

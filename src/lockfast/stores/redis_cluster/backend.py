"""The verbs on a Redis Cluster: each goes to the node that serves its name; batches go to the nodes
of their names, one write each.

A name is safe as it is on one server, because all its keys are in one slot and a slot is served by
one master. Between names there is no common step: a batch is done in part if a node is away, and
says so, claim by claim.
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
from lockfast.stores.redis_cluster.listeners import Ears
from lockfast.stores.redis_cluster.node import NodeBackend
from lockfast.stores.redis_cluster.routing import Router, Verb
from lockfast.stores.redis_cluster.slots import PATIENCE, slot_of, slot_of_key

# How often a batch is sent again to where its names are said to be, before each is asked alone.
PASSES = 2
# What another node, or the same one a little later, may have an answer to.
UNSETTLED = (Redirected, Unsettled, Unreachable)


class ClusterBackend:
    """One cluster, one colour. ``hears``: it is the one whose keeper listens. ``now`` is the
    clock."""

    def __init__(
        self, router: Router, ears: Ears, now: Callable[[], float], *, hears: bool
    ) -> None:
        self._router = router
        self._slots = router.slots
        self.ears = ears
        self._now = now
        self._hears = hears
        self.interrupt = ears.interrupt
        if hears:
            self.claim_now = self._claim_now
            self.release_now = self._release_now

    def listened_by(self, keeper_backend: ClusterBackend) -> None:
        """The bells of tasks are heard where their keeper listens, which is a thread."""
        self.ears = keeper_backend.ears
        self.interrupt = self.ears.interrupt

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def _ask(self, name: str, layout: str, verb: Verb[Any], budget: float) -> Any:
        return await self._router.ask(_slot(name, layout), verb, budget)

    # ---- claim and release -------------------------------------------------------------------

    def _claim_now(self, claim: Claim, budget: float) -> Granted | Busy | Differs | None:
        """Where it is known who serves the name. Who serves it no more answers None, and what
        fails is asked again the long way, which learns more."""
        node = self._router.nodes.get(self._slots.owners[slot_of(claim.name)])
        return None if node is None else node[0].claim_at_once(claim, min(budget, PATIENCE))

    def _release_now(self, claim: Claim, budget: float) -> bool | None:
        node = self._router.nodes.get(self._slots.owners[slot_of(claim.name)])
        return None if node is None else node[0].release_at_once(claim, min(budget, PATIENCE))

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        """Mostly the node that is believed to serve it does, and nothing more is needed."""
        began, endpoint = self._now(), self._slots.owners[slot_of(claim.name)]
        node = self._router.nodes.get(endpoint)
        if node is not None and not claim.layout:
            try:
                return await node[0].claim(claim, min(budget, PATIENCE))
            except UNSETTLED as error:
                if isinstance(error, Redirected):
                    self._router.follow(error, endpoint)
                budget = max(began + budget - self._now(), 0.001)
        answer: Granted | Busy | Differs = await self._ask(
            claim.name, claim.layout, lambda node, rest: node.claim(claim, rest), budget
        )
        return answer

    async def release(self, claim: Claim, budget: float) -> bool:
        began, endpoint = self._now(), self._slots.owners[slot_of(claim.name)]
        node = self._router.nodes.get(endpoint)
        if node is not None and not claim.layout:
            try:
                return await node[0].release(claim, min(budget, PATIENCE))
            except Unreachable:
                await self._router.lost(endpoint, began, began + budget)
                raise
            except (Redirected, Unsettled) as error:
                if isinstance(error, Redirected):
                    self._router.follow(error, endpoint)
                budget = max(began + budget - self._now(), 0.001)
        slot = _slot(claim.name, claim.layout)
        return await self._router.ask(
            slot, lambda node, rest: node.release(claim, rest), budget, once=True
        )

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """All at once, one write for each node: mostly all are free. If one is not, those behind it
        are given back before it is waited for: who holds what comes later in the order, and waits
        for what comes earlier, could wait for ever."""
        if len(claims) == 1 or claims[0].layout:
            return [await self.claim(claims[0], budget)]
        until = self._now() + budget
        answers = await self._each(claims, NodeBackend.claim_each, self.claim, until)
        for number, answer in enumerate(answers):
            if isinstance(answer, BackendError):
                raise answer
            if not isinstance(answer, Granted):
                await self._leave_each(claims[number + 1 :], until)
                return answers[: number + 1]
        return answers

    async def _leave_each(self, claims: Sequence[Claim], until: float) -> None:
        answers = await self._each(claims, NodeBackend.leave_each, self.leave, until)
        for answer in answers:
            if isinstance(answer, BackendError):
                raise answer

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        if len(claims) == 1 or any(claim.layout for claim in claims):
            return [await self.release(claim, budget) for claim in claims]
        until = self._now() + budget
        answers = await self._each(claims, NodeBackend.release_each, self.release, until, once=True)
        for answer in answers:
            if isinstance(answer, BackendError):
                raise answer
        return answers

    async def _each(
        self, claims: Sequence[Claim], many: Any, one: Any, until: float, *, once: bool = False
    ) -> list[Any]:
        """``many`` at every node; what was not settled so, one by one. What failed is an answer
        too."""

        async def ask(node: NodeBackend, numbers: Sequence[int], rest: float) -> list[Any]:
            answers: list[Any] = await many(node, [claims[number] for number in numbers], rest)
            return answers

        answers = await self._everywhere(claims, ask, until, once=once)
        for number, answer in enumerate(answers):
            if isinstance(answer, Redirected | Unsettled):
                try:
                    rest = max(until - self._now(), 0.001)
                    answers[number] = await one(claims[number], rest)
                except BackendError as error:
                    answers[number] = error
        return answers

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        """A node that is away leaves its own unanswered, not the others'."""

        async def ask(node: NodeBackend, numbers: Sequence[int], rest: float) -> list[Any]:
            mine = [claims[number] for number in numbers]
            return list(await node.renew(mine, [fences[number] for number in numbers], rest))

        until = self._now() + budget
        answers = await self._everywhere(claims, ask, until)
        for number, answer in enumerate(answers):
            if isinstance(answer, Redirected | Unsettled):
                answers[number] = await self._renew_one(claims[number], fences[number], until)
        errors = [answer for answer in answers if isinstance(answer, BackendError)]
        if len(errors) == len(answers):
            raise errors[0]
        return answers

    async def _renew_one(self, claim: Claim, fence: int, until: float) -> Any:
        async def ask(node: NodeBackend, rest: float) -> Any:
            (answer,) = await node.renew([claim], [fence], rest)
            if isinstance(answer, BackendError):
                raise answer
            return answer

        try:
            rest = max(until - self._now(), 0.001)
            return await self._ask(claim.name, claim.layout, ask, rest)
        except BackendError as error:
            return error

    async def _everywhere(
        self, claims: Sequence[Claim], ask: Any, until: float, *, once: bool = False
    ) -> list[Any]:
        """Ask every node for its own; again where others serve a name by now. What was not settled
        so has the error as its answer."""
        answers: list[Any] = [None] * len(claims)
        slots = [_slot(claim.name, claim.layout) for claim in claims]
        open_ones: Sequence[int] = range(len(claims))
        for _ in range(PASSES):
            endpoints: dict[str, list[int]] = {}
            for number in open_ones:
                endpoint = await self._router.owner(slots[number], until)
                endpoints.setdefault(endpoint, []).append(number)
            now = self._now()
            open_ones = []
            # Those come last that were waited for in vain.
            for endpoint in sorted(
                endpoints, key=lambda endpoint: self._slots.is_silent(endpoint, now)
            ):
                await self._ask_node(endpoint, endpoints[endpoint], ask, until, answers)
                open_ones += [
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
            await self._router.learn(until, but=endpoint)
        else:
            try:
                rest = max(min(until - began, self._slots.patience(endpoint)), 0.001)
                got = await ask(self._router.node(endpoint)[0], numbers, rest)
                self._slots.answered(endpoint)
                for number, answer in zip(numbers, got, strict=True):
                    answers[number] = answer
                    if isinstance(answer, Redirected):
                        self._router.follow(answer, endpoint)
                return
            except BackendError as caught:
                error = caught
                if isinstance(error, Unreachable):
                    await self._router.lost(endpoint, began, until)
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
        self.ears.wakeups.watch(claim.id, wake)
        return False if claim.layout else self.ears.want(claim.name, claim.id, since)

    def unwatch(self, claim: Claim) -> None:
        self.ears.wakeups.unwatch(claim.id)
        self.ears.unwant(claim.name, claim.id)

    async def listen(self, timeout: float | None) -> None:
        if self.ears.lost_their_way:
            self.ears.lost_their_way = False
            await self._router.learn(self._now())
        await self.ears.listen(timeout)

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        seen: Snapshot = await self._ask(
            name, layout, lambda node, rest: node.inspect(name, rest, layout), budget
        )
        return seen

    async def names(self, prefix: str, budget: float) -> list[str]:
        """Of all masters, one after the other. A name whose slot moves meanwhile may be missed."""
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
        if self._hears:
            self.ears.close()
        for node, _ in list(self._router.nodes.values()):
            node.close()


def _slot(name: str, layout: str) -> int:
    return slot_of_key(simple_layout.key_of(name)) if layout else slot_of(name)

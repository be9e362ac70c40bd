"""The verbs on ZooKeeper: stand in the queue, look who stands before us, watch that one.

    claim     make a node and list the name, in one go. If all before us fit beside us, it is ours.
              Else watch what is in the way (see `order`), and say Busy. Asked again, only list.
    release   delete the node. Who watches it is rung by the server.
    renew     is the node there, in this session? So the session lives, and its time starts again. A
              lease that is shorter than the session is written anew (see `nodes`).

A fired watch is a bare ring: the waiter asks again. So a hand-over costs one delete and one list,
however many wait, and who waits costs nothing.

Why no claim is left behind: a session is answered in order. What was sent and given up on is done
before whatever is sent later, so a later list shows it; if the connection broke between, the server
that we come to then refuses what the old one still brings, and `Turn.find` brings it up to date.
Only then is a node made anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from lockfast.core.law import REFRESH
from lockfast.core.ports import Wake
from lockfast.errors import BackendError, Unsupported
from lockfast.model import (
    LATCH,
    Busy,
    Capabilities,
    Claim,
    Differs,
    Gone,
    Granted,
    Snapshot,
)
from lockfast.stores.zookeeper import amend, inspection, kazoo_layout, latches
from lockfast.stores.zookeeper.enqueue import arrive, arrive_together, is_taken
from lockfast.stores.zookeeper.nodes import (
    HOLDS,
    TIMED,
    facts_of,
)
from lockfast.stores.zookeeper.operation import Listed, Transport, Turn
from lockfast.stores.zookeeper.registry import Desk, Place
from lockfast.stores.zookeeper.requests import (
    Delete,
    Exists,
    No,
    Put,
    Request,
)
from lockfast.stores.zookeeper.waiting import stand

NEVER = float("inf")
GONE = Gone()
# A write is forced to the disks of a majority. A budget is a part of a lease, and of a very short
# lease so little would be left that a server that is merely busy were called away.
LEAST_BUDGET = 0.15


class ZooKeeperBackend:
    """One session, one colour (the transport's)."""

    def __init__(
        self,
        transport: Transport,
        desk: Desk,
        capabilities: Capabilities,
        pause: Callable[[float | None], Awaitable[object]],
        interrupt: Callable[[], None],
        sweep: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._desk = desk
        self._capabilities = capabilities
        self._pause = pause
        self._sweep = sweep
        self.interrupt = interrupt
        self.close = close
        self.on_uncertain = desk.on_uncertain

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _turn(self, budget: float) -> Turn:
        return Turn(self._transport, self._desk, max(budget, LEAST_BUDGET))

    # ---- claim -------------------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        turn = self._turn(budget)
        if claim.layout:
            return await kazoo_layout.claim(turn, claim)
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.slots >= LATCH:
            return await latches.claim(turn, claim)
        if not claim.wait and await is_taken(turn, claim):
            return Busy(REFRESH, 0)
        return await self._claim(turn, claim)

    async def _claim(
        self, turn: Turn, claim: Claim, listed: Listed | None = None
    ) -> Granted | Busy | Differs:
        """``listed`` with us in it, if we came just now."""
        asked_at = self._desk.clock()
        waiter = self._desk.waiter(claim.id, turn.parent(claim.name))
        fresh = True
        if listed is None:
            listed, fresh = await arrive(turn, claim, waiter)
        while True:
            answer = await stand(turn, claim, waiter, listed, fresh)
            if answer is None:  # our node was taken away: it had ended for others
                waiter.forget()
                listed, fresh = await arrive(turn, claim, waiter)
                continue
            if isinstance(answer, Listed):
                listed, fresh = answer, False
                continue
            if isinstance(answer, Granted):
                waiter.confirmed = asked_at
            elif isinstance(answer, Differs) or not claim.wait:
                self._desk.crowds(waiter.parent)
                await turn.remove(waiter)
            return answer

    async def claim_batch(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """In one go, as if all were free. If one is not, those behind it are given up again before
        anybody is told: nobody is to hold what comes later while it waits for what comes first."""
        if claims[0].layout or any(claim.take > claim.slots for claim in claims):
            return [await self.claim(claims[0], budget)]
        turn = self._turn(budget)
        new = not any(claim.id in self._desk.waiters for claim in claims)
        listed: list[Listed | None] = [None] * len(claims)
        if new and len({claim.name for claim in claims}) == len(claims):
            waiters = [self._desk.waiter(one.id, turn.parent(one.name)) for one in claims]
            listed = await arrive_together(turn, claims, waiters)
        answers: list[Granted | Busy | Differs] = []
        for claim, one in zip(claims, listed, strict=True):
            answers.append(await self._claim(turn, claim, one))
            if not isinstance(answers[-1], Granted):
                break
        await self._forgo(turn, claims[len(answers) :])
        return answers

    async def _forgo(self, turn: Turn, claims: Sequence[Claim]) -> None:
        """Nobody asks for them any more."""
        waiters = [self._desk.waiters.get(claim.id) for claim in claims]
        known = [waiter for waiter in waiters if waiter is not None and waiter.name]
        if known:
            await turn.ask(*(Delete(waiter.path) for waiter in known))
        for waiter in waiters:
            if waiter is not None:
                self._desk.drop(waiter)

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        """All holds in one go; places are asked about only if no bell would tell."""
        turn = self._turn(budget)
        asked_at = self._desk.clock()
        answers: list[Any] = [None] * len(claims)
        requests: list[Request] = []
        asked: list[tuple[int, Place, str]] = []
        for number, claim in enumerate(claims):
            waiter = self._desk.waiters.get(claim.id)
            if not fences[number]:
                answers[number] = self._refresh(waiter)
                continue
            if waiter is not None and (waiter.unsure or waiter.under_way):
                await turn.find(waiter)
            if waiter is None:
                answers[number] = await amend.renew_detached(turn, claim)
            elif not waiter.name or not self._desk.is_ours(waiter):
                answers[number] = GONE
            else:
                asked.append((number, waiter, waiter.name))
                requests.append(_renewal(claim, waiter))
        if requests:
            replies = await turn.ask(*requests)
            for (number, waiter, name), reply in zip(asked, replies, strict=True):
                there = reply not in (None, No.NODE) and reply.ephemeralOwner == waiter.owner
                if there:
                    waiter.confirmed = asked_at
                    lease = self._desk.grantable(claims[number].lease)
                    answers[number] = Granted(waiter.fence, lease)
                elif waiter.unsure or waiter.name != name:
                    # Another node was put in its place meanwhile. It is asked about next time.
                    raise BackendError(f"{self._desk.session.where}: a hold was changing")
                else:
                    answers[number] = GONE
        return answers

    def _refresh(self, waiter: Place | None) -> Busy | Gone:
        if waiter is None or not self._desk.is_ours(waiter) or not waiter.name:
            return GONE
        rest = waiter.recheck_at - self._desk.clock()
        if waiter.armed and rest > 0 and self._desk.session.connected:
            return Busy(min(rest, REFRESH), 0)
        # It asks for itself: only `claim` may make a place again.
        return GONE

    # ---- the end of a claim ------------------------------------------------------------------

    async def release(self, claim: Claim, budget: float) -> bool:
        turn = self._turn(budget)
        waiter = self._desk.waiters.get(claim.id)
        if waiter is None:
            return not claim.layout and await amend.release_detached(turn, claim)
        return await turn.remove(waiter)

    async def release_batch(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        turn = self._turn(budget)
        known: list[Place] = []
        for claim in claims:
            waiter = self._desk.waiters.get(claim.id)
            if (
                waiter is None
                or waiter.under_way
                or waiter.unsure
                or not self._desk.is_ours(waiter)
            ):
                return [await self.release(claim, budget) for claim in claims]
            known.append(waiter)
        answers = await turn.ask(*(Delete(waiter.path) for waiter in known))
        for waiter in known:
            self._desk.drop(waiter)
        return [answer is not No.NODE for answer in answers]

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        turn = self._turn(budget)
        waiter = self._desk.waiters.get(claim.id)
        crossed = False
        if waiter is not None and claim.slots >= LATCH:
            crossed = await latches.leave(turn, claim, waiter)
        elif waiter is not None:
            crossed = waiter.granted
            await turn.remove(waiter)
        elif not claim.layout:
            await amend.release_detached(turn, claim)  # we let go of it, and nobody was told
        return replace(await self._inspect(turn, claim.name, claim.layout), crossed=crossed)

    # ---- changes -----------------------------------------------------------------------------

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        if claim.layout:
            raise Unsupported(
                "a lock that kazoo shares cannot be detached: kazoo would not know it"
            )
        turn = self._turn(budget)
        return await (amend.attach if attached else amend.detach)(turn, claim)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return await amend.shrink(self._turn(budget), claim)

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        return await amend.resize(self._turn(budget), name, expected, slots)

    # ---- bells -------------------------------------------------------------------------------

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """What is in the way was watched when the claim was answered, and an early bell is kept."""
        self._desk.wakeups.watch(claim.id, wake)
        return False

    def unwatch(self, claim: Claim) -> None:
        self._desk.wakeups.unwatch(claim.id)

    async def listen(self, timeout: float | None) -> None:
        """Bells ring by themselves. The keeper's pause is when parents are swept."""
        self._sweep()
        soon = max(self._desk.next_sweep(), 0.0)
        await self._pause(soon if timeout is None else min(timeout, soon))

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._inspect(self._turn(budget), name, layout)

    async def _inspect(self, turn: Turn, name: str, layout: str) -> Snapshot:
        return await (kazoo_layout.inspect if layout else inspection.inspect)(turn, name)

    async def names(self, prefix: str, budget: float) -> list[str]:
        return await inspection.names(self._turn(budget), prefix)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        return await inspection.break_hold(self._turn(budget), name, fence)


def _renewal(claim: Claim, waiter: Place) -> Request:
    """Of a lease that others watch, the time is written; else it is enough to be heard of."""
    if waiter.life == TIMED:
        return Put(waiter.path, facts_of(claim, HOLDS, waiter.fence, waiter.since).encoded())
    return Exists(waiter.path)

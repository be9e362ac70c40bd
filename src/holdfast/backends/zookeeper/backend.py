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

from holdfast.backends.zookeeper import changes, foreign, gates, looking
from holdfast.backends.zookeeper.arrival import arrive, arrive_together, is_taken
from holdfast.backends.zookeeper.desk import Desk, Place
from holdfast.backends.zookeeper.nodes import (
    HOLDS,
    TIMED,
    facts_of,
)
from holdfast.backends.zookeeper.requests import (
    Delete,
    Exists,
    No,
    Put,
    Request,
)
from holdfast.backends.zookeeper.turn import Listed, Transport, Turn
from holdfast.backends.zookeeper.waiting import stand
from holdfast.core.law import REFRESH
from holdfast.core.ports import Wake
from holdfast.errors import BackendError, Unsupported
from holdfast.model import (
    LATCH,
    Busy,
    Capabilities,
    Claim,
    Differs,
    Gone,
    Granted,
    Snapshot,
)

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
        poke: Callable[[], None],
        sweep: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._desk = desk
        self._capabilities = capabilities
        self._pause = pause
        self._sweep = sweep
        self.poke = poke
        self.close = close
        self.on_doubt = desk.on_doubt

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _turn(self, budget: float) -> Turn:
        return Turn(self._transport, self._desk, max(budget, LEAST_BUDGET))

    # ---- claim -------------------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        turn = self._turn(budget)
        if claim.layout:
            return await foreign.claim(turn, claim)
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.slots >= LATCH:
            return await gates.claim(turn, claim)
        if not claim.wait and await is_taken(turn, claim):
            return Busy(REFRESH, 0)
        return await self._claim(turn, claim)

    async def _claim(
        self, turn: Turn, claim: Claim, listed: Listed | None = None
    ) -> Granted | Busy | Differs:
        """``listed`` with us in it, if we came just now."""
        asked_at = self._desk.clock()
        place = self._desk.place(claim.id, turn.parent(claim.name))
        fresh = True
        if listed is None:
            listed, fresh = await arrive(turn, claim, place)
        while True:
            answer = await stand(turn, claim, place, listed, fresh)
            if answer is None:  # our node was taken away: it had ended for others
                place.forget()
                listed, fresh = await arrive(turn, claim, place)
                continue
            if isinstance(answer, Listed):
                listed, fresh = answer, False
                continue
            if isinstance(answer, Granted):
                place.confirmed = asked_at
            elif isinstance(answer, Differs) or not claim.wait:
                self._desk.crowds(place.parent)
                await turn.remove(place)
            return answer

    async def claim_many(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        """In one go, as if all were free. If one is not, those behind it are given up again before
        anybody is told: nobody is to hold what comes later while it waits for what comes first."""
        if claims[0].layout or any(claim.take > claim.slots for claim in claims):
            return [await self.claim(claims[0], budget)]
        turn = self._turn(budget)
        new = not any(claim.id in self._desk.places for claim in claims)
        listed: list[Listed | None] = [None] * len(claims)
        if new and len({claim.name for claim in claims}) == len(claims):
            places = [self._desk.place(one.id, turn.parent(one.name)) for one in claims]
            listed = await arrive_together(turn, claims, places)
        answers: list[Granted | Busy | Differs] = []
        for claim, one in zip(claims, listed, strict=True):
            answers.append(await self._claim(turn, claim, one))
            if not isinstance(answers[-1], Granted):
                break
        await self._forgo(turn, claims[len(answers) :])
        return answers

    async def _forgo(self, turn: Turn, claims: Sequence[Claim]) -> None:
        """Nobody asks for them any more."""
        places = [self._desk.places.get(claim.id) for claim in claims]
        known = [place for place in places if place is not None and place.name]
        if known:
            await turn.ask(*(Delete(place.path) for place in known))
        for place in places:
            if place is not None:
                self._desk.drop(place)

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
            place = self._desk.places.get(claim.id)
            if not fences[number]:
                answers[number] = self._refresh(place)
                continue
            if place is not None and (place.unsure or place.under_way):
                await turn.find(place)
            if place is None:
                answers[number] = await changes.renew_detached(turn, claim)
            elif not place.name or not self._desk.is_ours(place):
                answers[number] = GONE
            else:
                asked.append((number, place, place.name))
                requests.append(_renewal(claim, place))
        if requests:
            replies = await turn.ask(*requests)
            for (number, place, name), reply in zip(asked, replies, strict=True):
                there = reply not in (None, No.NODE) and reply.ephemeralOwner == place.owner
                if there:
                    place.confirmed = asked_at
                    lease = self._desk.grantable(claims[number].lease)
                    answers[number] = Granted(place.fence, lease)
                elif place.unsure or place.name != name:
                    # Another node was put in its place meanwhile. It is asked about next time.
                    raise BackendError(f"{self._desk.session.where}: a hold was changing")
                else:
                    answers[number] = GONE
        return answers

    def _refresh(self, place: Place | None) -> Busy | Gone:
        if place is None or not self._desk.is_ours(place) or not place.name:
            return GONE
        rest = place.recheck_at - self._desk.clock()
        if place.armed and rest > 0 and self._desk.session.connected:
            return Busy(min(rest, REFRESH), 0)
        # It asks for itself: only `claim` may make a place again.
        return GONE

    # ---- the end of a claim ------------------------------------------------------------------

    async def release(self, claim: Claim, budget: float) -> bool:
        turn = self._turn(budget)
        place = self._desk.places.get(claim.id)
        if place is None:
            return not claim.layout and await changes.release_detached(turn, claim)
        return await turn.remove(place)

    async def release_many(self, claims: Sequence[Claim], budget: float) -> list[bool]:
        turn = self._turn(budget)
        known: list[Place] = []
        for claim in claims:
            place = self._desk.places.get(claim.id)
            if place is None or place.under_way or place.unsure or not self._desk.is_ours(place):
                return [await self.release(claim, budget) for claim in claims]
            known.append(place)
        answers = await turn.ask(*(Delete(place.path) for place in known))
        for place in known:
            self._desk.drop(place)
        return [answer is not No.NODE for answer in answers]

    async def leave(self, claim: Claim, budget: float) -> Snapshot:
        turn = self._turn(budget)
        place = self._desk.places.get(claim.id)
        crossed = False
        if place is not None and claim.slots >= LATCH:
            crossed = await gates.leave(turn, claim, place)
        elif place is not None:
            crossed = place.granted
            await turn.remove(place)
        elif not claim.layout:
            await changes.release_detached(turn, claim)  # we let go of it, and nobody was told
        return replace(await self._inspect(turn, claim.name, claim.layout), crossed=crossed)

    # ---- changes -----------------------------------------------------------------------------

    async def transfer(self, claim: Claim, attached: bool, budget: float) -> Granted | Gone:
        if claim.layout:
            raise Unsupported(
                "a lock that kazoo shares cannot be detached: kazoo would not know it"
            )
        turn = self._turn(budget)
        return await (changes.attach if attached else changes.detach)(turn, claim)

    async def shrink(self, claim: Claim, budget: float) -> Granted | Gone:
        return await changes.shrink(self._turn(budget), claim)

    async def resize(self, name: str, expected: int, slots: int, budget: float) -> int:
        return await changes.resize(self._turn(budget), name, expected, slots)

    # ---- bells -------------------------------------------------------------------------------

    async def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """What is in the way was watched when the claim was answered, and an early bell is kept."""
        self._desk.bells.watch(claim.id, wake)
        return False

    def unwatch(self, claim: Claim) -> None:
        self._desk.bells.unwatch(claim.id)

    async def hear(self, timeout: float | None) -> None:
        """Bells ring by themselves. The keeper's pause is when parents are swept."""
        self._sweep()
        soon = max(self._desk.next_sweep(), 0.0)
        await self._pause(soon if timeout is None else min(timeout, soon))

    # ---- for operators -----------------------------------------------------------------------

    async def inspect(self, name: str, budget: float, layout: str = "") -> Snapshot:
        return await self._inspect(self._turn(budget), name, layout)

    async def _inspect(self, turn: Turn, name: str, layout: str) -> Snapshot:
        return await (foreign.inspect if layout else looking.inspect)(turn, name)

    async def names(self, prefix: str, budget: float) -> list[str]:
        return await looking.names(self._turn(budget), prefix)

    async def break_hold(self, name: str, fence: int, budget: float) -> bool:
        return await looking.break_hold(self._turn(budget), name, fence)


def _renewal(claim: Claim, place: Place) -> Request:
    """Of a lease that others watch, the time is written; else it is enough to be heard of."""
    if place.life == TIMED:
        return Put(place.path, facts_of(claim, HOLDS, place.fence, place.since).encoded())
    return Exists(place.path)

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
from holdfast.backends.zookeeper.arrival import arrive
from holdfast.backends.zookeeper.desk import Desk, Place
from holdfast.backends.zookeeper.nodes import (
    HOLDS,
    NEW,
    SESSION,
    TIMED,
    WAITS,
    facts_of,
)
from holdfast.backends.zookeeper.order import Standing, standing
from holdfast.backends.zookeeper.requests import (
    Children,
    Delete,
    Exists,
    Get,
    No,
    Put,
    Request,
)
from holdfast.backends.zookeeper.turn import Listed, Transport, Turn
from holdfast.core.law import REFRESH
from holdfast.core.ports import Wake
from holdfast.errors import Unsupported
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
        self.on_gone = desk.on_gone

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def _turn(self, budget: float) -> Turn:
        return Turn(self._transport, self._desk, budget)

    # ---- claim -------------------------------------------------------------------------------

    async def claim(self, claim: Claim, budget: float) -> Granted | Busy | Differs:
        turn = self._turn(budget)
        if claim.layout:
            return await foreign.claim(turn, claim)
        if claim.take > claim.slots:
            return Differs(claim.slots)
        if claim.slots >= LATCH:
            return await gates.claim(turn, claim)
        return await self._claim(turn, claim)

    async def _claim(self, turn: Turn, claim: Claim) -> Granted | Busy | Differs:
        asked_at = self._desk.clock()
        place = self._desk.place(claim.id, turn.parent(claim.name))
        listed, fresh = await arrive(turn, claim, place)
        while True:
            answer = await self._stand(turn, claim, place, listed, fresh)
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
                await turn.remove(place)
            return answer

    async def _stand(
        self, turn: Turn, claim: Claim, place: Place, listed: Listed, fresh: bool
    ) -> Granted | Busy | Differs | Listed | None:
        """What we are told where we stand; a newer list to look at; None: we do not stand there."""
        at = listed.at(place.name)
        if at < 0:
            return None
        if not place.granted:
            size = listed.size
            unfit = claim.take > size or (not place.settled and size != claim.slots)
            if unfit:
                # Of another kind or size. Not if those who say so have ended.
                before = [node for node in listed.nodes[:at] if node.life != SESSION]
                if await turn.bury(place.parent, await turn.read(place.parent, before)):
                    return await turn.look(place.parent)
                return Differs(size)
            place.settled = True
        stands = standing(listed.nodes, at, listed.size)
        if stands.holds or place.granted:
            return await self._take(turn, claim, place, stands, fresh)
        if stands.ahead is None:
            return await self._watch_all(turn, claim, place, stands)
        return await self._watch_one(turn, claim, place, stands)

    async def _take(
        self, turn: Turn, claim: Claim, place: Place, stands: Standing, fresh: bool
    ) -> Granted | None:
        """It is ours. If its lease is to begin now, and not when its node was made, we write so. So
        does who waited for a semaphore, before it goes on: the next one watches for that."""
        restarts = place.life == TIMED and not fresh
        waited = place.state == WAITS or stands.followed
        if restarts or (stands.shared and waited and not place.marked):
            facts = facts_of(claim, HOLDS, place.fence, place.since)
            (answer,) = await turn.ask(Put(place.path, facts.encoded()))
            if answer is No.NODE:
                return None
            place.marked = True
            place.state = HOLDS
        place.granted = True
        place.armed = False
        return Granted(place.fence, self._desk.grantable(claim.lease))

    async def _watch_one(
        self, turn: Turn, claim: Claim, place: Place, stands: Standing
    ) -> Busy | Listed:
        """Watch the one in the way; or it is gone, or over: a newer list."""
        ahead = stands.ahead
        assert ahead is not None
        if not (claim.wait or stands.mortal):
            return Busy(REFRESH, 0)
        place.armed = claim.wait
        ring = place.ring if claim.wait else None
        requests: list[Request] = [Get(f"{place.parent}/{ahead.name}", ring)]
        requests += _waiting(claim, place)
        if stands.shared:
            # It may have begun to hold before we watched it, and will not write so again.
            requests += [Exists(place.parent, ring), Children(place.parent)]
        answers = await turn.ask(*requests)
        if not _waits(claim, place, answers) or answers[0] is No.NODE:
            return await turn.look(place.parent)
        if stands.mortal:
            (seen,) = turn.seen(place.parent, stands.mortal, answers[:1])
            if await turn.bury(place.parent, [seen]):
                return await turn.look(place.parent)
            return self._busy(place, turn.rest(seen))
        if stands.shared:
            listed = await turn.listed(place.parent, answers[-1])
            at = listed.at(place.name)
            if at < 0 or standing(listed.nodes, at, listed.size) != stands:
                return listed
        return self._busy(place)

    async def _watch_all(
        self, turn: Turn, claim: Claim, place: Place, stands: Standing
    ) -> Busy | Listed:
        """We are the first to get what becomes free of a semaphore: watch whoever comes and goes,
        and the size."""
        place.armed = claim.wait
        ring = place.ring if claim.wait else None
        answers = await turn.ask(
            *(Get(f"{place.parent}/{node.name}") for node in stands.mortal),
            *_waiting(claim, place),
            Exists(place.parent, ring),
            Children(place.parent, ring),
        )
        seen = turn.seen(place.parent, stands.mortal, answers[: len(stands.mortal)])
        waits = _waits(claim, place, answers[len(stands.mortal) :])
        if await turn.bury(place.parent, seen) or not waits:
            return await turn.look(place.parent)
        listed = await turn.listed(place.parent, answers[-1])
        at = listed.at(place.name)
        if at < 0 or standing(listed.nodes, at, listed.size) != stands:
            return listed
        return self._busy(place, min((turn.rest(one) for one in seen), default=NEVER))

    def _busy(self, place: Place, rest: float = NEVER) -> Busy:
        place.recheck_at = self._desk.clock() + rest
        return Busy(min(rest, REFRESH), 0)

    async def claim_many(
        self, claims: Sequence[Claim], budget: float
    ) -> list[Granted | Busy | Differs]:
        turn = self._turn(budget)
        answers: list[Granted | Busy | Differs] = []
        for claim in claims:
            if claim.layout:
                answers.append(await foreign.claim(turn, claim))
            elif claim.take > claim.slots:
                answers.append(Differs(claim.slots))
            else:
                answers.append(await self._claim(turn, claim))
            if not isinstance(answers[-1], Granted):
                break
        return answers

    # ---- the keeper's ------------------------------------------------------------------------

    async def renew(
        self, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone]:
        """All holds in one go; places are asked about only if no bell would tell."""
        turn = self._turn(budget)
        asked_at = self._desk.clock()
        answers: list[Any] = [None] * len(claims)
        requests: list[Request] = []
        asked: list[tuple[int, Place]] = []
        for number, claim in enumerate(claims):
            place = self._desk.places.get(claim.id)
            if not fences[number]:
                answers[number] = await self._refresh(turn, claim, place)
            elif place is None:
                answers[number] = await changes.renew_detached(turn, claim)
            elif not place.name or not self._desk.is_ours(place):
                answers[number] = GONE
            else:
                asked.append((number, place))
                requests.append(_renewal(claim, place))
        if requests:
            replies = await turn.ask(*requests)
            for (number, place), reply in zip(asked, replies, strict=True):
                there = reply not in (None, No.NODE) and reply.ephemeralOwner == place.owner
                if there:
                    place.confirmed = asked_at
                    lease = self._desk.grantable(claims[number].lease)
                    answers[number] = Granted(place.fence, lease)
                else:
                    answers[number] = GONE
        return answers

    async def _refresh(
        self, turn: Turn, claim: Claim, place: Place | None
    ) -> Granted | Busy | Gone:
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

    async def resize(self, name: str, slots: int, budget: float) -> int:
        return await changes.resize(self._turn(budget), name, slots)

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


def _waiting(claim: Claim, place: Place) -> list[Request]:
    """Say on our node that its lease has not begun, where others would end it by its lease."""
    if not claim.wait or place.state != NEW or place.life != TIMED:
        return []
    return [Put(place.path, facts_of(claim, WAITS, place.fence, place.since).encoded())]


def _waits(claim: Claim, place: Place, answers: Sequence[Any]) -> bool:
    """It is said. False: our node is gone."""
    if claim.wait and place.state == NEW:
        place.state = WAITS
        return place.life != TIMED or No.NODE not in answers
    return True


def _renewal(claim: Claim, place: Place) -> Request:
    """Of a lease that others watch, the time is written; else it is enough to be heard of."""
    if place.life == TIMED:
        return Put(place.path, facts_of(claim, HOLDS, place.fence, place.since).encoded())
    return Exists(place.path)

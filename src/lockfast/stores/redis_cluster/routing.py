"""Ask the node that serves a name, and follow the name where it goes.

    asked ── MOVED ───────────────► remember it, ask that node
      │ ├── ASK ─────────────────► ask that one, for this once
      │ ├── TRYAGAIN, CLUSTERDOWN ► a slot is on its way, or a failover: pause, ask again
      │ ├── silence ─────────────► learn who serves it now; ask that one, or this one for longer
      │ └── no connection ────────► the same; but if it is this one, say so
      answer

All of it within the budget of the one who asks, and in a limited number of steps: nodes that point
at each other are left alone then. Asking again is harmless, as everywhere: by claim id.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.errors import Redirected, Unreachable, Unsettled
from lockfast.stores.redis_cluster.node import NodeBackend
from lockfast.stores.redis_cluster.slots import SlotMap

T = TypeVar("T")
Verb = Callable[[NodeBackend, float], Awaitable[T]]
# The node as it is asked, and as it is asked for what is just arriving there.
Node = tuple[NodeBackend, NodeBackend]

MOST_HOPS, MOST_AT_ONCE = 64, 3
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
# For one node that is asked for the map, and for whoever needs it when its own time is over: the
# next one who asks must not run into the same silence.
LEARN_BUDGET = 0.25
MOST_ASKED = 4


class Router:
    """``open_node`` makes what speaks to a seat, in one colour; ``pause`` waits in that colour."""

    def __init__(
        self,
        slots: SlotMap,
        open_node: Callable[[str], Node],
        pause: Callable[[float], Awaitable[None]],
        where: str,
    ) -> None:
        self.slots = slots
        self.nodes: dict[str, Node] = {}
        self._open_node = open_node
        self._pause = pause
        self._where = where
        self._why: BackendError | None = None  # nothing was learned, the last time

    def node(self, endpoint: str) -> Node:
        node = self.nodes.get(endpoint)
        if node is None:
            node = self.nodes[endpoint] = self._open_node(endpoint)
        return node

    async def ask(self, slot: int, verb: Verb[T], budget: float, *, once: bool = False) -> T:
        """``once``: an unknown outcome is said, not asked for again. A release that was done
        and not answered would be told that it is not ours any more: who asks must know why."""
        until = clock.now() + budget
        pause = SHORTEST_PAUSE
        endpoint, just_now = self.slots.owners[slot], False
        for hop in range(MOST_HOPS):
            began = clock.now()
            if not endpoint:
                endpoint = await self.owner(slot, until)
            try:
                rest = max(min(until - began, self.slots.patience(endpoint)), 0.001)
                answer = await verb(self.node(endpoint)[just_now], rest)
                self.slots.answered(endpoint)
                return answer
            except Redirected as error:
                endpoint, just_now = self.follow(error, endpoint), error.just_now
                if hop >= MOST_AT_ONCE:  # they point at each other
                    pause = await self._rest(pause, until, error)
                if not just_now:
                    await self.learn(until)
                failure: BackendError = error
            except Unsettled as error:
                pause = await self._rest(pause, until, error)
                await self.learn(until, but=endpoint)
                endpoint, just_now, failure = self.slots.owners[slot], False, error
            except Unreachable as error:
                silent = await self.lost(endpoint, began, until)
                if once:
                    raise
                if self.slots.owners[slot] in (endpoint, "") and not (
                    silent and clock.now() < until
                ):
                    raise
                endpoint, just_now, failure = self.slots.owners[slot], False, error
            if clock.now() >= until:
                break
        raise self._gave_up(failure)

    def _gave_up(self, error: BackendError) -> BackendError:
        """Nobody else knows what to do with a redirection, but asking again later may help."""
        return BackendError(f"{self._where}: no node gave an answer in time: {error}")

    def follow(self, error: Redirected, asked: str) -> str:
        """Where it points to; remembered if it is for good."""
        endpoint = self.slots.told(error.endpoint, asked)
        if not error.just_now:
            self.slots.moved(error.slot, endpoint)
        return endpoint

    async def lost(self, endpoint: str, began: float, until: float) -> bool:
        """A node did not answer, or cannot be reached, since then; whether it was silent."""
        now = clock.now()
        silent = self.slots.silent(endpoint, now, now - began)
        await self.learn(until, but=endpoint)
        return silent

    async def _rest(self, pause: float, until: float, error: BackendError) -> float:
        """Not all at the same time; and not if there would be no time left to ask again."""
        if clock.now() + pause >= until:
            raise self._gave_up(error) if isinstance(error, Redirected) else error
        await self._pause(random.uniform(pause / 2, pause))
        return min(pause * 2, LONGEST_PAUSE)

    # ---- who serves what ---------------------------------------------------------------------

    async def owner(self, slot: int, until: float) -> str:
        """The seat that serves a slot, learned if that is not known."""
        pause = SHORTEST_PAUSE
        while not (endpoint := self.slots.owners[slot]):
            await self.learn(until)
            if self._why is not None and not self._why.transient:
                raise self._why
            if not (endpoint := self.slots.owners[slot]):
                why = self._why or Unsettled(f"{self._where}: no node serves slot {slot} just now")
                pause = await self._rest(pause, until, why)
        return endpoint

    async def learn(self, until: float, but: str = "") -> None:
        """Ask one node after the other, unless another thread or task does, or has just done."""
        now = clock.now()
        if not self.slots.begin_to_learn(now):
            return
        try:
            for endpoint in self.slots.whom_to_ask(but, now)[:MOST_ASKED]:
                began = clock.now()
                rest = max(until - began, LEARN_BUDGET / 2)
                try:
                    reply = await self.node(endpoint)[0].slots(min(rest, LEARN_BUDGET))
                except BackendError as error:
                    self._why = error
                    now = clock.now()
                    self.slots.silent(endpoint, now, now - began)
                    continue
                if self.slots.learn(reply, endpoint):
                    self._why = None
                    return
                self._why = Unsettled(f"redis at {endpoint} knows of no slot that a node serves")
        finally:
            self.slots.end_to_learn(clock.now())

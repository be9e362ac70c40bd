"""Routing: send a request to the node that serves a name, and follow redirections.

    request ── MOVED ─────────────► update the map, ask that node
      │ ├── ASK ─────────────────► ask that node, this one time
      │ ├── TRYAGAIN, CLUSTERDOWN ► a slot is migrating, or a failover: pause, ask again
      │ ├── time-out ────────────► refresh the map; ask the new owner, or the same one for longer
      │ └── no connection ────────► refresh the map; if the owner is the same node, raise
      reply

All of it happens within the caller's budget and a limited number of hops, so that nodes that
redirect to each other end in an error. Requests are idempotent by claim id and may be repeated.
A time-out names the last reply too: what is left of a budget may be too short for an answer, and
the reply says why the request was repeated.
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
# A node's backend, and its backend for slots that the node is importing (ASKING).
Node = tuple[NodeBackend, NodeBackend]

MOST_HOPS, MOST_IMMEDIATE = 64, 3
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
# Seconds for one node to return the map; a caller whose own budget is used up still gets half of
# it, so that the next caller does not run into the same silent node.
REFRESH_BUDGET = 0.25
MOST_ASKED = 4


def with_reason(error: BackendError, reason: BackendError | None) -> BackendError:
    """Add the last reply to the error of a node that did not answer."""
    if not isinstance(error, Unreachable) or not isinstance(reason, Redirected | Unsettled):
        return error
    return Unreachable(f"{error}; before that, {reason}", transient=error.transient)


class Router:
    """Router of one API. ``open_node`` makes the backends of an endpoint; ``pause`` sleeps."""

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
        self._refresh_error: BackendError | None = None  # of the last refresh, if it failed

    def node(self, endpoint: str) -> Node:
        node = self.nodes.get(endpoint)
        if node is None:
            node = self.nodes[endpoint] = self._open_node(endpoint)
        return node

    async def ask(
        self,
        slot: int,
        verb: Verb[T],
        budget: float,
        *,
        once: bool = False,
        reason: BackendError | None = None,
    ) -> T:
        """Run ``verb`` at the node that serves ``slot``. ``reason``: why the caller's own attempt
        failed.

        ``once``: raise if the outcome is unknown, instead of asking again. A repeated release whose
        first reply was lost would report "not held", and the caller could not tell why.
        """
        until = clock.now() + budget
        pause = SHORTEST_PAUSE
        endpoint, temporary = self.slots.owners[slot], False
        failure: BackendError
        for hop in range(MOST_HOPS):
            began = clock.now()
            if not endpoint:
                endpoint = await self.owner(slot, until)
            try:
                rest = max(min(until - began, self.slots.patience(endpoint)), 0.001)
                answer = await verb(self.node(endpoint)[temporary], rest)
                self.slots.mark_answered(endpoint)
                return answer
            except Redirected as error:
                endpoint, temporary = self.follow(error, endpoint), error.temporary
                if hop >= MOST_IMMEDIATE:  # the nodes redirect to each other
                    pause = await self._back_off(pause, until, error)
                if not temporary:
                    await self.refresh_slots(until)
                failure = reason = error
            except Unsettled as error:
                pause = await self._back_off(pause, until, error)
                await self.refresh_slots(until, avoid=endpoint)
                endpoint, temporary = self.slots.owners[slot], False
                failure = reason = error
            except Unreachable as error:
                failure = with_reason(error, reason)
                timed_out = await self.mark_unreachable(endpoint, began, until)
                if once:
                    raise failure from error
                if self.slots.owners[slot] in (endpoint, "") and not (
                    timed_out and clock.now() < until
                ):
                    raise failure from error
                endpoint, temporary = self.slots.owners[slot], False
            if clock.now() >= until:
                break
        raise self._no_answer(failure)

    def _no_answer(self, error: BackendError) -> BackendError:
        """A transient error: callers cannot follow a redirection, but may ask again later."""
        return BackendError(f"{self._where}: no node answered in time: {error}")

    def follow(self, error: Redirected, asked: str) -> str:
        """Return the endpoint that the error names; MOVED also updates the map."""
        endpoint = self.slots.resolve(error.endpoint, asked)
        if not error.temporary:
            self.slots.moved(error.slot, endpoint)
        return endpoint

    async def mark_unreachable(self, endpoint: str, began: float, until: float) -> bool:
        """Record that a node failed to answer and refresh the map; True if it timed out."""
        now = clock.now()
        timed_out = self.slots.mark_silent(endpoint, now, now - began)
        await self.refresh_slots(until, avoid=endpoint)
        return timed_out

    async def _back_off(self, pause: float, until: float, error: BackendError) -> float:
        """Sleep with jitter and return the next pause; raise if no time would be left after it."""
        if clock.now() + pause >= until:
            raise self._no_answer(error) if isinstance(error, Redirected) else error
        await self._pause(random.uniform(pause / 2, pause))
        return min(pause * 2, LONGEST_PAUSE)

    # ---- the slot map ------------------------------------------------------------------------

    async def owner(self, slot: int, until: float) -> str:
        """Return the endpoint that serves a slot; ask the nodes if the map does not know it."""
        pause = SHORTEST_PAUSE
        while not (endpoint := self.slots.owners[slot]):
            await self.refresh_slots(until)
            if self._refresh_error is not None and not self._refresh_error.transient:
                raise self._refresh_error
            if not (endpoint := self.slots.owners[slot]):
                error = self._refresh_error
                error = error or Unsettled(f"{self._where}: no node serves slot {slot} just now")
                pause = await self._back_off(pause, until, error)
        return endpoint

    async def refresh_slots(self, until: float, avoid: str = "") -> None:
        """Ask node after node for the map, unless another caller does so or just did."""
        now = clock.now()
        if not self.slots.begin_refresh(now):
            return
        try:
            for endpoint in self.slots.candidates(avoid, now)[:MOST_ASKED]:
                began = clock.now()
                rest = max(until - began, REFRESH_BUDGET / 2)
                try:
                    reply = await self.node(endpoint)[0].slots(min(rest, REFRESH_BUDGET))
                except BackendError as error:
                    self._refresh_error = error
                    now = clock.now()
                    self.slots.mark_silent(endpoint, now, now - began)
                    continue
                if self.slots.update(reply, endpoint):
                    self._refresh_error = None
                    return
                self._refresh_error = Unsettled(f"redis at {endpoint} reports no slots")
        finally:
            self.slots.end_refresh(clock.now())

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
from collections.abc import Callable, Sequence
from typing import Any

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import Call
from lockfast.stores.redis.connections import Channel
from lockfast.stores.redis.errors import (
    Redirected,
    ServerError,
    Unreachable,
    Unsettled,
    explained,
    is_elsewhere,
)
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.store import is_unknown_script
from lockfast.stores.redis_cluster.slots import SlotMap, slot_at
from lockfast.stores.steps import Steps

MOST_HOPS, MOST_IMMEDIATE = 64, 3
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
LEAST = 0.001
# Seconds for one node to return the map; a caller whose own budget is used up still gets half of
# it, so that the next caller does not run into the same silent node.
REFRESH_BUDGET = 0.25
MOST_ASKED = 4
PASSES = 2  # attempts to send a batch by the map before its calls are routed one by one
# Raise if the outcome is unknown, instead of asking again: a repeated release whose first reply was
# lost would report "not held", and the caller could not tell why.
ONCE = (scripts.RELEASE, scripts.SIMPLE_RELEASE)
_ASKING = packed("ASKING")
_SLOTS = packed("CLUSTER", "SLOTS")


def with_reason(error: BackendError, reason: BackendError | None) -> BackendError:
    """Add the last reply to the error of a node that did not answer."""
    if not isinstance(error, Unreachable) or not isinstance(reason, Redirected | Unsettled):
        return error
    return Unreachable(f"{error}; before that, {reason}", transient=error.transient)


class Router:
    """The channels of one API to all nodes. ``open_channel`` makes that to an endpoint; ``pause``
    sleeps."""

    def __init__(
        self,
        slots: SlotMap,
        open_channel: Callable[[str], Channel],
        pause: Callable[[float], Any],
        where: str,
    ) -> None:
        self.slots = slots
        self.channels: dict[str, Channel] = {}
        self._open_channel = open_channel
        self._pause = pause
        self._where = where
        self._refresh_error: BackendError | None = None  # of the last refresh, if it failed

    def channel(self, endpoint: str) -> Channel:
        channel = self.channels.get(endpoint)
        if channel is None:
            channel = self.channels[endpoint] = self._open_channel(endpoint)
        return channel

    def rest(self, until: float) -> float:
        return max(until - clock.now(), LEAST)

    def until(self, budget: float) -> float:
        return clock.now() + budget

    # ---- calls -------------------------------------------------------------------------------

    def run(self, call: Call, budget: float, reason: BackendError | None = None) -> Steps[Any]:
        """Make a call at the node that serves its key. ``reason``: why an attempt failed before."""
        until = clock.now() + budget
        pause = SHORTEST_PAUSE
        slot = slot_at(call.key)
        endpoint, asking = self.slots.owners[slot], False
        failure: BackendError
        for hop in range(MOST_HOPS):
            began = clock.now()
            if not endpoint:
                endpoint = yield from self.owner(slot, until)
            try:
                rest = max(min(until - began, self.slots.patience(endpoint)), LEAST)
                reply = yield from self._ask(endpoint, asking, call, rest)
                self.slots.mark_answered(endpoint)
                return reply
            except Redirected as error:
                endpoint, asking = self.follow(error, endpoint), error.temporary
                if hop >= MOST_IMMEDIATE:  # the nodes redirect to each other
                    pause = yield from self._back_off(pause, until, error)
                if not asking:
                    yield from self.refresh_slots(until)
                failure = reason = error
            except Unsettled as error:
                pause = yield from self._back_off(pause, until, error)
                yield from self.refresh_slots(until, avoid=endpoint)
                endpoint, asking = self.slots.owners[slot], False
                failure = reason = error
            except Unreachable as error:
                failure = with_reason(error, reason)
                timed_out = yield from self._mark_unreachable(endpoint, began, until)
                same = self.slots.owners[slot] in (endpoint, "")
                over = not timed_out or clock.now() >= until
                if call.script in ONCE or (same and over):
                    raise failure from error
                endpoint, asking = self.slots.owners[slot], False
            if clock.now() >= until:
                break
        raise self._no_answer(failure)

    def _ask(self, endpoint: str, asking: bool, call: Call, budget: float) -> Steps[Any]:
        """Make a call at one node; ``asking``: for a slot that the node imports."""
        channel = self.channel(endpoint)
        reply = yield from _sent(channel, call.packed(), budget, asking)
        if is_unknown_script(reply):
            reply = yield from _sent(channel, call.with_source(), budget, asking)
        if isinstance(reply, ServerError):
            raise self._refused(reply, call, endpoint)
        return reply

    def _refused(self, error: ServerError, call: Call, endpoint: str) -> BackendError:
        if is_elsewhere(error):
            self.channel(endpoint).distrust("has a master elsewhere")
        source = call.script.source if call.script else ""
        return explained(error, f"redis at {endpoint}", call.key, source)

    def run_all(self, calls: Sequence[Call], budget: float) -> Steps[list[Any]]:
        """Make the calls in one write per node, and at the new owner of a slot that moved
        meanwhile. The reply to a call that failed is its error."""
        until = clock.now() + budget
        replies: list[Any] = [None] * len(calls)
        slots = [slot_at(call.key) for call in calls]
        unsettled: Sequence[int] = range(len(calls))
        for _ in range(PASSES):
            endpoints: dict[str, list[int]] = {}
            for number in unsettled:
                endpoint = yield from self.owner(slots[number], until)
                endpoints.setdefault(endpoint, []).append(number)
            now = clock.now()
            again = []
            # Nodes that timed out come last.
            for endpoint in sorted(endpoints, key=lambda one: self.slots.is_silent(one, now)):
                numbers = endpoints[endpoint]
                yield from self._ask_all(endpoint, numbers, calls, until, replies)
                again += [
                    number
                    for number in numbers
                    if isinstance(replies[number], BackendError)
                    and not (
                        calls[number].script in ONCE and isinstance(replies[number], Unreachable)
                    )
                    and self.slots.owners[slots[number]] not in (endpoint, "")
                ]
            unsettled = again
        for number, reply in enumerate(replies):
            if isinstance(reply, Redirected | Unsettled):
                try:
                    replies[number] = yield from self.run(calls[number], self.rest(until), reply)
                except BackendError as error:
                    replies[number] = error
        return replies

    def _ask_all(
        self,
        endpoint: str,
        numbers: Sequence[int],
        calls: Sequence[Call],
        until: float,
        replies: list[Any],
    ) -> Steps[None]:
        began = clock.now()
        error: BackendError
        if self.slots.is_silent(endpoint, began):
            error = Unreachable(f"redis at {endpoint} did not answer just now")
            yield from self.refresh_slots(until, avoid=endpoint)
        else:
            try:
                rest = max(min(until - began, self.slots.patience(endpoint)), LEAST)
                commands, channel = [calls[n].packed() for n in numbers], self.channel(endpoint)
                got = yield channel.send_all, commands, rest
                self.slots.mark_answered(endpoint)
                for number, reply in zip(numbers, got, strict=True):
                    call = calls[number]
                    if is_unknown_script(reply):
                        reply = yield channel.send, call.with_source(), rest
                    if isinstance(reply, ServerError):
                        reply = self._refused(reply, call, endpoint)
                    if isinstance(reply, Redirected):
                        self.follow(reply, endpoint)
                    replies[number] = reply
                return
            except BackendError as caught:
                error = caught
                if isinstance(error, Unreachable):
                    yield from self._mark_unreachable(endpoint, began, until)
        for number in numbers:
            replies[number] = error

    def _no_answer(self, error: BackendError) -> BackendError:
        """A transient error: callers cannot follow a redirection, but may ask again later."""
        return BackendError(f"{self._where}: no node answered in time: {error}")

    def follow(self, error: Redirected, asked: str) -> str:
        """Return the endpoint that the error names; MOVED also updates the map."""
        endpoint = self.slots.resolve(error.endpoint, asked)
        if not error.temporary:
            self.slots.moved(error.slot, endpoint)
        return endpoint

    def _mark_unreachable(self, endpoint: str, began: float, until: float) -> Steps[bool]:
        """Record that a node failed to answer and refresh the map; True if it timed out."""
        now = clock.now()
        timed_out = self.slots.mark_silent(endpoint, now, now - began)
        yield from self.refresh_slots(until, avoid=endpoint)
        return timed_out

    def _back_off(self, pause: float, until: float, error: BackendError) -> Steps[float]:
        """Sleep with jitter and return the next pause; raise if no time would be left after it."""
        if clock.now() + pause >= until:
            raise self._no_answer(error) if isinstance(error, Redirected) else error
        yield self._pause, random.uniform(pause / 2, pause)
        return min(pause * 2, LONGEST_PAUSE)

    # ---- the slot map ------------------------------------------------------------------------

    def owner(self, slot: int, until: float) -> Steps[str]:
        """Return the endpoint that serves a slot; ask the nodes if the map does not know it."""
        pause = SHORTEST_PAUSE
        while not (endpoint := self.slots.owners[slot]):
            yield from self.refresh_slots(until)
            if self._refresh_error is not None and not self._refresh_error.transient:
                raise self._refresh_error
            if not (endpoint := self.slots.owners[slot]):
                error = self._refresh_error
                error = error or Unsettled(f"{self._where}: no node serves slot {slot} just now")
                pause = yield from self._back_off(pause, until, error)
        return endpoint

    def refresh_slots(self, until: float, avoid: str = "") -> Steps[None]:
        """Ask node after node for the map, unless another caller does so or just did."""
        now = clock.now()
        if not self.slots.begin_refresh(now):
            return
        try:
            for endpoint in self.slots.candidates(avoid, now)[:MOST_ASKED]:
                began = clock.now()
                rest = max(until - began, REFRESH_BUDGET / 2)
                try:
                    limit = min(rest, REFRESH_BUDGET)
                    reply = yield self.channel(endpoint).send, _SLOTS, limit
                    if isinstance(reply, ServerError):
                        raise explained(reply, f"redis at {endpoint}")
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


def _sent(channel: Channel, command: bytes, budget: float, asking: bool) -> Steps[Any]:
    if not asking:
        return (yield channel.send, command, budget)
    refused, reply = yield channel.send_all, [_ASKING, command], budget
    return refused if isinstance(refused, ServerError) else reply

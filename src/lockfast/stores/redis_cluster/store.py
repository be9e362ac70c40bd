"""The verbs on a Redis Cluster: those of a single server, with their calls routed to the node that
serves the name. A batch goes to the nodes of its names, one call per name, in one write each.

A name is as safe as on a single server: all its keys are in one slot, and one master serves a slot.
A batch is not atomic across names: if a node is unavailable the batch is done in part, and each
claim has its own result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.core.ports import Answer, Reply, Store, Wake
from lockfast.errors import BackendError
from lockfast.model import Claim, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import Call, claim_call, name_call, names_call, release_call
from lockfast.stores.redis.store import MOST_SHOWN, RedisStore, known
from lockfast.stores.redis_cluster.listeners import Listeners
from lockfast.stores.redis_cluster.routing import Router
from lockfast.stores.redis_cluster.slots import slot_of
from lockfast.stores.steps import Steps


class ClusterStore(RedisStore):
    """One cluster for one API. A store that does not suspend reads the listeners, as keeper."""

    per_name = True

    def __init__(self, router: Router, listeners: Listeners, where: str, *, suspends: bool) -> None:
        self.suspends = suspends
        self._router = router
        self._where = where
        self.listeners = listeners

    def share_listener_of(self, keeper_store: Store) -> None:
        """Receive wake-ups through the keeper's listeners. The keeper of tasks is a thread."""
        assert isinstance(keeper_store, ClusterStore)
        self.listeners = keeper_store.listeners

    def wake_address_of(self, name: str) -> str:
        return self.listeners.wake_address_of(name)

    # ---- claim and release -------------------------------------------------------------------

    def claim(self, claims: Sequence[Claim], budget: float) -> Reply[list[Answer]]:
        return self._perform(self._claim(claims, budget))

    def _claim(
        self, claims: Sequence[Claim], budget: float, reply: Any = None
    ) -> Steps[list[Answer]]:
        """Claim all at once, in one write per node: mostly all names are free. If one is not, the
        claims after it are withdrawn before the caller waits for it: a caller that holds later
        names while it waits for an earlier one could deadlock."""
        if len(claims) == 1:
            return (yield from super()._claim(claims, budget, reply))
        until = self._router.until(budget)
        calls = [claim_call([claim], self.wake_address_of(claim.name)) for claim in claims]
        answers: list[Answer] = []
        replies = yield from self._run_all(calls, budget)
        for number, claim in enumerate(claims):
            answer = self._claimed(_answered(replies[number]), claim)
            answers.append(answer)
            if not isinstance(answer, Granted):
                leaving = [
                    name_call(scripts.LEAVE, later.name, later.id, MOST_SHOWN)
                    for later in claims[number + 1 :]
                ]
                for left in (yield from self._run_all(leaving, self._router.rest(until))):
                    _answered(left)
                break
        return answers

    def release(self, claims: Sequence[Claim], budget: float) -> Reply[list[bool]]:
        return self._perform(self._release(claims, budget))

    def _release(
        self, claims: Sequence[Claim], budget: float, reply: Any = None
    ) -> Steps[list[bool]]:
        if len(claims) == 1:
            return (yield from super()._release(claims, budget, reply))
        replies = yield from self._run_all([release_call([claim]) for claim in claims], budget)
        return [self._yes(_answered(one)) for one in replies]

    # ---- wake-ups ----------------------------------------------------------------------------

    def watch(self, claim: Claim, wake: Wake, since: float) -> Reply[bool]:
        self.listeners.wakeups.watch(claim.id, wake)
        missed = not claim.layout and self.listeners.add_waiter(claim.name, claim.id, since)
        return self._perform(known(missed))

    def unwatch(self, claim: Claim) -> None:
        self.listeners.wakeups.unwatch(claim.id)
        self.listeners.remove_waiter(claim.name, claim.id)

    def signal(self, claim: Claim) -> None:
        """None: the runtime's."""

    def listen(self, timeout: float | None) -> None:
        if self.listeners.needs_slot_map:
            self.listeners.needs_slot_map = False
            self._perform(self._router.refresh_slots(self._router.until(0.0)))
        self.listeners.listen(timeout)

    def interrupt(self) -> None:
        self.listeners.interrupt()

    def close(self) -> None:
        if not self.suspends:
            self.listeners.close()
        for channel in list(self._router.channels.values()):
            channel.close()

    # ---- for operators -----------------------------------------------------------------------

    def names(self, prefix: str, budget: float) -> Reply[list[str]]:
        return self._perform(self._all_names(prefix, budget))

    def _all_names(self, prefix: str, budget: float) -> Steps[list[str]]:
        """List the names of all masters in sequence; a name in a moving slot may be missed."""
        yield from self._router.owner(slot_of(prefix), self._router.until(budget))
        found: set[str] = set()
        for endpoint in self._router.slots.masters:
            channel = self._router.channel(endpoint)
            found.update((yield from self._names(channel, prefix, budget)))
        return sorted(found)

    def _in_use(self, names: Sequence[str], budget: float) -> Steps[list[str]]:
        found = []
        calls = [names_call([name]) for name in names]
        replies = yield from self._run_all(calls, budget)
        for name, call, reply in zip(names, calls, replies, strict=True):
            if isinstance(reply, BackendError):
                reply = yield from self._run(call, budget)
            with self._parsing(reply):
                if reply[0]:
                    found.append(name)
        return found

    # ---- requests ----------------------------------------------------------------------------

    def _run(self, call: Call, budget: float, reply: Any = None) -> Steps[Any]:
        return self._router.run(call, budget)

    def _run_all(self, calls: Sequence[Call], budget: float) -> Steps[list[Any]]:
        return self._router.run_all(calls, budget)

    def _distrust(self, why: str) -> None:
        for channel in list(self._router.channels.values()):
            channel.distrust(why)


def _answered(reply: Any) -> Any:
    """The reply to a call of a batch; raise the error of one that failed."""
    if isinstance(reply, BackendError):
        raise reply
    return reply

"""How threads speak to all nodes at once, without a thread for each: a call is written to every
connection, then all are polled and answers are read as they come, until they are enough.

A node that has not answered by then owes its answers: they are read and dropped later. One that
owes for too long hangs, and is disconnected; one that is out of reach is left alone for a while.
Connecting blocks, since redis-py does it: short-lived threads do it, and a majority is waited for.
"""

from __future__ import annotations

import queue
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import hiredis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.errors import ServerError, Unreachable, explained
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.spin import Company
from lockfast.stores.redis.wakeup_messages import channel_of, delivered
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.connections import NodeConnections, NodeLink, Owed, Spare
from lockfast.stores.redlock.nodes import (
    GRACE,
    HANGS,
    LEAST_CONNECT,
    Chorus,
    Health,
    Ringer,
)
from lockfast.stores.redlock.votes import Enough, Reply, majority_of
from lockfast.stores.redlock.voting import Calls
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

IDLE = 1.0  # a connection that was not used for so long may be closed by now
LOOK_AGAIN = HANGS / 2
CLOSING, MOST_SPARE = 0.25, 16
CONNECTING = 1.0  # how long a thread tries; nobody waits for it so long
NOT_ASKED = BackendError("not asked")


class BlockingVoters:
    suspends = False

    def __init__(
        self,
        addresses: Sequence[Address],
        wake_address: str,
        connected: Callable[[int, NodeLink], None],
    ) -> None:
        self.size = len(addresses)
        self.majority = majority_of(self.size)
        self.wheres = [address.where for address in addresses]
        self.wake_addresses = ["."] * self.size
        self.wakeups, self.now = Wakeups(), clock.now
        self._addresses = addresses
        self._wake_address = wake_address
        self._connected = connected
        self._chorus = Chorus(self.wakeups, self.size)
        self._health = [Health() for _ in addresses]
        self._local = threading.local()
        self._links: weakref.WeakSet[NodeLink] = weakref.WeakSet()
        self._spare: Spare = [deque(maxlen=MOST_SPARE) for _ in addresses]
        self._company = Company()
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt
        self._listening = False
        self._ears = NodeConnections(self.size)
        self._ears_mutex = threading.Lock()
        self._heard_since = [float("inf")] * self.size

    # ---- asking ------------------------------------------------------------------------------

    def ask(self, calls: Calls, enough: Enough, budget: float, owed: bool = False) -> list[Reply]:
        group = self._group(clock.now(), budget)
        until = (now := clock.now()) + budget
        self._company.asks(group.near)
        asker = object()
        replies: list[Reply] = [NOT_ASKED] * self.size
        for node, call in enumerate(calls):
            if call is not None:
                replies[node] = self._write(group, node, call, Owed(asker, now, None), owed)
        while not enough(replies) and None in replies:
            rest = until - clock.now()
            if rest <= 0:
                break
            for descriptor, _ in group.near.look() or group.poller.poll(max(rest * 1000.0, 1.0)):
                self._read(group, group.nodes[descriptor], asker, replies)
        group.used = now
        return replies

    def tell(self, calls: Calls) -> None:
        now = clock.now()
        group = self._group(now, 0.0)
        for node, call in enumerate(calls):
            if call is not None:
                self._write(group, node, call, Owed(None, now, None), True)

    def _write(
        self,
        group: NodeConnections,
        node: int,
        call: Call | bytes,
        owed: Owed,
        again: bool,
    ) -> BackendError | None:
        if again and isinstance(call, Call):
            owed = owed._replace(again=call)
        link = group.links[node]
        try:
            if link is None:
                raise self._health[node].why or Unreachable(f"{self.wheres[node]} is not connected")
            link.write(call, owed)
        except BackendError as error:
            if owed.again is not None:
                self._health[node].owed.append(owed.again)
            if link is not None:
                self._lose(group, node, error)
            return error
        return None

    def _read(self, group: NodeConnections, node: int, asker: object, replies: list[Reply]) -> None:
        link = group.links[node]
        assert link is not None
        try:
            for whose, answer in link.read():
                if whose is asker:
                    replies[node] = answer
                elif callable(whose):
                    whose(answer)
        except BackendError as error:
            self._lose(group, node, error)
            if replies[node] is None:
                replies[node] = error

    def _lose(self, group: NodeConnections, node: int, error: BackendError) -> None:
        """It is no good. What was to be said for certain is said to the next one."""
        link = group.unseat(node)
        if link is None:
            return
        self._links.discard(link)
        self._health[node].owed.extend(one.again for one in link.owed if one.again is not None)
        link.close()
        if clock.now() - link.used < IDLE or link.owed:
            self._health[node].failed(clock.now(), error)

    # ---- connecting --------------------------------------------------------------------------

    def _group(self, now: float, budget: float) -> NodeConnections:
        group: NodeConnections | None = getattr(self._local, "group", None)
        if group is None:
            group = self._local.group = NodeConnections(self.size, self._spare)
        if now - group.used > LOOK_AGAIN:
            self._read_what_is_there(group)  # what was owed has come meanwhile, mostly
        missing = []
        for node, link in enumerate(group.links):
            if link is None:
                missing.append(node)
            elif link.owed and now - link.owed[0].sent > HANGS:
                why = Unreachable(f"{self.wheres[node]} did not answer for {HANGS} s")
                self._lose(group, node, why)
                missing.append(node)
        if missing:
            self._fill(group, missing, now, budget)
        return group

    def _read_what_is_there(self, group: NodeConnections) -> None:
        for descriptor, _ in group.poller.poll(0):
            self._read(group, group.nodes[descriptor], None, [NOT_ASKED] * self.size)

    def _fill(
        self, group: NodeConnections, missing: Sequence[int], now: float, budget: float
    ) -> None:
        for node in missing:
            health = self._health[node]
            if self._take_spare(group, node, now) or health.is_out(now):
                continue
            health.trying = health.is_doubtful
            group.waiting += 1
            threading.Thread(
                target=self._connect,
                args=(node, group.arriving, self._connected),
                name="lockfast-connect",
                daemon=True,
            ).start()
        self._welcome(group, self._arrived, now, budget)

    def _take_spare(self, group: NodeConnections, node: int, now: float) -> bool:
        """A connection of a thread that has ended, if it is still good."""
        try:
            link = self._spare[node].pop()
        except IndexError:
            return False  # another was faster
        group.node_connection(node, link)
        self._read_what_is_there(group)
        if link.owed and now - link.owed[0].sent > HANGS:
            why = Unreachable(f"{self.wheres[node]} did not answer for {HANGS} s")
            self._lose(group, node, why)
        return group.links[node] is not None

    def _welcome(
        self,
        group: NodeConnections,
        arrived: Callable[[int, NodeLink], None],
        now: float,
        budget: float,
    ) -> None:
        """Take the connections that others made for us: a majority, and the rest as long again."""
        until, patient = now + (max(budget * 0.8, LEAST_CONNECT) if budget else 0.0), True
        while group.waiting:
            have = sum(link is not None for link in group.links)
            since = clock.now()
            if have >= self.majority and patient:
                patient = False
                until = min(until, since + max(since - now, 5 * GRACE))
                if not any(self._is_expected(group, node) for node in range(self.size)):
                    until = since
            rest, arriving = until - since, group.arriving
            try:
                node, link = arriving.get(timeout=rest) if rest > 0 else arriving.get_nowait()
            except queue.Empty:
                return
            group.waiting -= 1
            if link is not None and group.links[node] is None:
                group.node_connection(node, link)
                arrived(node, link)

    def _is_expected(self, group: NodeConnections, node: int) -> bool:
        return group.links[node] is None and not self._health[node].is_doubtful

    def _connect(
        self,
        node: int,
        arriving: queue.SimpleQueue[tuple[int, NodeLink | None]],
        prepare: Callable[[int, NodeLink], None],
    ) -> None:
        """In a thread of its own."""
        health, link = self._health[node], None
        try:
            link = NodeLink(self._addresses[node], CONNECTING)
            prepare(node, link)
            self._links.add(link)
            health.well()
        except BackendError as error:
            if link is not None:
                link.close()
                link = None
            health.failed(clock.now(), error)
        finally:
            health.trying = False
            arriving.put((node, link))

    def _arrived(self, node: int, link: NodeLink) -> None:
        """First what it must still be told."""
        owed = self._health[node].owed
        while owed:
            call = owed.popleft()
            try:
                link.write(call, Owed(None, clock.now(), call))
            except BackendError:
                owed.appendleft(call)
                return

    # ---- bells -------------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        missed = any(time > since for time in self._heard_since)
        if None in self._ears.links and self._ears_mutex.acquire(blocking=False):
            try:
                self._open_ears(self._ear_opened, clock.now(), 2 * HANGS)
            finally:
                self._ears_mutex.release()
            self._interrupt.interrupt()  # the keeper adopts them
        final = [health.why for health in self._health if health.why and not health.why.transient]
        if len(final) > self.size - self.majority:
            self._listening = False
            raise final[0]  # we may not listen: say it
        return missed

    def _open_ears(
        self, opened: Callable[[int, NodeLink], None], now: float, budget: float
    ) -> None:
        ears = self._ears
        if not ears.waiting:
            for node, link in enumerate(ears.links):
                if link is None and not self._health[node].is_out(now):
                    ears.waiting += 1
                    threading.Thread(
                        target=self._open_ear, args=(node,), name="lockfast-ear", daemon=True
                    ).start()
        self._welcome(ears, opened, now, budget)

    def _open_ear(self, node: int) -> None:
        self._connect(node, self._ears.arriving, self._subscribe)
        self._interrupt.interrupt()

    def _subscribe(self, node: int, link: NodeLink) -> None:
        answer = link.subscribe(packed("SUBSCRIBE", channel_of(self._wake_address)), link.budget)
        if isinstance(answer, ServerError):
            raise explained(answer, self.wheres[node])
        if type(answer) is not hiredis.PushNotification:
            raise BackendError(f"{self.wheres[node]} does not let us subscribe")

    def _ear_opened(self, node: int, link: NodeLink) -> None:
        ringer = Ringer(self._chorus, node, clock.now, lambda: None)
        link.pushed = lambda push: delivered(push, ringer)  # type: ignore[arg-type]
        self.wake_addresses[node] = self._wake_address
        self._heard_since[node] = clock.now()

    def _ear_came_late(self, node: int, link: NodeLink) -> None:
        self._ear_opened(node, link)
        self.wakeups.wake_all()  # who asked meanwhile said that nobody hears it: it asks again

    async def listen(self, timeout: float | None) -> None:
        interrupted, timeout = self._interrupt.ready(timeout)
        until = None if timeout is None else clock.now() + timeout
        with self._ears_mutex:
            if self._listening and self.wakeups and None in self._ears.links:
                self._open_ears(self._ear_came_late, clock.now(), 0.0)
                until = min(until or float("inf"), clock.now() + 1.0)
            ears = dict(self._ears.nodes)
            waiter = select.poll()
            waiter.register(interrupted, select.POLLIN)
            for descriptor in ears:
                waiter.register(descriptor, select.POLLIN)
        while True:
            due = self._chorus.due()
            ends = [time for time in (until, due) if time is not None]
            rest = max((min(ends) - clock.now()) * 1000.0, 0.0) if ends else None
            ready = waiter.poll(rest if rest is None or rest == 0 else max(rest, 1.0))
            for descriptor, _ in ready:
                if descriptor == interrupted:
                    self._interrupt.heard()
                else:
                    self._hear(ears[descriptor])
            self._chorus.settle(clock.now())
            if self._chorus.due() is None or (until is not None and clock.now() >= until):
                return

    def _hear(self, node: int) -> None:
        link = self._ears.links[node]
        try:
            if link is not None:
                link.read()
        except BackendError as error:
            self.wake_addresses[node] = "."
            self._heard_since[node] = float("inf")
            self._lose(self._ears, node, error)
            self.wakeups.wake_all()  # a bell may have been lost with it

    # ---- the end -----------------------------------------------------------------------------

    def distrust(self, node: int) -> None:
        group: NodeConnections | None = getattr(self._local, "group", None)
        if group is not None and group.links[node] is not None:
            self._lose(
                group,
                node,
                Unreachable(f"{self.wheres[node]} answered what makes no sense"),
            )

    def close(self) -> None:
        """Close what is open, of whichever thread: who goes on connects again. What nodes have not
        answered is waited for, shortly: a connection that is closed before may take it along."""
        self._drain(clock.now() + CLOSING)
        self._forget()
        for link in list(self._links):
            self._links.discard(link)
            link.close()
        self._interrupt.interrupt()

    def _drain(self, until: float) -> None:
        while (rest := until - clock.now()) > 0:
            poller, links = select.poll(), {}
            for link in list(self._links):
                if any(one.again is not None for one in link.owed):
                    poller.register(link.sock, select.POLLIN)
                    links[link.sock.fileno()] = link
            if not links:
                return
            for descriptor, _ in poller.poll(rest * 1000.0):
                try:
                    links[descriptor].read()
                except BackendError:
                    self._links.discard(links[descriptor])
                    links[descriptor].close()

    def _forget(self) -> None:
        # A new list: what this thread sat on goes to the old one, and with it.
        self._spare = [deque(maxlen=MOST_SPARE) for _ in self._addresses]
        self._listening = False
        self._local = threading.local()
        self._ears = NodeConnections(self.size)
        self._heard_since = [float("inf")] * self.size
        self.wake_addresses = ["."] * self.size
        self._chorus.clear()

    def after_fork_in_child(self) -> None:
        """The parent's sockets are the parent's: only our copies of them are closed."""
        self._ears_mutex = threading.Lock()
        self._health = [Health() for _ in self._addresses]
        self._forget()
        for link in list(self._links):
            link.sock.close()
        self._links.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()

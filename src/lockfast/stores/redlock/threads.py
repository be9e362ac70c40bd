"""Redlock for the sync API: ask all nodes at once without a thread for each. A call is written to
every connection; all are polled, and replies are read until there are enough.

Replies that arrive after that are read and discarded later. A node that does not reply for too long
hangs and is disconnected; an unreachable node is skipped for a while. Connecting blocks, since
redis-py does it: short-lived threads connect, and the caller waits for a majority of them.
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
from lockfast.stores.redis.spin import SharingDetector
from lockfast.stores.redis.wakeup_messages import channel_of, deliver
from lockfast.stores.redlock.commands import Call
from lockfast.stores.redlock.connections import Arriving, Group, NodeConnection, PendingReply, Spare
from lockfast.stores.redlock.nodes import (
    GRACE,
    HANG_TIMEOUT,
    LEAST_CONNECT,
    Health,
    MergedWakeups,
    NodeWakeups,
)
from lockfast.stores.redlock.votes import Enough, NotConnected, Reply, majority_of
from lockfast.stores.redlock.voting import Calls
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

IDLE_TIMEOUT = 1.0  # the server may have closed a connection that was unused for so long
READ_AGAIN = HANG_TIMEOUT / 2
CLOSING, MOST_SPARE = 0.25, 16
CONNECTING = 1.0  # seconds that a connecting thread tries; callers wait for less
NOT_ASKED = BackendError("not asked")
OnConnected = Callable[[int, NodeConnection], None]


class BlockingVoters:
    """Connections of all threads to all nodes; each thread has a group of its own."""

    suspends = False

    def __init__(
        self, addresses: Sequence[Address], wake_address: str, connected: OnConnected
    ) -> None:
        self.size = len(addresses)
        self.majority = majority_of(self.size)
        self.wheres = [address.where for address in addresses]
        self.wake_addresses = ["."] * self.size
        self.wakeups, self.now = Wakeups(), clock.now
        self._addresses = addresses
        self._wake_address = wake_address
        self._connected = connected
        self._merged = MergedWakeups(self.wakeups, self.size)
        self._health = [Health() for _ in addresses]
        self._local = threading.local()
        self._connections: weakref.WeakSet[NodeConnection] = weakref.WeakSet()
        self._spare: Spare = [deque(maxlen=MOST_SPARE) for _ in addresses]
        self._sharing = SharingDetector()
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt
        self._listening = False
        self._listeners = Group(self.size)
        self._listeners_mutex = threading.Lock()
        self._subscribed_since = [float("inf")] * self.size

    # ---- calls -------------------------------------------------------------------------------

    def ask(self, calls: Calls, enough: Enough, budget: float, resend: bool = False) -> list[Reply]:
        called = [node for node, call in enumerate(calls) if call is not None]
        group = self._group(clock.now(), budget, called)
        until = (now := clock.now()) + budget
        self._sharing.used_by(group.spin)
        caller = object()
        replies: list[Reply] = [NOT_ASKED] * self.size
        for node, call in enumerate(calls):
            if call is not None:
                reply = PendingReply(caller, now, None)
                replies[node] = self._write(group, node, call, reply, resend)
        while not enough(replies) and None in replies:
            rest = until - clock.now()
            if rest <= 0:
                break
            for descriptor, _ in group.spin.poll() or group.poller.poll(max(rest * 1000.0, 1.0)):
                self._read(group, group.nodes[descriptor], caller, replies)
        group.used = now
        return replies

    def send(self, calls: Calls) -> None:
        now = clock.now()
        group = self._group(now, 0.0, ())
        for node, call in enumerate(calls):
            if call is not None:
                self._write(group, node, call, PendingReply(None, now, None), True)

    def _write(
        self, group: Group, node: int, call: Call | bytes, reply: PendingReply, resend: bool
    ) -> BackendError | None:
        if resend and isinstance(call, Call):
            reply = reply._replace(resend=call)
        connection = group.connections[node]
        try:
            if connection is None:
                not_connected = NotConnected(f"{self.wheres[node]} is not connected")
                raise self._health[node].error or not_connected
            connection.write(call, reply)
        except BackendError as error:
            if reply.resend is not None:
                self._health[node].undelivered.append(reply.resend)
            if connection is not None:
                self._lose(group, node, error)
            return error
        return None

    def _read(self, group: Group, node: int, caller: object, replies: list[Reply]) -> None:
        connection = group.connections[node]
        assert connection is not None
        try:
            for recipient, answer in connection.read():
                if recipient is caller:
                    replies[node] = answer
                elif callable(recipient):
                    recipient(answer)
        except BackendError as error:
            self._lose(group, node, error)
            if replies[node] is None:
                replies[node] = error

    def _lose(self, group: Group, node: int, error: BackendError) -> None:
        """Close a broken connection; calls to redeliver are sent on the next one."""
        connection = group.remove(node)
        if connection is None:
            return
        self._connections.discard(connection)
        health, pending = self._health[node], connection.pending
        health.undelivered.extend(one.resend for one in pending if one.resend is not None)
        connection.close()
        if clock.now() - connection.used < IDLE_TIMEOUT or pending:
            health.failed(clock.now(), error)

    # ---- connecting --------------------------------------------------------------------------

    def _group(self, now: float, budget: float, called: Sequence[int]) -> Group:
        group: Group | None = getattr(self._local, "group", None)
        if group is None:
            group = self._local.group = Group(self.size, self._spare)
        if now - group.used > READ_AGAIN:
            self._read_ready(group)  # late replies have mostly arrived by now
        missing = []
        for node, connection in enumerate(group.connections):
            if connection is None:
                missing.append(node)
            elif (pending := connection.pending) and now - pending[0].sent > HANG_TIMEOUT:
                self._lose_hung(group, node)
                missing.append(node)
        if missing:
            self._connect_missing(group, missing, now)
            self._collect(group, self._send_undelivered, now, budget, called)
        return group

    def _lose_hung(self, group: Group, node: int) -> None:
        why = Unreachable(f"{self.wheres[node]} did not answer for {HANG_TIMEOUT} s")
        self._lose(group, node, why)

    def _read_ready(self, group: Group) -> None:
        for descriptor, _ in group.poller.poll(0):
            self._read(group, group.nodes[descriptor], None, [NOT_ASKED] * self.size)

    def _connect_missing(self, group: Group, missing: list[int], now: float) -> None:
        for node in missing:
            health = self._health[node]
            if self._take_spare(group, node, now) or health.is_skipped(now):
                continue
            health.reconnecting = health.is_suspect
            group.waiting += 1
            _start_thread(self._connect, node, group.arriving, self._connected)

    def _take_spare(self, group: Group, node: int, now: float) -> bool:
        """Take over a connection of an ended thread, if it still works."""
        try:
            connection = self._spare[node].pop()
        except IndexError:
            return False
        group.add(node, connection)
        self._read_ready(group)
        if (pending := connection.pending) and now - pending[0].sent > HANG_TIMEOUT:
            self._lose_hung(group, node)
        return group.connections[node] is not None

    def _collect(
        self, group: Group, added: OnConnected, now: float, budget: float, called: Sequence[int]
    ) -> None:
        """Take the threads' connections: wait for a majority, or for all nodes that are ``called``
        if they are fewer, and as long again for the rest."""
        until, patient = now + (max(budget * 0.8, LEAST_CONNECT) if budget else 0.0), True
        needed = min(self.majority, len(called))
        while group.waiting:
            have = sum(group.connections[node] is not None for node in called)
            since = clock.now()
            if have >= needed and patient:
                patient = False
                until = min(until, since + max(since - now, 5 * GRACE))
                if not any(self._is_expected(group, node) for node in range(self.size)):
                    until = since
            rest, arriving = until - since, group.arriving
            try:
                node, connection = arriving.get(timeout=rest) if rest > 0 else arriving.get_nowait()
            except queue.Empty:
                return
            group.waiting -= 1
            if connection is not None and group.connections[node] is None:
                group.add(node, connection)
                added(node, connection)

    def _is_expected(self, group: Group, node: int) -> bool:
        return group.connections[node] is None and not self._health[node].is_suspect

    def _connect(self, node: int, arriving: Arriving, prepare: OnConnected) -> None:
        """Connect to a node; runs in a short-lived thread."""
        health, connection = self._health[node], None
        try:
            connection = NodeConnection(self._addresses[node], CONNECTING)
            prepare(node, connection)
            self._connections.add(connection)
            health.recovered()
        except BackendError as error:
            if connection is not None:
                connection.close()
                connection = None
            health.failed(clock.now(), error)
        finally:
            health.reconnecting = False
            arriving.put((node, connection))

    def _send_undelivered(self, node: int, connection: NodeConnection) -> None:
        """Send undelivered calls before anything else."""
        undelivered = self._health[node].undelivered
        while undelivered:
            call = undelivered.popleft()
            try:
                connection.write(call, PendingReply(None, clock.now(), call))
            except BackendError:
                undelivered.appendleft(call)
                return

    # ---- wake-ups ----------------------------------------------------------------------------

    async def subscribe(self, since: float) -> bool:
        self._listening = True
        missed = any(time > since for time in self._subscribed_since)
        if None in self._listeners.connections and self._listeners_mutex.acquire(blocking=False):
            try:
                self._open_listeners(self._listener_opened, clock.now(), 2 * HANG_TIMEOUT)
            finally:
                self._listeners_mutex.release()
            self._interrupt.interrupt()  # the keeper begins to poll them
        errors = [health.error for health in self._health if health.error is not None]
        final = [error for error in errors if not error.transient]
        if len(final) > self.size - self.majority:
            self._listening = False
            raise final[0]  # the user lacks the right to subscribe, for example
        return missed

    def _open_listeners(self, opened: OnConnected, now: float, budget: float) -> None:
        listeners = self._listeners
        if not listeners.waiting:
            for node, connection in enumerate(listeners.connections):
                if connection is None and not self._health[node].is_skipped(now):
                    listeners.waiting += 1
                    _start_thread(self._open_listener, node)
        self._collect(listeners, opened, now, budget, range(self.size))

    def _open_listener(self, node: int) -> None:
        self._connect(node, self._listeners.arriving, self._subscribe)
        self._interrupt.interrupt()

    def _subscribe(self, node: int, connection: NodeConnection) -> None:
        command = packed("SUBSCRIBE", channel_of(self._wake_address))
        answer = connection.subscribe(command, connection.budget)
        if isinstance(answer, ServerError):
            raise explained(answer, self.wheres[node])
        if type(answer) is not hiredis.PushNotification:
            raise BackendError(f"{self.wheres[node]} does not accept SUBSCRIBE")

    def _listener_opened(self, node: int, connection: NodeConnection) -> None:
        node_wakeups = NodeWakeups(self._merged, node, clock.now, lambda: None)
        connection.pushed = lambda push: deliver(push, node_wakeups)  # type: ignore[arg-type]
        self.wake_addresses[node] = self._wake_address
        self._subscribed_since[node] = clock.now()

    def _listener_opened_late(self, node: int, connection: NodeConnection) -> None:
        self._listener_opened(node, connection)
        self.wakeups.wake_all()  # claims sent meanwhile carried no wake address: ask again

    async def listen(self, timeout: float | None) -> None:
        interrupted, timeout = self._interrupt.ready(timeout)
        until = None if timeout is None else clock.now() + timeout
        with self._listeners_mutex:
            if self._listening and self.wakeups and None in self._listeners.connections:
                self._open_listeners(self._listener_opened_late, clock.now(), 0.0)
                until = min(until or float("inf"), clock.now() + 1.0)
            listeners = dict(self._listeners.nodes)
            poller = select.poll()
            poller.register(interrupted, select.POLLIN)
            for descriptor in listeners:
                poller.register(descriptor, select.POLLIN)
        while True:
            due = self._merged.due()
            ends = [time for time in (until, due) if time is not None]
            rest = max((min(ends) - clock.now()) * 1000.0, 0.0) if ends else None
            ready = poller.poll(rest if rest is None or rest == 0 else max(rest, 1.0))
            for descriptor, _ in ready:
                if descriptor == interrupted:
                    self._interrupt.drain()
                else:
                    self._read_listener(listeners[descriptor])
            self._merged.flush(clock.now())
            if self._merged.due() is None or (until is not None and clock.now() >= until):
                return

    def _read_listener(self, node: int) -> None:
        connection = self._listeners.connections[node]
        try:
            if connection is not None:
                connection.read()
        except BackendError as error:
            self.wake_addresses[node] = "."
            self._subscribed_since[node] = float("inf")
            self._lose(self._listeners, node, error)
            self.wakeups.wake_all()  # a wake-up may have been lost with it

    # ---- the end -----------------------------------------------------------------------------

    def distrust(self, node: int) -> None:
        group: Group | None = getattr(self._local, "group", None)
        if group is not None and group.connections[node] is not None:
            self._lose(group, node, Unreachable(f"{self.wheres[node]} sent a malformed reply"))

    def close(self) -> None:
        """Close the connections of all threads; later calls connect again. Wait briefly for pending
        replies first: a call might be lost with a connection that is closed too early."""
        self._drain(clock.now() + CLOSING)
        self._reset()
        for connection in list(self._connections):
            self._connections.discard(connection)
            connection.close()
        self._interrupt.interrupt()

    def _drain(self, until: float) -> None:
        while (rest := until - clock.now()) > 0:
            poller, connections = select.poll(), {}
            for connection in list(self._connections):
                if any(one.resend is not None for one in connection.pending):
                    poller.register(connection.sock, select.POLLIN)
                    connections[connection.sock.fileno()] = connection
            if not connections:
                return
            for descriptor, _ in poller.poll(rest * 1000.0):
                try:
                    connections[descriptor].read()
                except BackendError:
                    self._connections.discard(connections[descriptor])
                    connections[descriptor].close()

    def _reset(self) -> None:
        # A new list: this thread's connections go to the old one, and are closed with it.
        self._spare = [deque(maxlen=MOST_SPARE) for _ in self._addresses]
        self._listening = False
        self._local = threading.local()
        self._listeners = Group(self.size)
        self._subscribed_since = [float("inf")] * self.size
        self.wake_addresses = ["."] * self.size
        self._merged.clear()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of the sockets; the parent keeps using its own."""
        self._listeners_mutex = threading.Lock()
        self._health = [Health() for _ in self._addresses]
        self._reset()
        for connection in list(self._connections):
            connection.sock.close()
        self._connections.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()


def _start_thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="lockfast-connect", daemon=True).start()

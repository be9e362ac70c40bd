"""Redlock for the sync API: ask all nodes at once without a thread for each. A call is written to
every connection; all are polled, and replies are read until there are enough.

Replies that arrive after that are read later. A node that does not reply for too long hangs and is
disconnected; an unreachable node is skipped for a while. Connecting blocks, since redis-py does it:
short-lived threads connect, and the caller waits for a majority of them.
"""

from __future__ import annotations

import queue
import select
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.commands import Call, channel_of, deliver
from lockfast.stores.redis.connections import READ_SIZE, Connection, SharingDetector, Spin
from lockfast.stores.redis.errors import ServerError, Unreachable, explained
from lockfast.stores.redis.redis_py import Address
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redlock.nodes import (
    CONNECTING,
    HANG_TIMEOUT,
    NEVER,
    Ask,
    Nodes,
    NodeWakeups,
    encoded,
)
from lockfast.stores.redlock.votes import NodeReply, lacks_script
from lockfast.stores.wakeup_pipe import WakeupPipe

IDLE_TIMEOUT = 1.0  # the server may have closed a connection that was unused for so long
READ_AGAIN = HANG_TIMEOUT / 2
CLOSING, MOST_SPARE = 0.25, 16


class NodeConnection(Connection):
    """A connection to one node that never blocks, with its pending replies."""

    __slots__ = ("known", "pending")

    def __init__(self, address: Address, budget: float) -> None:
        super().__init__(address, budget)
        self.known: set[str] = set()  # SHAs of the scripts that the server has
        self.pending: deque[tuple[Ask, float]] = deque()  # with the time of sending

    def write(self, call: Call, ask: Ask, now: float) -> None:
        data = encoded(call, self.known)
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError as error:
            raise self._explained(error, 0.0) from error
        if sent < len(data):
            raise Unreachable(f"{self._where} accepts no more data")
        self.pending.append((ask, now))

    def read(self) -> list[tuple[Ask, NodeReply]]:
        """Return the replies that have arrived, each with its question."""
        try:
            data = self.sock.recv(READ_SIZE)
            while data and (more := self._buffered()):
                data += self.sock.recv(more)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self.reader.feed(data)
            answers = []
            while (answer := self.reader.gets()) is not False:
                if type(answer) is hiredis.PushNotification:
                    self._push(answer)
                    continue
                if not self.pending:
                    raise hiredis.ProtocolError("a reply to no command")
                if lacks_script(answer):
                    self.known.clear()
                answers.append((self.pending.popleft()[0], answer))
            return answers
        except (BlockingIOError, ssl.SSLWantReadError):
            return []
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error

    def hangs(self, now: float) -> bool:
        return bool(self.pending) and now - self.pending[0][1] > HANG_TIMEOUT


class Group:
    """Connections to all nodes, for one thread at a time; None for a node that is not connected."""

    def __init__(self, size: int) -> None:
        self.connections: list[NodeConnection | None] = [None] * size
        self.arriving: queue.SimpleQueue[tuple[int, NodeConnection | None]] = queue.SimpleQueue()
        self.waiting = 0  # for so many threads that connect
        self.used = clock.now()
        self.poller = select.poll()
        self.spin = Spin(self.poller.poll)
        self.nodes: dict[int, int] = {}  # descriptor → node

    def has(self, node: int) -> bool:
        return self.connections[node] is not None

    def add(self, node: int, connection: NodeConnection) -> None:
        connection.sock.setblocking(False)
        self.connections[node] = connection
        self.poller.register(connection.sock, select.POLLIN)
        self.nodes[connection.sock.fileno()] = node

    def remove(self, node: int) -> NodeConnection | None:
        connection, self.connections[node] = self.connections[node], None
        for descriptor in [fd for fd, at in self.nodes.items() if at == node]:
            del self.nodes[descriptor]
            self.poller.unregister(descriptor)
        return connection


class GroupOfThread:
    """A thread's group. When the thread ends, the group is left to another one: calls without a
    reply might be lost if the connections were closed now."""

    def __init__(self, spare: deque[Group], size: int) -> None:
        self._spare = spare
        try:
            self.group = spare.pop()
        except IndexError:
            self.group = Group(size)

    def __del__(self) -> None:
        self._spare.append(self.group)


class ThreadNodes(Nodes):
    """Connections of all threads to all nodes; each thread has a group of its own."""

    def __init__(self, addresses: Sequence[Address], *settings: Any) -> None:
        self._addresses = addresses
        self._connections: weakref.WeakSet[NodeConnection] = weakref.WeakSet()
        self._sharing = SharingDetector()
        self._pipe = WakeupPipe()
        self._listeners_mutex = threading.Lock()
        super().__init__([address.where for address in addresses], *settings)

    def forget(self) -> None:
        super().forget()
        # A new list: this thread's connections go to the old one, and are closed with it.
        self._spare: deque[Group] = deque(maxlen=MOST_SPARE)
        self._local = threading.local()
        self._listeners = Group(self.size)

    # ---- asking ------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> list[NodeReply]:
        group = self._group(clock.now(), ask.budget, ask.called)
        until = (now := clock.now()) + ask.budget
        self._sharing.used_by(group.spin)
        for node in ask.called:
            self._write(group, node, ask, now)
        while not ask.is_answered():
            rest = until - clock.now()
            if rest <= 0:
                break
            for descriptor, _ in group.spin.poll() or group.poller.poll(max(rest * 1000.0, 1.0)):
                self._read(group, group.nodes.get(descriptor))
        for node in ask.count.malformed:
            self._lose(group, node, self.malformed(node))
        group.used = now
        return ask.replies

    def post(self, ask: Ask) -> None:
        group = self._group(now := clock.now(), 0.0, ())
        for node in ask.called:
            self._write(group, node, ask, now)

    def _write(self, group: Group, node: int, ask: Ask, now: float) -> None:
        connection, call = group.connections[node], ask.calls[node]
        if connection is None or call is None:
            return self.failed(node, ask, None)
        try:
            connection.write(call, ask, now)
        except BackendError as error:
            self._lose(group, node, error)
            self.failed(node, ask, error)

    def _read(self, group: Group, node: int | None) -> None:
        if node is None or (connection := group.connections[node]) is None:
            return  # answering a late reply found the connection lost
        try:
            for ask, answer in connection.read():
                ask.received(node, answer)
        except BackendError as error:
            self._lose(group, node, error)

    def _lose(self, group: Group, node: int, error: BackendError) -> None:
        """Close a broken connection; calls to repeat are sent on the next one."""
        connection = group.remove(node)
        if connection is None:
            return
        self._connections.discard(connection)
        connection.close()
        for ask, _ in connection.pending:
            self.failed(node, ask, error)
        if clock.now() - connection.used < IDLE_TIMEOUT or connection.pending:
            self.health[node].failed(clock.now(), error)

    # ---- connecting --------------------------------------------------------------------------

    def _group(self, now: float, budget: float, called: Sequence[int]) -> Group:
        mine: GroupOfThread | None = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = GroupOfThread(self._spare, self.size)
        group = mine.group
        if now - group.used > READ_AGAIN:
            self._read_ready(group)  # late replies have mostly arrived by now
        missing = []
        for node, connection in enumerate(group.connections):
            if connection is None or (connection.pending and self._has_hung(group, node, now)):
                missing.append(node)
        if missing:
            self._start_connecting(group, missing, now)
            self._collect(group, budget, called)
        return group

    def _has_hung(self, group: Group, node: int, now: float) -> bool:
        """Disconnect a node that hangs."""
        connection = group.connections[node]
        if connection is not None and connection.hangs(now):
            why = Unreachable(f"{self.wheres[node]} did not answer for {HANG_TIMEOUT} s")
            self._lose(group, node, why)
        return not group.has(node)

    def _read_ready(self, group: Group) -> None:
        for descriptor, _ in group.poller.poll(0):
            self._read(group, group.nodes.get(descriptor))

    def _start_connecting(self, group: Group, missing: Iterable[int], now: float) -> None:
        for node in missing:
            health = self.health[node]
            if not health.is_skipped(now):
                health.reconnecting = health.error is not None
                group.waiting += 1
                threading.Thread(
                    target=self._connect, args=(group, node), name="lockfast-connect", daemon=True
                ).start()

    def _connect(self, group: Group, node: int) -> None:
        """Connect to a node; runs in a short-lived thread."""
        health, connection, opened = self.health[node], None, None
        try:
            connection = NodeConnection(self._addresses[node], CONNECTING)
            if group is self._listeners:
                self._subscribe(node, connection)
            self._connections.add(connection)
            health.recovered()
            opened = connection
        except BackendError as error:
            if connection is not None:
                connection.close()
            health.failed(clock.now(), error)
        finally:
            health.reconnecting = False
            group.arriving.put((node, opened))
            if group is self._listeners:
                self.interrupt()  # the keeper begins to poll it

    def _collect(self, group: Group, budget: float, called: Sequence[int]) -> int:
        """Take the connections that threads have opened, and return their number."""
        number = 0
        for rest in self.connecting(budget, called, group.has):
            if not group.waiting:
                break
            try:
                node, connection = group.arriving.get(rest > 0, rest)
            except queue.Empty:
                break
            group.waiting -= 1
            if connection is not None and not group.has(node):
                number += 1
                group.add(node, connection)
                if group is self._listeners:
                    self._listener_opened(node, connection)
                else:
                    for ask in self.first_asks(node):
                        self._write(group, node, ask, clock.now())
        return number

    # ---- wake-ups ----------------------------------------------------------------------------

    def subscribe(self, since: float) -> bool:
        self._listening = True
        missed = any(time > since for time in self._subscribed_since)
        if None in self._listeners.connections and self._listeners_mutex.acquire(blocking=False):
            try:
                self._open_listeners(2 * HANG_TIMEOUT)
            finally:
                self._listeners_mutex.release()
            self.interrupt()  # the keeper begins to poll them
        self.refuse_listeners(health.error for health in self.health)
        return missed

    def _open_listeners(self, budget: float) -> int:
        listeners = self._listeners
        if not listeners.waiting:
            missing = [node for node in range(self.size) if not listeners.has(node)]
            self._start_connecting(listeners, missing, clock.now())
        return self._collect(listeners, budget, range(self.size))

    def _subscribe(self, node: int, connection: NodeConnection) -> None:
        command = packed("SUBSCRIBE", channel_of(self._wake_address))
        answer = connection.subscribe(command, connection.budget)
        if isinstance(answer, ServerError):
            raise explained(answer, self.wheres[node])
        if type(answer) is not hiredis.PushNotification:
            raise BackendError(f"{self.wheres[node]} does not accept SUBSCRIBE")

    def _listener_opened(self, node: int, connection: NodeConnection) -> None:
        wakeups = NodeWakeups(self, node)
        connection.pushed = lambda push: deliver(push, wakeups)
        self.listener_opened(node)

    def listen(self, timeout: float | None) -> None:
        interrupted, timeout = self._pipe.ready(timeout)
        until = NEVER if timeout is None else clock.now() + timeout
        with self._listeners_mutex:
            if self._listening and self.wakeups and None in self._listeners.connections:
                if self._open_listeners(0.0):
                    self.wakeups.wake_all()  # claims sent meanwhile carried no wake address
                until = min(until, clock.now() + 1.0)
            listeners = dict(self._listeners.nodes)
            poller = select.poll()
            for descriptor in (interrupted, *listeners):
                poller.register(descriptor, select.POLLIN)
        while True:
            rest = min(until, self.merged.due() or NEVER) - clock.now()
            wait = None if rest == NEVER else max(rest * 1000.0, 1.0 if rest > 0 else 0.0)
            for descriptor, _ in poller.poll(wait):
                if descriptor == interrupted:
                    self._pipe.drain()
                else:
                    self._read_listener(listeners[descriptor])
            self.merged.flush(clock.now())
            if self.merged.due() is None or clock.now() >= until:
                return

    def _read_listener(self, node: int) -> None:
        self._read(self._listeners, node)
        if not self._listeners.has(node):
            self.listener_lost(node)
            self.wakeups.wake_all()  # a wake-up may have been lost with it

    def interrupt(self) -> None:
        self._pipe.interrupt()

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections of all threads; later calls connect again. Wait briefly for pending
        replies first: a call might be lost with a connection that is closed too early."""
        self._drain(clock.now() + CLOSING)
        self.forget()
        for connection in list(self._connections):
            self._connections.discard(connection)
            connection.close()
        self.interrupt()

    def _drain(self, until: float) -> None:
        while (rest := until - clock.now()) > 0:
            poller, connections = select.poll(), {}
            for connection in list(self._connections):
                if any(ask.resend for ask, _ in connection.pending):
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

    def after_fork_in_child(self) -> None:
        """Close the child's copies of the sockets; the parent keeps using its own."""
        self._listeners_mutex = threading.Lock()
        super().after_fork_in_child()
        for connection in list(self._connections):
            connection.sock.close()
        self._connections.clear()
        self._pipe.after_fork_in_child()

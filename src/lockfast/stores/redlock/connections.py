"""Non-blocking connections of a thread to all nodes, with their pending replies."""

from __future__ import annotations

import queue
import select
import ssl
from collections import deque
from typing import Any, NamedTuple

import hiredis

from lockfast import clock
from lockfast.stores.redis.connections import READ_SIZE, Address, Connection
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.spin import Spin
from lockfast.stores.redlock.commands import Call


class PendingReply(NamedTuple):
    """A reply that a node has not sent yet. ``caller`` identifies the waiting call, or is None; a
    callable is called with it. ``resend`` is the call to repeat if the connection breaks."""

    caller: object
    sent: float
    resend: Call | None


class NodeConnection(Connection):
    """A connection to one node that never blocks."""

    __slots__ = ("known", "pending")

    def __init__(self, address: Address, budget: float) -> None:
        super().__init__(address, budget)
        self.known: set[str] = set()  # SHAs of the scripts that the server has
        self.pending: deque[PendingReply] = deque()

    def unblock(self) -> None:
        self.sock.setblocking(False)

    def write(self, call: Call | bytes, reply: PendingReply) -> None:
        if isinstance(call, Call):
            sha = call.script.sha
            data = call.packed(sha in self.known)
            self.known.add(sha)
        else:
            data = call
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError as error:
            raise self._explained(error, 0.0) from error
        if sent < len(data):
            raise Unreachable(f"{self._where} accepts no more data")
        self.pending.append(reply)

    def read(self) -> list[tuple[object, Any]]:
        """Return the replies that have arrived, each with its caller."""
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
                if type(answer) is ServerError and str(answer).startswith("NOSCRIPT"):
                    self.known.clear()
                answers.append((self.pending.popleft().caller, answer))
            return answers
        except (BlockingIOError, ssl.SSLWantReadError):
            return []
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error


Spare = list[deque[NodeConnection]]
Arriving = queue.SimpleQueue[tuple[int, NodeConnection | None]]


class Group:
    """One thread's connections to all nodes; None for a node that is not connected."""

    def __init__(self, size: int, spare: Spare | None = None) -> None:
        self.connections: list[NodeConnection | None] = [None] * size
        self._spare = spare
        self.arriving: Arriving = queue.SimpleQueue()
        self.waiting = 0
        self.used = clock.now()
        self.poller = select.poll()
        self.spin = Spin(self.poller.poll)
        self.nodes: dict[int, int] = {}  # descriptor → node

    def __del__(self) -> None:
        """Leave the connections of an ended thread to others. Calls without a reply might be lost
        if these connections were closed now."""
        if self._spare is not None:
            for node, connection in enumerate(self.connections):
                if connection is not None:
                    self._spare[node].append(connection)

    def add(self, node: int, connection: NodeConnection) -> None:
        self.connections[node] = connection
        connection.unblock()
        self.poller.register(connection.sock, select.POLLIN)
        self.nodes[connection.sock.fileno()] = node

    def remove(self, node: int) -> NodeConnection | None:
        connection, self.connections[node] = self.connections[node], None
        if connection is not None:
            descriptor = next((fd for fd, at in self.nodes.items() if at == node), None)
            if descriptor is not None:
                del self.nodes[descriptor]
                self.poller.unregister(descriptor)
        return connection

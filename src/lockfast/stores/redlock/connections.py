"""A thread's connections to all nodes, which never block: what was asked, and who is to be told."""

from __future__ import annotations

import queue
import select
import ssl
from collections import deque
from typing import Any, NamedTuple

import hiredis

from lockfast import clock
from lockfast.stores.redis.connections import READ_SIZE, Address, Link
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.spin import Near
from lockfast.stores.redlock.commands import Call


class Owed(NamedTuple):
    """An answer that is to come: to whom, since when, and what to say again if it does not."""

    asker: object
    sent: float
    again: Call | None


class NodeLink(Link):
    """A connection to one node, which never blocks."""

    __slots__ = ("known", "owed")

    def __init__(self, address: Address, budget: float) -> None:
        super().__init__(address, budget)
        self.known: set[str] = set()
        self.owed: deque[Owed] = deque()

    def unblock(self) -> None:
        self.sock.setblocking(False)

    def write(self, call: Call | bytes, owed: Owed) -> None:
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
            raise Unreachable(f"{self._where} takes nothing more")
        self.owed.append(owed)

    def read(self) -> list[tuple[object, Any]]:
        """The answers that have come, and to whom."""
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
                if not self.owed:
                    raise hiredis.ProtocolError("an answer that nobody asked for")
                if type(answer) is ServerError and str(answer).startswith("NOSCRIPT"):
                    self.known.clear()
                answers.append((self.owed.popleft().asker, answer))
            return answers
        except (BlockingIOError, ssl.SSLWantReadError):
            return []
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error


Spare = list[deque["NodeLink"]]


class NodeConnections:
    """One thread's connections, one per node as far as there are any."""

    def __init__(self, size: int, spare: Spare | None = None) -> None:
        self.links: list[NodeLink | None] = [None] * size
        self._spare = spare
        self.arriving: queue.SimpleQueue[tuple[int, NodeLink | None]] = queue.SimpleQueue()
        self.waiting = 0
        self.used = clock.now()
        self.poller = select.poll()
        self.near = Near(self.poller.poll)
        self.nodes: dict[int, int] = {}  # descriptor → node

    def __del__(self) -> None:
        """The thread has ended. Its connections may owe answers: closed now, what they were asked
        might be lost. Others go on with them."""
        if self._spare is not None:
            for node, link in enumerate(self.links):
                if link is not None:
                    self._spare[node].append(link)

    def node_connection(self, node: int, link: NodeLink) -> None:
        self.links[node] = link
        link.unblock()
        self.poller.register(link.sock, select.POLLIN)
        self.nodes[link.sock.fileno()] = node

    def unseat(self, node: int) -> NodeLink | None:
        link, self.links[node] = self.links[node], None
        if link is not None:
            descriptor = next((fd for fd, at in self.nodes.items() if at == node), None)
            if descriptor is not None:
                del self.nodes[descriptor]
                self.poller.unregister(descriptor)
        return link

"""The sockets of `fault_proxy.FaultProxy`, and the rules by which bytes pass between them.

A `ProxiedConnection` is a client's connection and the proxy's own connection to the server for it.
It has two *pipes*, up and down: queues of chunks, each with the time when it arrived. Every step
reads the available bytes (`_pull`), passes on the chunks that are due (`_push`), and selects the
events to wait for next (`_tend`).

One thread uses all this, so there is no mutex. A queue takes at most about `LIMIT` bytes; then the
relay stops reading, and the kernel slows the sender down.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down"]
Address = tuple[object, ...] | str

CHUNK = 1 << 18  # more than loopback delivers of one write
LIMIT = 1 << 20
BACKLOG = 1024  # clients that connect to a frozen proxy wait here, in the kernel
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # no linger time: RST instead of FIN


@dataclass(slots=True)
class ReplyLoss:
    """The requests that lose their replies."""

    count: int
    match: bytes
    then: Literal["reset", "silence"]


class Pipe:
    """One direction of a proxied connection."""

    def __init__(self, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.direction: Direction = direction
        self.source = source
        self.sink = sink
        self.waiting: deque[tuple[float, bytes]] = (
            deque()
        )  # an empty chunk is the end of the stream
        self.size = 0
        self.is_begun = False  # a part of the first chunk was sent
        self.is_full = False  # the sink accepts no more for now
        self.has_ended = False  # the source has closed its side
        self.is_done = False  # and the sink was sent the end

    def forget(self) -> None:
        self.waiting.clear()
        self.size = 0
        self.is_begun = False


class ProxiedConnection:
    """A client's connection, and the proxy's connection to the server on its behalf."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.up = Pipe("up", client, server)
        self.down = Pipe("down", server, client)
        self.up.is_full = True  # until it is connected
        self.is_connected = False
        self.is_asking = False  # the last bytes went up: a reply may be in flight
        self.fate: Literal["reset", "silence"] | None = None  # the effect of the next reply
        self.is_silent = False  # a reply was discarded, and so is everything after it
        self.has_lost = False  # bytes, or the end of the stream, were discarded
        for end in (client, server):
            end.setblocking(False)
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.up, self.down

    @property
    def is_over(self) -> bool:
        """Both peers were sent the end of the other's stream, or need not be."""
        needs_no_more = self.is_silent and self.down.has_ended
        return self.up.is_done and (self.down.is_done or needs_no_more)


class Relay:
    """Listen, connect each client to the server, and move bytes according to the public fields.
    Fields may be changed between steps; then call `tend_all`."""

    def __init__(
        self,
        listener: socket.socket,
        control: socket.socket,
        family: socket.AddressFamily,
        address: Address,
    ) -> None:
        self.latency = 0.0
        self.is_frozen = False
        self.is_refusing = False
        self.loss = ReplyLoss(0, b"", "reset")
        self.pairs: dict[ProxiedConnection, None] = {}  # in order of connection
        self.accepted = 0
        self.lost_replies = 0
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self._holes: set[Direction] = set()
        self._family = family
        self._address = address
        self._listener = listener
        self._listener.setblocking(False)
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._watched: dict[socket.socket, int] = {}
        self._watch(control, None, READ)

    def step(self) -> bool:
        """Wait until something can be done, and do it. True if a control byte arrived."""
        self._watch(self._listener, None, 0 if self.is_frozen else READ)
        is_called = False
        touched: set[ProxiedConnection] = set()
        for key, events in self._selector.select(self._until_due()):
            if key.fileobj is self._control:
                is_called = bool(self._control.recv(CHUNK))
            elif key.fileobj is self._listener:
                touched.update(self._take_in())
            elif key.data in self.pairs:  # else it ended earlier in this step
                touched.add(key.data)
                self._serve(key.data, key.fileobj is key.data.server, events)
        for pair in list(self.pairs) if self.latency else touched:
            self._tend(pair)
        return is_called

    def tend_all(self) -> None:
        for pair in list(self.pairs):
            self._tend(pair)

    def dig(self, directions: Set[Direction]) -> None:
        """Discard bytes in these directions from now on, and those in flight."""
        self._holes |= directions
        for pair in self.pairs:
            for pipe in pair.pipes:
                if pipe.direction in self._holes and pipe.waiting:
                    pair.has_lost = True
                    pipe.forget()

    def heal(self) -> None:
        self._holes.clear()
        for pair in [pair for pair in self.pairs if pair.has_lost]:
            self._end(pair)

    def reset(self) -> int:
        self._take_in()  # for the client, a connection in the kernel's backlog is open
        count = len(self.pairs)
        for pair in list(self.pairs):
            self._end(pair)
        return count

    def close(self) -> None:
        """Close all files without a reset. In a child after a fork, the parent's stay open."""
        for pair in self.pairs:
            pair.client.close()
            pair.server.close()
        self.pairs.clear()
        self._selector.close()
        self._listener.close()
        self._control.close()

    # -- One step ------------------------------------------------------------------------------

    def _until_due(self) -> float | None:
        if self.is_frozen or not self.latency:
            return None
        pipes = (pipe for pair in self.pairs for pipe in pair.pipes)
        since = [pipe.waiting[0][0] for pipe in pipes if pipe.waiting and not pipe.is_full]
        return max(0.0, min(since) + self.latency - time.monotonic()) if since else None

    def _take_in(self) -> list[ProxiedConnection]:
        arrived: list[ProxiedConnection] = []
        for _ in range(BACKLOG):
            try:
                client, _peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            if self.is_refusing:
                _reset(client)
                continue
            self.accepted += 1
            pair = ProxiedConnection(client, socket.socket(self._family, socket.SOCK_STREAM))
            self.pairs[pair] = None
            try:
                pair.server.connect(self._address)
            except BlockingIOError:
                pass  # in progress; a full Unix socket reports its failure later
            except OSError:
                self._lose(pair, news=pair.down)
            arrived.append(pair)
        return arrived

    def _serve(self, pair: ProxiedConnection, is_server: bool, events: int) -> None:
        if events & WRITE:
            if is_server:
                if pair.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return self._lose(pair, news=pair.down)
                pair.is_connected = True
            (pair.up if is_server else pair.down).is_full = False
        if events & READ:
            self._pull(pair, pair.down if is_server else pair.up)

    def _tend(self, pair: ProxiedConnection) -> None:
        """Pass on the chunks that are due, and select the events to wait for."""
        for pipe in pair.pipes:
            if pair in self.pairs and not self.is_frozen:
                self._push(pair, pipe)
        if pair not in self.pairs:
            return
        if pair.is_over:
            return self._end(pair, in_peace=True)
        for end, comes, goes in (
            (pair.client, pair.up, pair.down),
            (pair.server, pair.down, pair.up),
        ):
            can_come = comes.size < LIMIT and not comes.has_ended
            if end is pair.server and not pair.is_connected:
                can_come = False
            wanted = (READ if can_come else 0) | (WRITE if goes.is_full else 0)
            self._watch(end, pair, 0 if self.is_frozen else wanted)

    def _pull(self, pair: ProxiedConnection, pipe: Pipe) -> None:
        """Read one chunk, and queue or discard it."""
        try:
            data = pipe.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            return self._lose(pair, news=pipe)
        pipe.has_ended = not data
        if pipe is pair.down and data:
            pair.is_asking = False
        if pipe.direction in self._holes:
            pair.has_lost = True
            return
        if pipe is pair.down and data and pair.fate is not None and not pair.is_silent:
            self.lost_replies += 1
            pair.is_silent = pair.has_lost = True
            if pair.fate == "reset":
                return self._end(pair)
        if pipe is pair.up or not pair.is_silent:
            pipe.waiting.append((time.monotonic(), data))
            pipe.size += len(data)

    def _push(self, pair: ProxiedConnection, pipe: Pipe) -> None:
        """Pass on the chunks that are due, until the sink accepts no more."""
        # Latency is applied here, not on arrival: a change takes effect at once, and no chunk can
        # overtake another.
        until = time.monotonic() - self.latency
        while pipe.waiting and not pipe.is_full and pipe.waiting[0][0] <= until:
            since, data = pipe.waiting[0]
            if pipe is pair.up and data and not pipe.is_begun:
                self._judge(pair, data)
                if pair not in self.pairs:
                    return
            pipe.is_begun = True
            try:
                if data:
                    sent = pipe.sink.send(data)
                else:
                    sent = 0
                    pipe.sink.shutdown(socket.SHUT_WR)
                    pipe.is_done = True
            except BlockingIOError:
                pipe.is_full = True
                return
            except OSError:
                return self._lose(pair, news=pair.down if pipe is pair.up else pair.up)
            self.passed[pipe.direction] += sent
            pipe.size -= sent
            pipe.waiting.popleft()
            pipe.is_begun = sent < len(data)
            if pipe.is_begun:
                pipe.waiting.appendleft((since, data[sent:]))

    def _judge(self, pair: ProxiedConnection, request: bytes) -> None:
        """Before a request goes up: decide whether its reply is to be lost."""
        if self.loss.count and pair.fate is None and self.loss.match in request:
            if not pair.down.has_ended:
                self._pull(pair, pair.down)  # bytes that are here already answer older requests
            if pair in self.pairs and not pair.is_asking:
                self.loss.count -= 1
                pair.fate = self.loss.then
        pair.is_asking = True

    # -- Ends ----------------------------------------------------------------------------------

    def _lose(self, pair: ProxiedConnection, *, news: Pipe) -> None:
        """End the connection whose peer at the source of this pipe is gone. A black hole hides
        that."""
        if news.direction not in self._holes:
            return self._end(pair)
        pair.has_lost = True
        for pipe in pair.pipes:
            pipe.has_ended = True
            pipe.is_full = False
            pipe.forget()

    def _end(self, pair: ProxiedConnection, *, in_peace: bool = False) -> None:
        del self.pairs[pair]
        for end in (pair.client, pair.server):
            self._watch(end, pair, 0)
            if in_peace:
                end.close()
            else:
                _reset(end)

    def _watch(self, end: socket.socket, pair: ProxiedConnection | None, events: int) -> None:
        before = self._watched.get(end, 0)
        if events == before:
            return
        if not before:
            self._selector.register(end, events, pair)
        elif events:
            self._selector.modify(end, events, pair)
        else:
            self._selector.unregister(end)
        self._watched[end] = events
        if not events:
            del self._watched[end]


def _reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    end.close()

"""What moves bytes for `faults.FaultProxy`: all sockets, and what becomes of what they bring.

A *link* is one connection of a client and the one that we made for it to the server. It has two
*pipes*, up and down: queues of chunks, each with the time when it came. In every turn we read what
is there (`_pull`), pass on what is due (`_push`), and watch for what can come next (`_tend`).

One thread uses all this, so there is no mutex. A queue takes at most about `LIMIT` bytes; then we
stop reading, and the kernel tells the sender.
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

CHUNK = 1 << 18  # more than one write that loopback carries in one piece
LIMIT = 1 << 20
BACKLOG = 1024  # who connects while we are frozen waits here, in the kernel
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for no time at all: RST instead of FIN


@dataclass(slots=True)
class Drop:
    """Which requests are to lose their replies."""

    count: int
    match: bytes
    then: Literal["reset", "silence"]


class Pipe:
    """One direction of one link."""

    def __init__(self, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.direction: Direction = direction
        self.source = source
        self.sink = sink
        self.waiting: deque[tuple[float, bytes]] = deque()  # no bytes: the end
        self.size = 0
        self.is_begun = False  # a part of the first chunk is sent
        self.is_full = False  # the sink takes no more for now
        self.has_ended = False  # the source sends no more
        self.is_done = False  # and the sink knows

    def forget(self) -> None:
        self.waiting.clear()
        self.size = 0
        self.is_begun = False


class Link:
    """A client's connection, and ours to the server on its behalf."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.up = Pipe("up", client, server)
        self.down = Pipe("down", server, client)
        self.up.is_full = True  # until it is connected
        self.is_connected = False
        self.is_asking = False  # the last bytes went up: a reply may be under way
        self.fate: Literal["reset", "silence"] | None = None  # what the next reply brings about
        self.is_silent = False  # a reply was swallowed, and so is everything after it
        self.has_lost = False  # bytes, or the end
        for end in (client, server):
            end.setblocking(False)
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        return self.up, self.down

    @property
    def is_over(self) -> bool:
        """Both peers know that the other is done, or need not know."""
        needs_no_more = self.is_silent and self.down.has_ended
        return self.up.is_done and (self.down.is_done or needs_no_more)


class Relay:
    """Listens, connects each client to the server, and moves bytes, as the public fields say.
    They may be changed between turns; then `tend_all`."""

    def __init__(
        self,
        listener: socket.socket,
        ear: socket.socket,
        family: socket.AddressFamily,
        address: Address,
    ) -> None:
        self.latency = 0.0
        self.is_frozen = False
        self.is_refusing = False
        self.drop = Drop(0, b"", "reset")
        self.links: dict[Link, None] = {}  # in order of arrival
        self.accepted = 0
        self.dropped = 0
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self._holes: set[Direction] = set()
        self._family = family
        self._address = address
        self._listener = listener
        self._listener.setblocking(False)
        self._ear = ear
        self._selector = selectors.DefaultSelector()
        self._watched: dict[socket.socket, int] = {}
        self._watch(ear, None, READ)

    def turn(self) -> bool:
        """Wait until something can be done, and do it. True if the ear heard something."""
        self._watch(self._listener, None, 0 if self.is_frozen else READ)
        is_called = False
        touched: set[Link] = set()
        for key, events in self._selector.select(self._until_due()):
            if key.fileobj is self._ear:
                is_called = bool(self._ear.recv(CHUNK))
            elif key.fileobj is self._listener:
                touched.update(self._take_in())
            elif key.data in self.links:  # else ended earlier in this turn
                touched.add(key.data)
                self._serve(key.data, key.fileobj is key.data.server, events)
        for link in list(self.links) if self.latency else touched:
            self._tend(link)
        return is_called

    def tend_all(self) -> None:
        for link in list(self.links):
            self._tend(link)

    def dig(self, directions: Set[Direction]) -> None:
        """Swallow what goes there from now on, and what is under way."""
        self._holes |= directions
        for link in self.links:
            for pipe in link.pipes:
                if pipe.direction in self._holes and pipe.waiting:
                    link.has_lost = True
                    pipe.forget()

    def heal(self) -> None:
        self._holes.clear()
        for link in [link for link in self.links if link.has_lost]:
            self._end(link)

    def reset(self) -> int:
        self._take_in()  # whom the kernel has accepted is connected, as far as he knows
        count = len(self.links)
        for link in list(self.links):
            self._end(link)
        return count

    def close(self) -> None:
        """Let go of all files, in peace. In a child after a fork its parent's stay open."""
        for link in self.links:
            link.client.close()
            link.server.close()
        self.links.clear()
        self._selector.close()
        self._listener.close()
        self._ear.close()

    # -- What happens in a turn ----------------------------------------------------------------

    def _until_due(self) -> float | None:
        if self.is_frozen or not self.latency:
            return None
        pipes = (pipe for link in self.links for pipe in link.pipes)
        since = [pipe.waiting[0][0] for pipe in pipes if pipe.waiting and not pipe.is_full]
        return max(0.0, min(since) + self.latency - time.monotonic()) if since else None

    def _take_in(self) -> list[Link]:
        arrived: list[Link] = []
        for _ in range(BACKLOG):
            try:
                client, _peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            if self.is_refusing:
                _reset(client)
                continue
            self.accepted += 1
            link = Link(client, socket.socket(self._family, socket.SOCK_STREAM))
            self.links[link] = None
            try:
                link.server.connect(self._address)
            except BlockingIOError:
                pass  # under way; a full unix socket fails when we look
            except OSError:
                self._lose(link, news=link.down)
            arrived.append(link)
        return arrived

    def _serve(self, link: Link, is_server: bool, events: int) -> None:
        if events & WRITE:
            if is_server:
                if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    return self._lose(link, news=link.down)
                link.is_connected = True
            (link.up if is_server else link.down).is_full = False
        if events & READ:
            self._pull(link, link.down if is_server else link.up)

    def _tend(self, link: Link) -> None:
        """Pass on what is due, and watch for what can come next."""
        for pipe in link.pipes:
            if link in self.links and not self.is_frozen:
                self._push(link, pipe)
        if link not in self.links:
            return
        if link.is_over:
            return self._end(link, in_peace=True)
        for end, comes, goes in (
            (link.client, link.up, link.down),
            (link.server, link.down, link.up),
        ):
            can_come = comes.size < LIMIT and not comes.has_ended
            if end is link.server and not link.is_connected:
                can_come = False
            wanted = (READ if can_come else 0) | (WRITE if goes.is_full else 0)
            self._watch(end, link, 0 if self.is_frozen else wanted)

    def _pull(self, link: Link, pipe: Pipe) -> None:
        """Read one chunk, and decide what becomes of it."""
        try:
            data = pipe.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            return self._lose(link, news=pipe)
        pipe.has_ended = not data
        if pipe is link.down and data:
            link.is_asking = False
        if pipe.direction in self._holes:
            link.has_lost = True
            return
        if pipe is link.down and data and link.fate is not None and not link.is_silent:
            self.dropped += 1
            link.is_silent = link.has_lost = True
            if link.fate == "reset":
                return self._end(link)
        if pipe is link.up or not link.is_silent:
            pipe.waiting.append((time.monotonic(), data))
            pipe.size += len(data)

    def _push(self, link: Link, pipe: Pipe) -> None:
        """Pass on what is due, until the sink takes no more."""
        # Its lateness is reckoned here and not when it came: a change of latency counts at once,
        # and no chunk can overtake another.
        until = time.monotonic() - self.latency
        while pipe.waiting and not pipe.is_full and pipe.waiting[0][0] <= until:
            since, data = pipe.waiting[0]
            if pipe is link.up and data and not pipe.is_begun:
                self._judge(link, data)
                if link not in self.links:
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
                return self._lose(link, news=link.down if pipe is link.up else link.up)
            self.passed[pipe.direction] += sent
            pipe.size -= sent
            pipe.waiting.popleft()
            pipe.is_begun = sent < len(data)
            if pipe.is_begun:
                pipe.waiting.appendleft((since, data[sent:]))

    def _judge(self, link: Link, request: bytes) -> None:
        """A request is about to go up: is it one whose reply is to be dropped?"""
        if self.drop.count and link.fate is None and self.drop.match in request:
            if not link.down.has_ended:
                self._pull(link, link.down)  # what is here already answers older requests
            if link in self.links and not link.is_asking:
                self.drop.count -= 1
                link.fate = self.drop.then
        link.is_asking = True

    # -- Ends ----------------------------------------------------------------------------------

    def _lose(self, link: Link, *, news: Pipe) -> None:
        """The peer at the source of this pipe is gone. A hole swallows that, too."""
        if news.direction not in self._holes:
            return self._end(link)
        link.has_lost = True
        for pipe in link.pipes:
            pipe.has_ended = True
            pipe.is_full = False
            pipe.forget()

    def _end(self, link: Link, *, in_peace: bool = False) -> None:
        del self.links[link]
        for end in (link.client, link.server):
            self._watch(end, link, 0)
            if in_peace:
                end.close()
            else:
                _reset(end)

    def _watch(self, end: socket.socket, link: Link | None, events: int) -> None:
        before = self._watched.get(end, 0)
        if events == before:
            return
        if not before:
            self._selector.register(end, events, link)
        elif events:
            self._selector.modify(end, events, link)
        else:
            self._selector.unregister(end)
        self._watched[end] = events
        if not events:
            del self._watched[end]


def _reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    end.close()

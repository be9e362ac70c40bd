"""A bad network for your tests: a TCP proxy that delays, freezes, swallows and resets at your word.

    with FaultProxy(("127.0.0.1", 6379)) as network:
        store = connect(network.host, network.port)
        network.drop_replies()      # the next request is executed, its reply is lost
        network.freeze()            # nothing moves
        network.thaw()              # what was withheld flows

The rules:

- One daemon thread owns all sockets (`fault_relay.py`). A control is an order to it: when the
  method returns, the effect is there. Call it from any thread, also from a coroutine: it blocks
  for microseconds.
- What was sent before a control was called is treated as before it: in each turn the thread first
  serves its sockets, then obeys.
- Each direction is a queue of chunks: what one read gave. On loopback this is one write of the
  peer, unless the peer wrote faster than we read; then it is several.
- A reset is a TCP RST. A unix socket has none: a server on a unix path sees the end instead.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, Self, TypeVar

from lab.fault_proxy import BACKLOG, Address, Direction, Drop, Relay
from lockfast import forks

T = TypeVar("T")

PATIENCE = 30.0  # for our own thread: it answers in microseconds, or it is dead
DIRECTIONS: dict[str, set[Direction]] = {"up": {"up"}, "down": {"down"}, "both": {"up", "down"}}


class FaultProxy:
    """Stands before `upstream`, a ``(host, port)`` or the path of a unix socket, and listens on
    `host` and `port`, a free one of loopback. It passes everything on until told otherwise.

    It listens from the start. `close`, or the end of the ``with`` block, resets what is connected.
    If the server cannot be reached, the client is reset.
    """

    host: str
    port: int

    def __init__(self, upstream: tuple[str, int] | str) -> None:
        address = _resolved(upstream)
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.host, self.port = listener.getsockname()
        self._bell, ear = socket.socketpair()
        self._bell.setblocking(False)
        self._relay = Relay(listener, ear, *address)
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_open = True
        self._mutex = threading.Lock()  # of the two above: no order comes after the end
        self._thread = threading.Thread(target=self._run, name="FaultProxy", daemon=True)
        self._thread.start()
        forks.remember(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Reset all connections, stop listening, end the thread. May be called again."""
        if self._is_open:
            self._do(self._stop)
            self._thread.join(PATIENCE)

    # -- Controls ------------------------------------------------------------------------------

    @property
    def latency(self) -> float:
        """Seconds that each chunk is late, in each direction; also those under way already.

        Chunks are late side by side: ten of them at once arrive together after one latency.
        Connecting takes no longer. Zero lets all that is under way arrive.
        """
        return self._relay.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"latency must be a finite number of seconds, not {seconds!r}")
        self._set("latency", float(seconds))

    def freeze(self) -> None:
        """Nothing moves in either direction, not even the news that a peer is gone. New
        connections are established by the kernel, and silent."""
        self._set("is_frozen", True)

    def thaw(self) -> None:
        """End `freeze`: all that was withheld flows."""
        self._set("is_frozen", False)

    def black_hole(self, direction: Literal["up", "down", "both"] = "both") -> None:
        """Swallow what goes up (to the server), down (to the client) or both; connections stay
        open, and the news that a peer is gone is swallowed too. Adds to an earlier hole."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction must be 'up', 'down' or 'both', not {direction!r}")
        self._do(lambda: self._relay.dig(DIRECTIONS[direction]))

    def heal(self) -> None:
        """End all black holes. A connection that lost bytes is broken in the middle of its
        stream: it is reset, also if `drop_replies` silenced it. The others live on."""
        self._do(self._relay.heal)

    def reset(self) -> int:
        """Reset all current connections, towards both peers, also while frozen; how many."""
        return self._do(self._relay.reset)

    def refuse(self) -> None:
        """Reset new connections as soon as they are made, until `accept`. Present ones stay. A
        client learns it from its first read, or, if it is slow, while it still connects."""
        self._set("is_refusing", True)

    def accept(self) -> None:
        """End `refuse`."""
        self._set("is_refusing", False)

    def lose_replies(
        self,
        count: int = 1,
        *,
        match: bytes | None = None,
        then: Literal["reset", "silence"] = "reset",
    ) -> None:
        """Let the next `count` requests be executed, and lose their replies.

        A request is a chunk from the client, see above; with `match`, one that contains these
        bytes. It reaches the server, and what the server sends on this connection from then on
        is swallowed. ``then="reset"``: as soon as the reply came, so the server did execute it,
        the connection is reset. ``"silence"``: it stays open, requests go up, nothing comes down;
        what else is asked there does not use up the count.

        A chunk is passed over, and does not count, while an older reply may be under way on its
        connection, that is, when the last bytes there went up. So a client that reads all its
        replies before it writes again loses none but its own; `dropped` tells. A client that
        writes one request in several pieces must be matched in the first. Pushed messages look
        like replies: do not drop on a connection that subscribed.

        A new call replaces an older one; ``drop_replies(0)`` takes it back.
        """
        if count < 0 or then not in ("reset", "silence"):
            raise ValueError(f"cannot drop {count!r} replies, then {then!r}")
        self._set("drop", Drop(count, match or b"", then))

    # -- Counters ------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._read(lambda: len(self._relay.links))

    @property
    def accepted(self) -> int:
        """How many were ever accepted, without those refused."""
        return self._read(lambda: self._relay.accepted)

    @property
    def dropped(self) -> int:
        """How many replies `drop_replies` swallowed: counted when the reply came."""
        return self._read(lambda: self._relay.dropped)

    @property
    def bytes_up(self) -> int:
        """How many bytes were passed on to the server; what is swallowed does not count."""
        return self._read(lambda: self._relay.passed["up"])

    @property
    def bytes_down(self) -> int:
        """How many bytes were passed on to clients."""
        return self._read(lambda: self._relay.passed["down"])

    # -- The thread, and how it is told --------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._is_open:
                if self._relay.turn():
                    while not self._orders.empty():
                        self._orders.get()()
                    self._relay.tend_all()
        finally:
            with self._mutex:
                self._is_open = False
                while not self._orders.empty():
                    self._orders.get()()  # a counter read at the last moment
                self._close_files()

    def _do(self, act: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def obey() -> None:
            try:
                answer.set_result(act())
            except Exception as error:  # it is the caller's, and the thread goes on
                answer.set_exception(error)

        with self._mutex:
            if not self._is_open:
                raise RuntimeError(f"the proxy on port {self.port} is closed")
            self._orders.put(obey)
            try:
                self._bell.send(b"!")
            except BlockingIOError:
                pass  # it was rung so often that it will come
        return answer.result(PATIENCE)

    def _set(self, name: str, value: object) -> None:
        self._do(lambda: setattr(self._relay, name, value))

    def _read(self, counter: Callable[[], int]) -> int:
        # Through the thread, because it counts after it sent: who has the reply has the count.
        return self._do(counter) if self._is_open else counter()

    def _stop(self) -> None:
        self._relay.reset()
        self._is_open = False

    def _close_files(self) -> None:
        self._relay.close()
        self._bell.close()

    # -- Forks: a copy of a socket in a child would keep it from being reset -------------------

    def before_fork(self) -> None:
        """The thread goes on."""

    def after_fork_in_parent(self) -> None:
        """It still does."""

    def after_fork_in_child(self) -> None:
        """The child has no thread, so no proxy. What it connects goes through its parent's."""
        self._mutex = threading.Lock()
        self._is_open = False
        self._close_files()


def _resolved(upstream: tuple[str, int] | str) -> tuple[socket.AddressFamily, Address]:
    """Of a name with addresses of both families, such as localhost, the one that we also use."""
    if isinstance(upstream, str):
        return socket.AF_UNIX, upstream
    found = socket.getaddrinfo(*upstream, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, address

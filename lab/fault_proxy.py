"""A bad network for tests: a TCP proxy that delays, freezes, discards and resets on command.

    with FaultProxy(("127.0.0.1", 6379)) as network:
        store = connect(network.host, network.port)
        network.lose_replies()      # the next request is executed, its reply is lost
        network.freeze()            # nothing moves
        network.thaw()              # the delayed bytes flow

The rules:

- One daemon thread owns all sockets (`fault_proxy_relay.py`). A control is a request to that
  thread: when the method returns, it is in effect. Call it from any thread or coroutine: it blocks
  for microseconds.
- Bytes sent before a control was called are treated as before it: in each step the thread serves
  its sockets first and its controls second.
- Each direction is a queue of chunks; a chunk is the result of one read. On loopback that is one
  write of the peer, unless the peer wrote faster than the proxy read; then it is several.
- A reset is a TCP RST. A Unix socket has none: a server on a Unix path sees the end of the stream.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, Self, TypeVar

from lab.fault_proxy_relay import BACKLOG, Address, Direction, Relay, ReplyLoss
from lockfast import forks

T = TypeVar("T")

PATIENCE = 30.0  # for the proxy's own thread: it answers in microseconds, or it is dead
DIRECTIONS: dict[str, set[Direction]] = {"up": {"up"}, "down": {"down"}, "both": {"up", "down"}}


class FaultProxy:
    """A proxy in front of `upstream`, a ``(host, port)`` or the path of a Unix socket. It listens
    on `host` and `port`, a free port of loopback, and passes everything on until a control is
    called.

    It listens from the start. `close`, or the end of the ``with`` block, resets all connections. If
    the server cannot be reached, the client is reset.
    """

    host: str
    port: int

    def __init__(self, upstream: tuple[str, int] | str) -> None:
        address = _resolved(upstream)
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.host, self.port = listener.getsockname()
        self._control, control = socket.socketpair()
        self._control.setblocking(False)
        self._relay = Relay(listener, control, *address)
        self._controls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_open = True
        self._mutex = threading.Lock()  # for the two above: no control is queued after the end
        self._thread = threading.Thread(target=self._run, name="FaultProxy", daemon=True)
        self._thread.start()
        forks.register(self)

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
        """Delay of each chunk in each direction, in seconds; chunks in flight included.

        Delays run in parallel: ten chunks sent at once arrive together after one latency.
        Connecting takes no longer. Zero lets everything in flight arrive.
        """
        return self._relay.latency

    @latency.setter
    def latency(self, seconds: float) -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"latency must be a finite number of seconds, not {seconds!r}")
        self._set("latency", float(seconds))

    def freeze(self) -> None:
        """Stop everything in both directions, even the end of a stream. The kernel still
        establishes new connections; they are silent."""
        self._set("is_frozen", True)

    def thaw(self) -> None:
        """End `freeze`: the delayed bytes flow."""
        self._set("is_frozen", False)

    def black_hole(self, direction: Literal["up", "down", "both"] = "both") -> None:
        """Discard the bytes that go up (to the server), down (to the client) or both. Connections
        stay open, and the end of a stream is discarded too. Adds to an earlier black hole."""
        if direction not in DIRECTIONS:
            raise ValueError(f"direction must be 'up', 'down' or 'both', not {direction!r}")
        self._do(lambda: self._relay.dig(DIRECTIONS[direction]))

    def heal(self) -> None:
        """End all black holes. A connection that lost bytes is broken in the middle of its stream
        and is reset, also if `lose_replies` silenced it. The others go on."""
        self._do(self._relay.heal)

    def reset(self) -> int:
        """Reset all connections towards both peers, also while frozen, and return their number."""
        return self._do(self._relay.reset)

    def refuse(self) -> None:
        """Reset new connections as soon as they are made, until `accept`. Present ones stay. A
        client notices at its first read or, if it is slow, while it still connects."""
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
        """Let the server execute the next `count` requests, and discard their replies.

        A request is a chunk from the client, see above; with `match`, one that contains these
        bytes. It reaches the server, and everything that the server sends on this connection from
        then on is discarded. ``then="reset"``: the connection is reset as soon as the reply came,
        which proves that the server executed the request. ``"silence"``: the connection stays open,
        requests go up, nothing comes down; further requests there do not use up the count.

        A chunk does not count while an older reply may be in flight on its connection, that is,
        when the last bytes there went up. So a client that reads all its replies before it writes
        again loses no other reply; see `lost_replies`. Where a client writes one request in several
        pieces, `match` must be in the first. Pushed messages look like replies: do not use this on
        a connection that subscribed.

        A new call replaces an older one; ``lose_replies(0)`` revokes it.
        """
        if count < 0 or then not in ("reset", "silence"):
            raise ValueError(f"cannot lose {count!r} replies, then {then!r}")
        self._set("loss", ReplyLoss(count, match or b"", then))

    # -- Counters ------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Open connections."""
        return self._read(lambda: len(self._relay.pairs))

    @property
    def accepted(self) -> int:
        """Connections accepted so far, without those refused."""
        return self._read(lambda: self._relay.accepted)

    @property
    def lost_replies(self) -> int:
        """Replies that `lose_replies` discarded, counted when the reply came."""
        return self._read(lambda: self._relay.lost_replies)

    @property
    def bytes_up(self) -> int:
        """Bytes passed on to the server; discarded bytes do not count."""
        return self._read(lambda: self._relay.passed["up"])

    @property
    def bytes_down(self) -> int:
        """Bytes passed on to clients."""
        return self._read(lambda: self._relay.passed["down"])

    # -- The thread, and its controls --------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._is_open:
                if self._relay.step():
                    while not self._controls.empty():
                        self._controls.get()()
                    self._relay.tend_all()
        finally:
            with self._mutex:
                self._is_open = False
                while not self._controls.empty():
                    self._controls.get()()  # a counter read at the last moment
                self._close_files()

    def _do(self, act: Callable[[], T]) -> T:
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(act())
            except Exception as error:  # raised in the caller; the thread goes on
                result.set_exception(error)

        with self._mutex:
            if not self._is_open:
                raise RuntimeError(f"the proxy on port {self.port} is closed")
            self._controls.put(run)
            try:
                self._control.send(b"!")
            except BlockingIOError:
                pass  # the buffer is full: the thread will wake up
        return result.result(PATIENCE)

    def _set(self, name: str, value: object) -> None:
        self._do(lambda: setattr(self._relay, name, value))

    def _read(self, counter: Callable[[], int]) -> int:
        # Through the thread, because it counts after it sent: a client that has its reply must see
        # the count.
        return self._do(counter) if self._is_open else counter()

    def _stop(self) -> None:
        self._relay.reset()
        self._is_open = False

    def _close_files(self) -> None:
        self._relay.close()
        self._control.close()

    # -- Forks: a copy of a socket in a child would keep it from being reset -------------------

    def before_fork(self) -> None:
        """Do nothing: the thread goes on."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the thread went on."""

    def after_fork_in_child(self) -> None:
        """Close the child's copies: it has no thread. Its connections go through the parent's
        proxy."""
        self._mutex = threading.Lock()
        self._is_open = False
        self._close_files()


def _resolved(upstream: tuple[str, int] | str) -> tuple[socket.AddressFamily, Address]:
    """Resolve the address; of a name with both families, such as localhost, take IPv4."""
    if isinstance(upstream, str):
        return socket.AF_UNIX, upstream
    found = socket.getaddrinfo(*upstream, type=socket.SOCK_STREAM)
    family, *_, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, address

"""Direct access to the server for the tests of the ZooKeeper store: nodes, their sessions, and the
end of a session. None of it uses lockfast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lab.fault_proxy import FaultProxy
from lockfast.stores.zookeeper.errors import Unreachable
from lockfast.stores.zookeeper.requests import Create
from lockfast.stores.zookeeper.session import Batch, _Slot

SESSION = 2.0  # seconds: short enough to wait for, ten ticks of the server
TICK = 0.2
SECRET = 0xB3415C00  # from ZooKeeper's source: a session's password is derived from its id


def with_session(url: str, seconds: float = SESSION) -> str:
    """The URL with this session time-out."""
    return f"{url}?session_timeout={seconds}"


@dataclass(frozen=True)
class Node:
    """An ephemeral node that exists."""

    path: str
    session: int
    czxid: int
    data: bytes

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def sessions(server: Any) -> dict[str, int]:
    """The session of each ephemeral node, by path. The server must be a leader or standalone."""
    found: dict[str, int] = {}
    session = 0
    text = server.command("dump").partition("Sessions with Ephemerals")[2]
    for line in text.splitlines():
        if line.startswith("0x"):
            session = int(line.strip().rstrip(":"), 16)
        elif line.startswith("\t/"):
            found[line.strip()] = session
    return found


def nodes(server: Any, name: str) -> list[Node]:
    """The ephemeral nodes whose path contains this name, in the order of creation."""
    paths = [path for path in sessions(server) if name in path]
    if not paths:
        return []
    from kazoo.exceptions import NoNodeError

    found = []
    with asking(server) as client:
        for path in paths:
            try:
                data, stat = client.get(path)
            except NoNodeError:
                continue  # gone meanwhile
            found.append(Node(path, stat.ephemeralOwner, stat.czxid, data))
    return sorted(found, key=lambda node: node.czxid)


@contextmanager
def asking(server: Any, **options: Any) -> Iterator[Any]:
    """A kazoo client, closed at the end."""
    client = server.client(**options)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expire(server: Any, session: int) -> None:
    """End a client's session at once, as ZooKeeper does on a time-out: resume it with its password,
    and close it."""
    client = server.client(client_id=(session, password(session)))
    assert client.client_id[0] == session, "the session is over already"
    client.stop()
    client.close()


def lose_next(network: FaultProxy, name: str, count: int = 1, then: Any = "reset") -> None:
    """Lose the reply to the next request about the name. A request sent while an older reply is in
    flight would be skipped, so first wait until the connection is idle for a moment."""
    moved, since = -1, time.monotonic()
    while time.monotonic() < since + 0.1:
        now = network.bytes_up + network.bytes_down
        if now != moved:
            moved, since = now, time.monotonic()
        time.sleep(0.005)
    network.lose_replies(count, match=name.encode(), then=then)


def password(session: int) -> bytes:
    """The password as ZooKeeper makes it: 16 bytes of Java's random numbers, from a known seed."""
    mask = (1 << 48) - 1
    state = ((session ^ SECRET) ^ 0x5DEECE66D) & mask
    chunks = []
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & mask
        chunks.append((state >> 16 & 0xFFFFFFFF).to_bytes(4, "little"))
    return b"".join(chunks)


class Networks:
    """Fault proxies in front of all servers of an ensemble; `all` controls them together."""

    def __init__(self, servers: list[Any]) -> None:
        self.proxies = [FaultProxy(("127.0.0.1", server.port)) for server in servers]

    @property
    def url(self) -> str:
        return "zookeeper://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)

    def all(self, order: str, *args: Any, **terms: Any) -> None:
        for proxy in self.proxies:
            getattr(proxy, order)(*args, **terms)

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()


class AnswerLost:
    """An observer that is never notified of the outcome of its create."""

    def __init__(self, observer: Any) -> None:
        self.sent = observer.sent
        self.created = lambda answer: observer.created(None)


def lose_answer(session: Any, kind: Any, times: int = 1) -> list[int]:
    """The server executes the next request of this kind; the answers of its batch are lost."""
    real, left = session.send, [times]

    def send(requests: Any, done: Any) -> Any:
        if not left[0] or not any(isinstance(request, kind) for request in requests):
            return real(requests, done)
        left[0] -= 1
        unanswered = [
            request._replace(observer=AnswerLost(request.observer))
            if isinstance(request, Create) and request.observer
            else request
            for request in requests
        ]
        batch = Batch(session, unanswered, done)
        batch.error = Unreachable("the answer was lost")
        for request in unanswered:
            if isinstance(request, Create) and request.observer:
                request.observer.sent()
        encoded = [session._encode(request) for request in unanswered]
        slots = [_Slot(batch, number) for number in range(len(unanswered))]
        assert session._connection.ask(encoded, slots)
        return batch

    session.send = send
    return left

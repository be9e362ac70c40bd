"""MiniRedis and a real Redis side by side: every reply of one is compared with the other's.

`Wire` implements the protocol in a few lines, so that replies are compared as they arrive, before
any driver converts them.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from lab.miniredis import Argument, MiniError, MiniRedis

KEYS = [b"k1", b"k2", b"k3", "schlüssel".encode(), b"\x00\xff"]


class Wire:
    """A connection to a real Redis. It returns error replies as values, `MiniError`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def call(self, *args: Argument) -> Any:
        return self.pipeline([args])[0]

    def pipeline(self, commands: list[tuple[Argument, ...]]) -> list[Any]:
        sent = b""
        for args in commands:
            command = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
            sent += b"*%d\r\n" % len(command)
            sent += b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
        self._socket.sendall(sent)
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        line = self._file.readline()
        assert line.endswith(b"\r\n"), f"Redis closed the connection after {line!r}"
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return MiniError(rest.decode("utf-8", "surrogateescape"))
        number = int(rest)
        if kind == b":":
            return number
        if number < 0:
            return None
        if kind == b"*":
            return [self._reply() for _ in range(number)]
        return self._file.read(number + 2)[:-2]


class Both:
    """One MiniRedis on the machine's clock, and one real Redis."""

    def __init__(self, port: int) -> None:
        self.real = Wire(port)
        self.published: list[tuple[str, bytes]] = []
        self.mini = MiniRedis(lambda: time.time_ns() // 1000, self._published)
        self.real.pipeline([("FLUSHALL",), ("SCRIPT", "FLUSH")])

    def _published(self, channel: str, message: bytes) -> int:
        self.published.append((channel, message))
        return 0  # the real one has no subscribers either

    def ask_mini(self, *args: Argument) -> Any:
        try:
            return self.mini.call(*args)
        except MiniError as error:
            return error

    def agree(self, *commands: tuple[Argument, ...]) -> list[Any]:
        """Return the replies to these commands, which must be the same from both."""
        expected = self.real.pipeline(list(commands))
        for args, theirs in zip(commands, expected, strict=True):
            ours = self.ask_mini(*args)
            assert alike(args, ours, theirs), (
                f"{args}: Redis replied {theirs!r}, MiniRedis {ours!r}"
            )
        return expected

    def agree_on_all(self) -> None:
        """Compare all keys, values and expiry times."""
        looks: list[tuple[Argument, ...]] = [("EXISTS", *KEYS), ("SCAN", 0, "COUNT", 1000)]
        for key in KEYS:
            looks += [("TYPE", key), ("PTTL", key), ("GET", key), ("HGETALL", key)]
            looks.append(("ZRANGE", key, 0, -1, "WITHSCORES"))
        self.agree(*looks, ("DBSIZE",))


def alike(args: tuple[Argument, ...], ours: Any, theirs: Any) -> bool:
    name = str(args[0]).upper()
    if isinstance(theirs, MiniError):
        return isinstance(ours, MiniError) and text(ours) == text(theirs)
    if name == "PTTL" and isinstance(ours, int) and ours > 0 and isinstance(theirs, int):
        return abs(ours - theirs) < 30_000  # the TTLs in these tests differ by much more
    if name == "SCAN" and ours[:1] == theirs[:1] == [b"0"]:
        return sorted(ours[1]) == sorted(theirs[1])
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        return all(alike(("in a list",), a, b) for a, b in zip(ours, theirs, strict=True))
    return isinstance(ours, type(theirs)) and type(ours) is not bool and ours == theirs


def text(error: MiniError) -> str:
    """Return an error without its end, in which Redis 7 names the script and the line."""
    return str(error).partition(" script: ")[0]

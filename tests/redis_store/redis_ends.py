"""Both faces behind one way to call them, and a server that says what it is told to say.

`Threads` and `Tasks` take the same functions: ``agent.do(lambda client: client.inspect("a"))``
blocks until it is done, in this thread or in a task of a loop that runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import hiredis

import holdfast
from holdfast import aio

PATIENCE = 15.0  # for what must come; nothing is measured by it
Call = Callable[[Any], Any]


class Threads:
    """A blocking client."""

    colour = "blocking"

    def __init__(self, where: Any, **terms: Any) -> None:
        self.client = holdfast.connect(where, **terms)

    def do(self, call: Call) -> Any:
        return call(self.client)

    def later(self, call: Call) -> Future[Any]:
        """In a thread of its own."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(call(self.client))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def close(self) -> None:
        self.client.close()


class Tasks:
    """An asyncio client, and the loop that it lives in."""

    colour = "asyncio"

    def __init__(self, where: Any, **terms: Any) -> None:
        self.client = aio.connect(where, **terms)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()
        await self.client.close()

    def do(self, call: Call) -> Any:
        return self.later(call).result(PATIENCE)

    def later(self, call: Call) -> Future[Any]:
        """In a task of its own."""

        async def work() -> Any:
            return await call(self.client)

        return asyncio.run_coroutine_threadsafe(work(), self.loop)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(PATIENCE)


Agent = Threads | Tasks
FACES: dict[str, type[Threads] | type[Tasks]] = {"blocking": Threads, "asyncio": Tasks}


def until(so: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until it is so; what it was then."""
    ends = time.monotonic() + patience
    while not (answer := so()):
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(0.005)
    return answer


class took:
    """How long the block took, in seconds."""

    def __enter__(self) -> took:
        self.began = time.monotonic()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.monotonic() - self.began


def connections(server: Any) -> list[dict[str, str]]:
    """Who is connected by TCP; the tests themselves use the unix socket."""
    return [client for client in server.call("CLIENT LIST") if client["addr"].startswith("127.")]


class FakeServer:
    """Speaks just enough of Redis to be connected to, and answers each script with what it is told.

    ``answers`` are bytes as they go over the wire, one for each command after the handshake; when
    there is but one left, it is given again and again. None: close the connection. A function: it
    is called with the socket.
    """

    HELLO = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.commands: list[list[bytes]] = []
        self.closed = 0
        self.accepted = 0
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._ends.append(end)
            threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := end.recv(1 << 16):
                reader.feed(data)
                while command := reader.gets():
                    if not self._answer(end, command):
                        return
        except OSError:
            pass  # the client has gone
        finally:
            self.closed += 1
            end.close()

    def _answer(self, end: socket.socket, command: list[bytes]) -> bool:
        known = {
            b"HELLO": self.HELLO,
            b"INFO": b"$0\r\n\r\n",
            b"SUBSCRIBE": b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
            b"PING": b"+PONG\r\n",
        }
        answer: Any = known.get(command[0])
        if answer is None:
            self.commands.append(command)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer(end)
        elif answer is not None:
            end.sendall(answer)
        return answer is not None

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # gone already

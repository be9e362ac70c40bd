"""Connections of threads to one server, and the spinning that makes a near one fast.

*Adaptive spinning*: poll the socket for up to 100 µs before blocking, if replies arrive that fast.
Blocking and being woken takes longer than a server on the same host, or next to it, needs to reply,
and costs about as much CPU time as polling. With a distant server spinning fails; failures are
counted, and the next attempts become rarer and rarer. On a single core spinning would keep the
server from running, and with many threads it would take the core from threads that have work.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis

from lockfast import clock
from lockfast.core.ports import Reply, Signal
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.redis.errors import ServerError, Unreachable
from lockfast.stores.redis.redis_py import ServerAddress, socket_of
from lockfast.stores.redis.scripts import Script
from lockfast.stores.steps import Steps
from lockfast.stores.wakeups import Wakeups

READ_SIZE = 65536
SHORT = 448  # enough for our replies; allocating more costs more than most of the read
# Seconds for which a reply is read at once; then it is polled for. Python restarts a read that a
# signal interrupted, with the whole of the kernel's time-out, but takes a poll's from the clock.
SLICE = 0.005
LEAST = 0.02  # for a command after connecting took the whole budget, lest that be wasted
MOST_BYTES = 64 * 2**20  # of one reply: a server that never ends one must not fill our memory
POLLS = 160  # about 100 µs
MOST_SKIPPED = 1023
BACK_OFF = 16
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NEVER = 1 << 62

Ready = Sequence[tuple[int, int]]


class Spin:
    """The spinning state of one connection, or of a group on which one thread sends together."""

    __slots__ = ("_failed", "_poll", "_skip")

    def __init__(self, poll: Callable[[int], Ready]) -> None:
        self._poll = poll
        self._skip = 0 if CORES > 1 else NEVER  # replies to wait for without spinning
        self._failed = 0  # how many replies were skipped after the last failure

    def poll(self) -> Ready:
        """Spin, and return what is readable. Empty: the caller has to block until something is."""
        if self._skip > 0:
            self._skip -= 1
            return ()
        poll = self._poll
        for _ in range(POLLS):
            if ready := poll(0):
                self._failed >>= 1
                return ready
        self._skip = self._failed = min(2 * self._failed + 1, MOST_SKIPPED)
        return ()

    def back_off(self) -> None:
        """Do not spin for the next `BACK_OFF` replies: another thread sent a command before this
        one, or waits for what this one holds, and needs the core."""
        self._skip = max(self._skip, BACK_OFF)


class SharingDetector:
    """Notices that several threads use one transport, and makes them back off from spinning."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: Spin | None = None

    def used_by(self, spin: Spin) -> None:
        """Note a command; back off if the previous one was another thread's."""
        if self._latest is not spin:
            self._latest = spin
            spin.back_off()


class Channel(Protocol):
    """The way to one server, of one API. Where the API ``suspends``, each method that returns a
    `Reply` returns an awaitable. A server's error is a reply, a `ServerError`."""

    wakeups: Wakeups
    suspends: bool

    @property
    def wake_address(self) -> str:
        """The address for our wake-ups; '.' while nobody listens."""

    def send(self, command: bytes, budget: float) -> Reply[Any]:
        """Send one command; the reply."""

    def send_all(
        self, commands: Sequence[bytes], budget: float, wait: tuple[int, int] | None = None
    ) -> Reply[list[Any]]:
        """Send commands in one write. ``wait``, a number of replicas and of milliseconds: WAIT for
        them on the same connection; that reply is the last."""

    def join(
        self, script: Script, claim: Claim, arguments: bytes, budget: float, decode: Decode
    ) -> Reply[Any]:
        """Call a script on one name, if possible together with other tasks' calls, and decode the
        reply. (Only where the API suspends.)"""

    def subscribe(self, since: float) -> Reply[bool]: ...

    def signal(self, listens: bool) -> Signal | None: ...

    def listen(self, timeout: float | None) -> Reply[None]: ...

    def interrupt(self) -> None: ...

    def distrust(self, why: str) -> None:
        """Close the last connection: it is out of step, or leads to the wrong server."""

    def close(self) -> None: ...


class Decode(Protocol):
    """Make the answer of a reply, or raise `Unfinished`."""

    def __call__(self, reply: Any, claim: Claim, budget: float) -> list[Any]: ...


class Unfinished(Exception):
    """The reply is not the answer: these are the steps to it."""

    def __init__(self, steps: Steps[list[Any]]) -> None:
        self.steps = steps


def new_reader() -> Any:
    return hiredis.Reader(replyError=ServerError)


class Connection:
    """A connected socket, for one thread at a time."""

    __slots__ = (
        "__weakref__", "_connection", "_limit", "_most", "_poll", "_where", "budget", "generation",
        "pushed", "reader", "sock", "spin", "used",
    )  # fmt: skip

    def __init__(self, address: ServerAddress, budget: float) -> None:
        began = clock.now()
        self._where = address.where
        self._connection, self.generation = address.connect(budget)
        self.sock: Any = socket_of(self._connection)
        self.sock.settimeout(None)
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        self._poll = poller.poll
        self.spin = Spin(poller.poll)
        self.reader = new_reader()
        self.pushed: Any = None
        self.used = clock.now()
        self.budget = max(began + budget - self.used, LEAST)  # what connecting has left of it
        self._limit = -1.0
        # TLS data that is decrypted but not read is invisible to poll, so it is read at once.
        self._most = READ_SIZE if isinstance(self.sock, ssl.SSLSocket) else SHORT
        if self._most == SHORT:
            value = struct.pack("ll", 0, int(SLICE * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def ask(self, command: bytes, budget: float) -> Any:
        """Send one command and read its reply. After an error the caller must close the
        connection: the reply may still arrive."""
        try:
            if budget != self._limit:
                self._set_limit(budget)
            self.sock.sendall(command)
            self.spin.poll()
            try:
                self.reader.feed(self.sock.recv(self._most))
                answer = self.reader.gets()
            except BlockingIOError:
                answer = False  # nothing within `SLICE`
            if answer is False or type(answer) is hiredis.PushNotification:
                answer = self._read_reply(answer, clock.now() + budget)
            if self.reader.has_data():
                self._read_pushes()
            return answer
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def ask_all(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        """Send several commands in one write, and read their replies."""
        until = clock.now() + budget
        try:
            self._set_limit(budget)
            self.sock.sendall(b"".join(commands))
            answers = [self._read_reply(self.reader.gets(), until) for _ in commands]
            self._read_pushes()
            return answers
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def subscribe(self, command: bytes, budget: float) -> Any:
        """Send a SUBSCRIBE; return the push that confirms it, or the error reply."""
        try:
            self._set_limit(budget)
            self.sock.sendall(command)
            return self._read_reply(self.reader.gets(), clock.now() + budget, any_push=True)
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, budget) from error

    def _read_reply(self, answer: Any, until: float, *, any_push: bool = False) -> Any:
        """Read until there is a reply (or, with ``any_push``, a push) unless ``answer`` is one."""
        size = 0
        while True:
            if type(answer) is hiredis.PushNotification and not any_push:
                self._push(answer)
                answer = self.reader.gets()
            elif answer is not False:
                return answer
            else:
                rest = until - clock.now()
                if rest <= 0 or not self._poll(rest * 1000.0):
                    raise TimeoutError
                data = self.sock.recv(READ_SIZE)
                size += len(data)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                if size > MOST_BYTES:
                    raise hiredis.ProtocolError("a reply without end")
                self.reader.feed(data)
                answer = self.reader.gets()

    def _read_pushes(self) -> None:
        """Deliver pushes that arrived together with a reply, since poll will not report them again.
        Another reply is an error: the next command would take it for its own."""
        pushed = self.pushed
        while (push := self.reader.gets()) is not False:
            if type(push) is not hiredis.PushNotification:
                raise hiredis.ProtocolError("a reply without a command")
            if pushed is not None:
                pushed(push)

    def _push(self, push: Any) -> None:
        if self.pushed is not None:
            self.pushed(push)

    def pushes(self) -> None:
        """Deliver the pushes that have arrived; the socket is known to be readable."""
        try:
            data = self.sock.recv(READ_SIZE)
            while data and self._most != SHORT and (more := self.sock.pending()):
                data += self.sock.recv(more)  # TLS has decrypted more than poll reports
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self.reader.feed(data)
            self._read_pushes()
        except (OSError, hiredis.HiredisError) as error:
            raise self._explained(error, 0.0) from error

    def _buffered(self) -> int:
        """How many bytes TLS has decrypted beyond those read, which poll does not report."""
        return self.sock.pending() if isinstance(self.sock, ssl.SSLSocket) else 0

    def _set_limit(self, budget: float) -> None:
        """Set the time-out of sending, the kernel's: Python's would cost one more system call for
        each command."""
        self._limit = budget
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.settimeout(budget)
        else:
            seconds = max(budget, 0.001)
            value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _explained(self, error: Exception, budget: float) -> BackendError:
        if isinstance(error, BlockingIOError | TimeoutError | ssl.SSLWantReadError):
            return Unreachable(f"{self._where} did not answer within {budget:.3g} s")
        if isinstance(error, hiredis.HiredisError):
            return Unreachable(f"{self._where} does not follow the Redis protocol: {error}")
        return Unreachable(f"the connection to {self._where} is lost: {error}")

    def is_stale(self) -> bool:
        """Has the server closed the idle connection, or sent anything but late wake-ups? Those are
        read and delivered. (A server may have an idle time-out.)"""
        try:
            self.sock.setblocking(False)
            if self.pushed is None:
                # Peek at the kernel's socket also under TLS, which cannot peek.
                socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
                return True
            data = self.sock.recv(READ_SIZE)
            self.reader.feed(data)
            self._read_pushes()
            return not data
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except (OSError, hiredis.HiredisError):
            return True
        finally:
            self._limit = -1.0
            self.sock.setblocking(True)

    def close(self) -> None:
        self._connection.disconnect()

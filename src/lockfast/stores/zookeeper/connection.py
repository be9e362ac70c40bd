"""The connection: kazoo's, but for what every cycle pays for, and how silence is taken.

kazoo's thread connects, authenticates, sends signs of life, and connects again. With kazoo it also
writes: a request is put into a queue, the thread is woken through a pair of sockets, writes, and
reads each answer in two pieces. Here whoever asks writes by itself, all that belongs together in
one go, and the thread reads whatever there is: half the CPU time of a cycle. (That whoever asks
also reads was tried, and brought nothing more.)

1. `_pending` has what was written and not answered, in the order of the wire: both change under one
   lock.
2. When the connection is given up, `open` ends under that lock, before those in `_pending` are told
   that their answers are lost. So nobody waits for an answer that nobody will tell of.
3. Nobody blocks in order to write, as tasks write too: what the kernel does not take at once is
   left to the thread.
4. An encrypted connection may be used by one thread at a time: there all is left to the thread.

Silence. A server that is paused, or starting, accepts and does not answer, and so does a network
that loses answers alone. There each attempt to go on with the session would keep it alive at the
server, and what is held in it, for somebody who hears nothing. So after silence we ask for
something that belongs to no session, and go on with ours only if that is answered.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import (
    CLOSE_RESPONSE,
    PING_XID,
    WATCH_XID,
    ConnectionDropped,
    ConnectionHandler,
)
from kazoo.protocol.states import KeeperState

PIECE = 1 << 16
LONGEST = 1 << 27  # bytes of an answer; more is no answer
LAST_XID = 2**31 - 1
# Any of its commands of four letters is answered, if only by "not in the whitelist".
PROBE = b"srvr"
_int = wire.int_struct
_PASSES = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Connection(ConnectionHandler):  # type: ignore[misc]
    """``attempt`` is how long one server may take to answer the first packet; ``before`` is asked
    before each attempt to connect, ``after`` is told the session's time-out that the server gave.
    Both are called on the thread."""

    def __init__(
        self,
        client: Any,
        attempt: float,
        before: Callable[[], None],
        after: Callable[[float], None],
    ) -> None:
        old = client._connection
        super().__init__(client, old.retry_sleeper, old.logger, old.sasl_options)
        self._xid: int = 0
        self.open = False
        self.refusal = ""  # why there can be no encrypted connection
        self._attempt = attempt
        self._before, self._after = before, after
        self._writing = threading.RLock()
        self._unsent = bytearray()
        self._unread = bytearray()
        self._silent = False
        self._over = self._left = False
        told = client._session_callback

        def changed(state: Any) -> None:
            if state != KeeperState.CONNECTED:
                with self._writing:
                    self.open = False
                    self._unsent.clear()
            told(state)

        client._session_callback = changed
        client._connection = self

    # ---- its end -----------------------------------------------------------------------------

    def zk_loop(self) -> None:
        try:
            super().zk_loop()
        finally:
            with self._writing:
                self._over = True
                left = self._left
            if left:
                self.close()

    def end(self, patience: float) -> None:
        """After goodbye was said. A thread that is not done by then closes its sockets itself."""
        if self.connection_stopped.wait(patience):
            self.stop(patience)
            self.close()
            return
        with self._writing:
            self._left = True
            over = self._over
        if over:
            self.close()

    # ---- connecting --------------------------------------------------------------------------

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        self._before()
        if self._silent and self.client._session_id and not self.client.use_ssl:
            self._probe(hostip, port)
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except self.handler.timeout_exception:
            self._silent = True
            raise
        except ConnectionDropped as error:
            # kazoo goes on trying. Who waits is to know that this does not pass by itself.
            cause = error.__context__
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, _PASSES):
                self.refusal = cause.reason or str(cause)
                if isinstance(cause, ssl.SSLCertVerificationError):
                    self.refusal = f"the server's certificate: {cause.verify_message}"
            raise
        self._silent, self.refusal = False, ""
        self._unread.clear()
        with self._writing:
            self.open = True
        self._after(read_timeout * 1.5 / 1e3)
        # kazoo would hear nothing for two thirds of the session before it asks another server, and
        # what we believe in ends after three quarters.
        return read_timeout / 2, connect_timeout

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        # kazoo would wait for an answer as long as the whole session lasts.
        return super()._invoke(min(timeout, self._attempt), request, xid)

    def _probe(self, hostip: Any, port: Any) -> None:
        """Does it answer us at all? An encrypted connection needs no such question: to open one, a
        server must answer."""
        try:
            with socket.create_connection((hostip, port), self._attempt) as probe:
                probe.sendall(PROBE)
                heard = probe.recv(1)
        except OSError as error:
            raise ConnectionDropped(f"it does not answer: {error}") from error
        if not heard:
            raise ConnectionDropped("it does not answer")

    # ---- writing -----------------------------------------------------------------------------

    def ask(self, requests: Sequence[Any], slots: Sequence[Any]) -> bool:
        """From any thread; each slot is told its answer. False: there is no connection, and nothing
        was done."""
        with self._writing:
            if not self.open:
                return False
            said, asked, xid = bytearray(), [], self._xid
            for request, slot in zip(requests, slots, strict=True):
                xid = xid % LAST_XID + 1
                said += _framed(request, xid)
                asked.append((request, slot, xid))
            try:
                self._xid = xid
                self.client._pending.extend(asked)
                self._put(said)
            except BaseException:
                # Ctrl-C: how much of it was written is unknown. The thread reads the end of it.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise
        return True

    def _put(self, said: bytearray) -> None:
        """Under the lock. What cannot be written because the connection has ended is not told here:
        the thread reads that end."""
        if self._unsent:
            self._unsent += said  # the thread is at it
            return
        taken = 0
        if not self.client.use_ssl:
            try:
                taken = self._socket.send(said)
            except BlockingIOError:
                pass
            except OSError:
                return
        if taken < len(said):
            self._unsent += said[taken:]
            with contextlib.suppress(OSError):
                self._write_sock.send(b"\0")

    def _submit(self, request: Any, timeout: float, xid: Any = None) -> None:
        """The thread's own: what opens a connection, signs of life, and goodbye."""
        if xid == PING_XID:
            self._silent = True  # until something is heard
        with self._writing:
            if self.open:
                self._put(_framed(request, xid))
                return
        super()._submit(request, timeout, xid)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        if self._unsent:
            self._read_sock.recv(1)
            self._send_rest(connect_timeout)
            return
        with self._writing:
            super()._send_request(read_timeout, connect_timeout)

    def _send_rest(self, timeout: float) -> None:
        while self._unsent:
            if not self.handler.select([], [self._socket], [], timeout)[1]:
                raise self.handler.timeout_exception("socket time-out during write")
            with self._writing:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass

    # ---- reading -----------------------------------------------------------------------------

    def _read_socket(self, read_timeout: float) -> Any:
        """Whatever there is. A piece of an answer is kept until the rest has come."""
        unread = self._unread
        try:
            # More than a record of TLS: nothing stays behind where no `select` would see it.
            piece = self._socket.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not piece:
            raise ConnectionDropped("socket connection broken")
        self._silent = False
        unread += piece
        at, end = 0, len(unread)
        while end - at >= 4:
            (length,) = _int.unpack_from(unread, at)
            if not 0 < length < LONGEST:
                raise ConnectionDropped(f"an answer of {length} bytes")
            if end - at < 4 + length:
                break
            answer = bytes(unread[at + 4 : at + 4 + length])
            at += 4 + length
            if self._answered(answer) == CLOSE_RESPONSE:
                return CLOSE_RESPONSE
        del unread[:at]
        return None

    def _answered(self, answer: bytes) -> Any:
        try:
            header, offset = wire.ReplyHeader.deserialize(answer, 0)
            if header.xid == PING_XID:
                self.ping_outstanding.clear()
            elif header.xid == WATCH_XID:
                self._read_watch_event(answer, offset)
            else:
                return self._read_response(header, answer, offset)
        except Exception as error:
            # Not what was asked, or nothing that we understand. kazoo's thread would end by it.
            raise ConnectionDropped(f"an answer out of place: {error!r}") from error
        return None


def _framed(request: Any, xid: int) -> bytearray:
    said = request.serialize()
    return bytearray(_int.pack(len(said) + 8) + _int.pack(xid) + _int.pack(request.type) + said)

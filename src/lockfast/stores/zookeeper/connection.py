"""kazoo's connection, with a faster request path and another reaction to silence.

kazoo's thread connects, authenticates, pings and reconnects. In kazoo it also writes: a request is
queued, the thread is woken through a socket pair, writes, and reads each answer in two pieces. Here
the caller writes its requests itself, a batch in one call, and the thread reads whatever has
arrived: half the CPU time of an acquire and release. (Reading in the caller gained nothing more.)

1. `_pending` (written, not answered) has the order of the wire: both change under one lock.
2. When the connection is closed, `open` becomes False under that lock, before the requests in
   `_pending` fail. So no caller waits for an answer that will never be delivered.
3. No caller blocks to write, since tasks write too: the thread sends what the kernel refuses.
4. An encrypted connection may be used by one thread at a time: there the thread does all writing.

Silence. A paused or starting server, or a network that loses only answers, accepts connections and
does not answer. There each attempt to resume the session would keep it and its holds alive at the
server, for a client that receives nothing. So after silence the client sends a probe that belongs
to no session, and resumes its own only if the probe is answered.
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

READ_SIZE = 1 << 16
MAX_REPLY = 1 << 27  # bytes; a greater length is not a valid answer
LAST_XID = 2**31 - 1
# A server answers any four-letter command, if only with "not in the whitelist".
PROBE = b"srvr"
_int = wire.int_struct
_PASSES = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class Connection(ConnectionHandler):  # type: ignore[misc]
    """A connection that replaces the one of a `KazooClient`. ``attempt`` is how long one server may
    take to answer the first packet. kazoo's thread calls ``before`` before each attempt to connect,
    ``after`` with the session time-out that the server granted."""

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
        self.refusal = ""  # why the TLS handshake failed
        self._attempt = attempt
        self._before, self._after = before, after
        self._writing = threading.RLock()
        self._unsent = bytearray()
        self._unread = bytearray()
        self._silent = False
        self._over = self._left = False
        notify_kazoo = client._session_callback

        def changed(state: Any) -> None:
            if state != KeeperState.CONNECTED:
                with self._writing:
                    self.open = False
                    self._unsent.clear()
            notify_kazoo(state)

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
        """Close the connection after the close request was queued. A thread that is not done after
        ``patience`` closes its sockets itself."""
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
            # kazoo keeps trying. The caller must learn that this error is permanent.
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
        # kazoo tolerates silence for two thirds of the session; a hold is valid for three quarters.
        return read_timeout / 2, connect_timeout

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        # kazoo would wait for an answer as long as the whole session lasts.
        return super()._invoke(min(timeout, self._attempt), request, xid)

    def _probe(self, hostip: Any, port: Any) -> None:
        """Check that the server answers at all. A TLS handshake is an answer: it needs no probe."""
        try:
            with socket.create_connection((hostip, port), self._attempt) as probe:
                probe.sendall(PROBE)
                reply = probe.recv(1)
        except OSError as error:
            raise ConnectionDropped(f"the server does not answer: {error}") from error
        if not reply:
            raise ConnectionDropped("the server does not answer")

    # ---- writing -----------------------------------------------------------------------------

    def ask(self, requests: Sequence[Any], slots: Sequence[Any]) -> bool:
        """Write the requests, from any thread; each slot receives its answer. False: there is no
        connection, and nothing was written."""
        with self._writing:
            if not self.open:
                return False
            data, pending, xid = bytearray(), [], self._xid
            for request, slot in zip(requests, slots, strict=True):
                xid = xid % LAST_XID + 1
                data += _frame(request, xid)
                pending.append((request, slot, xid))
            try:
                self._xid = xid
                self.client._pending.extend(pending)
                self._write_or_queue(data)
            except BaseException:
                # Ctrl-C: how much was written is unknown. The thread reads the end of the stream.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise
        return True

    def _write_or_queue(self, data: bytearray) -> None:
        """Write what the kernel accepts and leave the rest to the thread. Under the lock. A closed
        connection is not reported here: the thread reads the end of the stream."""
        if self._unsent:
            self._unsent += data  # the thread is writing already
            return
        taken = 0
        if not self.client.use_ssl:
            try:
                taken = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                return
        if taken < len(data):
            self._unsent += data[taken:]
            with contextlib.suppress(OSError):
                self._write_sock.send(b"\0")

    def _submit(self, request: Any, timeout: float, xid: Any = None) -> None:
        """Write a request of the thread itself: handshake, authentication, ping or close."""
        if xid == PING_XID:
            self._silent = True  # until something is received
        with self._writing:
            if self.open:
                self._write_or_queue(_frame(request, xid))
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
        """Read whatever has arrived. An incomplete answer is kept until the rest arrives."""
        unread = self._unread
        try:
            # More than a TLS record: no data stays in the TLS buffer, where `select` cannot see it.
            piece = self._socket.recv(READ_SIZE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not piece:
            raise ConnectionDropped("socket connection broken")
        self._silent = False
        unread += piece
        at, end = 0, len(unread)
        while end - at >= 4:
            (length,) = _int.unpack_from(unread, at)
            if not 0 < length < MAX_REPLY:
                raise ConnectionDropped(f"invalid answer length: {length} bytes")
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
            # Out of order, or not valid. The exception would end kazoo's thread.
            raise ConnectionDropped(f"unexpected answer: {error!r}") from error
        return None


def _frame(request: Any, xid: int) -> bytearray:
    body = request.serialize()
    return bytearray(_int.pack(len(body) + 8) + _int.pack(xid) + _int.pack(request.type) + body)

"""kazoo's client with a faster request path, and another reaction to silence.

kazoo's thread connects, authenticates, pings and reconnects. Its other features (retries, callback
queues, recipes) are not used. In kazoo the thread also writes: a request is queued, the thread is
woken through a socket pair, writes, and reads each answer in two pieces. Here the caller writes its
requests itself, a batch in one call, and the thread reads whatever has arrived: 88 µs of CPU time
for the requests of an acquire and release, not 358. (Reading in the caller gained nothing more.)

1. `_pending` (written, not answered) has the order of the wire: both change under one lock.
2. When the connection is closed, `open` becomes False under that lock, before the requests in
   `_pending` fail. So no caller waits for an answer that will never be delivered.
3. No caller blocks to write, since tasks write too: the thread sends what the kernel refuses.
4. An encrypted connection may be used by one thread at a time: there the thread does all writing.

Silence. A paused or starting server, or a network that loses only answers, accepts connections and
does not answer. There each attempt to resume the session would keep it and its holds alive at the
server, for a client that receives nothing. So after silence the client sends a probe that belongs
to no session, and resumes its own only if the probe is answered.

**Only this file uses kazoo's private attributes**; `Connection` checks that they are there. Of the
connection: the steps of its loop, its sockets and its counter, for the faster path. Of the client:
`_connection`, to replace it; `_pending`, for the faster path; `_session_callback`, for rule 2;
`_stopped` and `_queue`, because `stop()` waits at least ten seconds for an unreachable server; the
watchers, because a watch cannot be given up otherwise, and those of waiters that left would pile
up; `_session_timeout` and `sasl_options`, to copy a client of the user's.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kazoo import version
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import connection as kazoo
from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler
from kazoo.protocol.states import KeeperState

from lockfast.errors import ConfigurationError
from lockfast.stores.zookeeper.requests import WatchCallback

if TYPE_CHECKING:
    from lockfast.stores.zookeeper.session import Session

log = logging.getLogger("lockfast")
# kazoo logs each failed attempt to connect. We log what matters ourselves.
_kazoo_log = logging.getLogger("lockfast.kazoo")
if _kazoo_log.level == logging.NOTSET:
    _kazoo_log.setLevel(logging.ERROR)

PRIVATE = (  # of the client, and of its connection
    "_connection _pending _queue _session_callback _stopped _data_watchers _child_watchers "
    "_session_timeout",
    "zk_loop _connect _invoke _submit _send_request _read_socket _read_response _read_watch_event "
    "_socket _xid _read_sock _write_sock ping_outstanding connection_stopped sasl_options",
)
TESTED = "kazoo 2.11"
READ_SIZE, MAX_REPLY = 1 << 16, 1 << 27  # bytes; a greater length is not a valid answer
LAST_XID = 2**31 - 1
# A server answers any four-letter command, if only with "not in the whitelist".
PROBE = b"srvr"
_int = wire.int_struct
_PASSES = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def connect(hosts: str, timeout: float, options: dict[str, Any], session: Session) -> Connection:
    """Start to connect, on a thread. One server may take a part of ``timeout`` to answer the first
    packet."""
    attempt = timeout / (2 + hosts.count(",")) / 2
    client = Client(
        hosts,
        timeout=timeout,
        handler=Handler(attempt),
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5},
        command_retry={"max_tries": 0},
        logger=_kazoo_log,
        **options,
    )
    client.add_listener(session.changed)
    client.line = Connection(client, attempt, session)
    client.start_async()
    return client.line


def settings_of(client: Any) -> tuple[float, dict[str, Any]]:
    """The session time-out and the options of a client of the user's."""
    copied = "auth_data randomize_hosts use_ssl verify_certs check_hostname ca certfile keyfile"
    options = {name: getattr(client, name) for name in (*copied.split(), "keyfile_password")}
    options["sasl_options"] = client._connection.sasl_options
    return client._session_timeout / 1e3, options


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client with our connection."""

    _connection: Any
    line: Connection

    def _session_callback(self, state: Any) -> None:
        if state != KeeperState.CONNECTED:
            self.line.shut(state)
        super()._session_callback(state)


class Connection(ConnectionHandler):  # type: ignore[misc]
    """The connection of a `Client`, from its first attempt to its end."""

    def __init__(self, client: Client, attempt: float, session: Session) -> None:
        old: Any = getattr(client, "_connection", None)
        for part, names in zip((client, old), PRIVATE, strict=True):
            if missing := [name for name in names.split() if not hasattr(part, name)]:
                raise ConfigurationError(
                    f"kazoo {version.__version__} is not supported, it has no {missing[0]}: "
                    f"install {TESTED}"
                )
        super().__init__(client, old.retry_sleeper, old.logger, old.sasl_options)
        client._connection = self
        self._xid: int = 0
        self.open, self.session_id = False, 0  # 0: there is none
        self.rejected = False  # because of the credentials: kazoo tries no more
        self.refusal = ""  # why there can be no connection, as far as it is known
        self._attempt = attempt
        self._session = session
        self._writing = threading.RLock()
        self._unsent, self._unread = bytearray(), bytearray()
        self._silent = False

    def shut(self, state: Any) -> None:
        """Stop writing, because the connection is lost or the session has ended."""
        with self._writing:
            self.open = False
            self._unsent.clear()
        if state != KeeperState.CONNECTING:
            self.session_id = 0
        if state == KeeperState.AUTH_FAILED:
            self.rejected, self.refusal = True, "authentication failed: check the credentials"

    def unwatch(self, paths: Iterable[str], wake: WatchCallback) -> None:
        """Remove the callback of a watch."""
        client = self.client
        for path in paths:
            for watchers in (client._data_watchers, client._child_watchers):
                watchers.get(path, set()).discard(wake)

    # ---- its end -----------------------------------------------------------------------------

    def zk_loop(self) -> None:
        # The thread closes its sockets, even if the client no longer waits for it.
        try:
            super().zk_loop()
        finally:
            self.close()

    def end(self, patience: float) -> None:
        """Ask the server to end the session, and wait for that up to ``patience`` seconds."""
        client = self.client
        client.remove_listener(self._session.changed)
        client._stopped.set()
        client._queue.append((wire.CloseInstance, None))
        with contextlib.suppress(OSError, AttributeError):
            self._write_sock.send(b"\0")
        self.connection_stopped.wait(patience)

    def close_copies(self) -> None:
        """Close the sockets that a forked child has inherited."""
        for sock in (self._socket, self._read_sock, self._write_sock):
            with contextlib.suppress(OSError, AttributeError):
                sock.close()

    # ---- connecting --------------------------------------------------------------------------

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        self._session.connecting()
        if self._silent and self.session_id and not self.client.use_ssl:
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
                why = cause.reason or str(cause)
                if isinstance(cause, ssl.SSLCertVerificationError):
                    why = f"the server's certificate: {cause.verify_message}"
                self.refusal = (
                    f"no encrypted connection ({why}): check ssl_ca, ssl_cert and the server's "
                    "certificate"
                )
            raise
        self._silent, self.refusal = False, ""
        self._unread.clear()
        with self._writing:
            self.session_id = self.client.client_id[0]
            self.open = True
        self._session.agreed(read_timeout * 1.5 / 1e3)
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
        if xid == kazoo.PING_XID:
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
            if self._answered(answer) == kazoo.CLOSE_RESPONSE:
                return kazoo.CLOSE_RESPONSE
        del unread[:at]
        return None

    def _answered(self, answer: bytes) -> Any:
        try:
            header, offset = wire.ReplyHeader.deserialize(answer, 0)
            if header.xid == kazoo.PING_XID:
                self.ping_outstanding.clear()
            elif header.xid == kazoo.WATCH_XID:
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


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler without threads: our watch callbacks do not block, and run on the connection's."""

    def __init__(self, attempt: float) -> None:
        super().__init__()
        self.attempt = attempt

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        try:
            callback.func(*callback.args)
        except Exception:  # kazoo's thread must go on
            log.exception("lockfast: a watch callback failed")

    def create_connection(self, *args: Any, **options: Any) -> Any:
        # kazoo waits for a silent host as long as the session lasts, instead of trying the others.
        options["timeout"] = min(options.get("timeout") or self.attempt, self.attempt)
        if options["use_ssl"]:
            return _connect_tls(*args, **options)
        return super().create_connection(*args, **options)

    def select(self, *args: Any, **options: Any) -> Any:
        # Called four times per request; kazoo creates a poll object with a descriptor each time.
        try:
            return select.select(*args, **options)
        except ValueError:  # a descriptor above 1023
            return super().select(*args, **options)

    def spawn(self, func: Any, *args: Any, **options: Any) -> threading.Thread:
        name = "lockfast-zookeeper"
        thread = threading.Thread(None, func, name, args, options, daemon=True)
        thread.start()
        return thread


def _connect_tls(address: Any, hostname: str, timeout: float, **tls: Any) -> ssl.SSLSocket:
    """Unlike kazoo's: trust ``ca`` alone, and leave no socket open if a certificate is refused."""
    context = ssl.create_default_context(cafile=tls["ca"])
    context.check_hostname = tls["check_hostname"]
    if not tls["verify_certs"]:
        context.verify_mode = ssl.CERT_NONE
    if tls["certfile"]:
        context.load_cert_chain(tls["certfile"], tls["keyfile"], tls["keyfile_password"])
    plain = socket.create_connection(address, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=hostname)
    finally:
        plain.close()  # a no-op after wrapping, which takes over the descriptor

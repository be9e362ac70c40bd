"""kazoo's handler with one thread, no queues, short attempts to connect; a request it lacks."""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as wire

log = logging.getLogger("lockfast")


class CreateContainer(wire.Create2):  # type: ignore[misc]
    """Create a container: a node that the server removes when its last child is gone."""

    type = 19


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler without threads: our watch callbacks do not block, and run on the connection's."""

    attempt = 1.0

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
        thread = threading.Thread(target=func, args=args, kwargs=options, name="lockfast-zookeeper")
        thread.daemon = True
        thread.start()
        return thread


def _connect_tls(
    address: tuple[str, int],
    hostname: str,
    timeout: float,
    ca: str | None,
    certfile: str | None,
    keyfile: str | None,
    keyfile_password: str | None,
    verify_certs: bool,
    check_hostname: bool,
    **options: Any,
) -> ssl.SSLSocket:
    """Unlike kazoo's: trust ``ca`` alone, and leave no socket open if a certificate is refused."""
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = check_hostname
    if not verify_certs:
        context.verify_mode = ssl.CERT_NONE
    if certfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    plain = socket.create_connection(address, timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname=hostname)
    finally:
        plain.close()  # a no-op after wrapping, which takes over the descriptor

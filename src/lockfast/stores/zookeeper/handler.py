"""What of kazoo is put otherwise: one thread, no queues, quick attempts to connect; and a request
that it does not know."""

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
    """kazoo does not know it: a node that the server removes when its last child is gone."""

    type = 19


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """No worker threads: our watches do not block, and are told on the connection's thread."""

    attempt = 1.0

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        try:
            callback.func(*callback.args)
        except Exception:  # kazoo's thread must go on
            log.exception("lockfast: a watch stumbled")

    def create_connection(self, *args: Any, **said: Any) -> Any:
        # kazoo gives a host that does not answer as long as the whole session lasts, in which the
        # others could be asked.
        said["timeout"] = min(said.get("timeout") or self.attempt, self.attempt)
        if said["use_ssl"]:
            return _encrypted(*args, **said)
        return super().create_connection(*args, **said)

    def select(self, *args: Any, **said: Any) -> Any:
        # Four times in every request; kazoo makes an object with a descriptor of its own for each.
        try:
            return select.select(*args, **said)
        except ValueError:  # a descriptor above 1023
            return super().select(*args, **said)

    def spawn(self, func: Any, *args: Any, **said: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=said, name="lockfast-zookeeper")
        thread.daemon = True
        thread.start()
        return thread


def _encrypted(
    address: tuple[str, int],
    hostname: str,
    timeout: float,
    ca: str | None,
    certfile: str | None,
    keyfile: str | None,
    keyfile_password: str | None,
    verify_certs: bool,
    check_hostname: bool,
    **said: Any,
) -> ssl.SSLSocket:
    """As kazoo does it, but that a CA that is given is the only one, and that no socket is left
    open when a certificate is refused."""
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
        plain.close()  # after wrapping it has no descriptor any more

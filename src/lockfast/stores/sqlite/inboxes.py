"""Wake-ups between the processes that share one SQLite file, by Unix datagrams.

In the folder beside the file, each thread that waits has a socket of its own, ``ADDRESS.N.wake``,
and reads it itself, so that no
other thread has to run first. For tasks the keeper reads the client's socket, ``ADDRESS.wake``. A
message is a claim id and, for a grant, its fence and lease. Messages are hints: a full or missing
socket loses one, and the waiter's next refresh brings the same news.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

from lockfast import clock
from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.model import Granted
from lockfast.stores.sqlite.book import process_of
from lockfast.stores.sqlite.peers import Peers
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

FOREVER = float("inf")


class Inbox:
    """A socket for wake-ups and, if it is a thread's, the signal with which that thread waits."""

    def __init__(self, wakeups: Wakeups, wake_address: str, path: str) -> None:
        self.wake_address = wake_address
        self.opened = clock.now()
        self._wakeups = wakeups
        self._woken = self._sleeps = False
        self._path, self._pid = path, os.getpid()
        self.socket = _new_socket()
        # Connected, so that it reaches the socket even after its file was deleted.
        self._own = _new_socket()
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self.socket.bind(path)
        self._own.connect(path)

    def set(self) -> None:
        self._woken = True
        if self._sleeps:  # otherwise the thread checks the flag before it sleeps
            with contextlib.suppress(OSError):  # full, so the thread wakes up anyway; or closed
                self._own.send(b"-")

    async def wait(self, timeout: float | None) -> bool:
        until = FOREVER if timeout is None else clock.now() + timeout
        while not self._woken:
            rest = until - clock.now()
            if rest <= 0:
                return False
            self._sleeps = True
            try:
                if not self._woken:
                    self._poll.poll(None if rest == FOREVER else rest * 1000.0)
            finally:
                self._sleeps = False
            self.receive()  # one message: mostly there is no more, and it is for this thread
        self._woken = False
        return True

    def receive(self) -> bool:
        """Deliver the next wake-up that has arrived; False: there is none. Malformed ones, of other
        programs, are ignored."""
        try:
            parts = self.socket.recv(512).decode(errors="replace").split(" ")
        except OSError:  # nothing to read, or closed by another thread
            return False
        try:
            grant = Granted(int(parts[1]), float(parts[2])) if len(parts) == 3 else None
        except ValueError:
            return True
        self._wakeups.deliver(parts[0], grant)
        return True

    def close(self) -> None:
        """Close the socket and delete its file, unless that belongs to the parent of a fork."""
        self.socket.close()
        self._own.close()
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def __del__(self) -> None:  # also when its thread has ended
        with contextlib.suppress(AttributeError):  # it could not be opened
            self.close()


class _Local(threading.local):
    inbox: Inbox | None = None


class Inboxes:
    """The sockets and the waiters of one client."""

    def __init__(self, folder: Path) -> None:
        self.peers = Peers(folder)
        self._wakeups = Wakeups()
        self._local = _Local()
        self._keeper: Inbox | None = None
        self._open: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._numbers = itertools.count(1)
        self._waits_at: dict[str, str] = {}  # claim id → the wake address of its thread
        self._sender: socket.socket | None = None
        self._pipes: list[WakeupPipe] = []

    # ---- the waiters of this client ----------------------------------------------------------

    def address_of(self, claim_id: str, *, thread: bool) -> str:
        """The wake address to store for a claim: of the thread that waits for it or, if it does not
        wait yet and is to be a ``thread``, of this one."""
        ours = self.peers.wake_address()
        found = self._waits_at.get(claim_id)
        if found is None:
            inbox = self._local.inbox if thread else None
            found = ours if inbox is None else inbox.wake_address
        keeper = self._keeper
        if found.startswith(ours) and (keeper is None or keeper.wake_address == ours):
            return found
        self._keeper_inbox()  # the client has registered again: the keeper listens for all waiters
        return ours

    def thread_inbox(self) -> Inbox:
        """This thread's socket, opened when it first waits, and after registering again."""
        inbox = self._local.inbox
        if inbox is None or not inbox.wake_address.startswith(self.peers.wake_address()):
            inbox = self._local.inbox = self._opened(f".{next(self._numbers)}")
        return inbox

    def _keeper_inbox(self) -> Inbox:
        """The socket that the keeper reads."""
        inbox = self._keeper
        if inbox is None or inbox.wake_address != self.peers.wake_address():
            inbox = self._keeper = self._opened("")
            self._interrupt()  # a listener that sleeps has to include it
        return inbox

    def _opened(self, suffix: str) -> Inbox:
        """Open a socket in the folder, which may have been deleted since the last check."""
        self.peers.wake_address()
        with self.peers.mutex:
            try:
                try:
                    return self._new(self.peers.wake_address() + suffix)
                except FileNotFoundError:
                    # The waiter asks again after this, because the socket is new, and so stores the
                    # new wake address.
                    self.peers.register_again()
                    return self._new(self.peers.wake_address() + suffix)
            except OSError as error:
                raise BackendError(
                    f"no wake-up socket can be opened in {self.peers.folder}: {error}"
                ) from error

    def _new(self, wake_address: str) -> Inbox:
        inbox = Inbox(self._wakeups, wake_address, self.peers.socket_path(wake_address))
        self._open.add(inbox)
        return inbox

    def watch(self, claim_id: str, wake: Wake, since: float, thread: bool) -> bool:
        """Register a waiter: a ``thread``, or a task. True if a wake-up may be lost, because the
        socket is newer than ``since``."""
        self._wakeups.watch(claim_id, wake)
        inbox = self.thread_inbox() if thread else self._keeper_inbox()
        if thread:
            self._waits_at[claim_id] = inbox.wake_address
        return inbox.opened > since

    def watch_processes(self, claim_id: str, processes: frozenset[str]) -> None:
        """Wake this claim when one of these processes ends."""
        if self.peers.watch(claim_id, processes):
            self._interrupt()  # a listener that sleeps has to include them
            for process in processes:
                # It may have ended before we opened its pidfd, and its pid may be reused by now.
                if self.peers.is_dead(process):
                    self._process_ended(process)

    def _process_ended(self, process: str) -> None:
        for claim_id in self.peers.ended(process):
            self._wakeups.deliver(claim_id, None)  # the waiter asks again

    def unwatch(self, claim_id: str) -> None:
        self._wakeups.unwatch(claim_id)
        self._waits_at.pop(claim_id, None)
        self.peers.unwatch(claim_id)

    # ---- messages ----------------------------------------------------------------------------

    def wake(self, wake_address: str, claim_id: str, grant: Granted | None) -> None:
        """Wake one waiter: directly in this process, elsewhere by a datagram that may be lost."""
        if process_of(wake_address) == self.peers.wake_address():
            self._wakeups.deliver(claim_id, grant)
            return
        message = f"{claim_id} {grant.fence} {grant.lease!r}" if grant else claim_id
        try:
            sender = self._sender or self._open_sender()
            sender.sendto(message.encode(), self.peers.socket_path(wake_address))
        except OSError:
            pass  # full, or gone

    def _open_sender(self) -> socket.socket:
        with self.peers.mutex:  # two threads that send for the first time at once share one socket
            if self._sender is None:
                self._sender = _new_socket()
            return self._sender

    def new_pipe(self) -> WakeupPipe:
        """A pipe that interrupts one listener."""
        pipe = WakeupPipe()
        self._pipes.append(pipe)
        return pipe

    def _interrupt(self) -> None:
        for pipe in self._pipes:
            pipe.interrupt()

    def listen(self, pipe: WakeupPipe, timeout: float | None) -> None:
        """Deliver wake-ups until one arrived, a watched process ended, the pipe was written to, or
        the timeout is over."""
        interrupt, timeout = pipe.ready(timeout)
        poll = select.poll()
        poll.register(interrupt, select.POLLIN)
        inbox = self._keeper
        if inbox is not None and inbox.socket.fileno() >= 0:
            poll.register(inbox.socket, select.POLLIN)
        watched = self.peers.pidfds()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(None if timeout is None else max(timeout, 0.0) * 1000.0):
            if descriptor == interrupt:
                pipe.drain()
            elif descriptor in watched:
                self._process_ended(watched[descriptor])
        while inbox is not None and inbox.receive():
            pass

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Unregister, and close all sockets."""
        self.peers.close()
        self._close(self._open)

    def _close(self, inboxes: Iterable[Inbox]) -> None:
        for inbox in list(inboxes):
            inbox.close()
        self._keeper = None
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def after_fork_in_child(self) -> None:
        self.peers.after_fork_in_child()
        self._wakeups.clear()
        self._waits_at.clear()
        self._close(self._open)
        self._local = _Local()
        for pipe in self._pipes:
            pipe.after_fork_in_child()


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock

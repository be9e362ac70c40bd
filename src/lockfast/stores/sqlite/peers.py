"""The processes that share one SQLite file: which are alive, and how to wake their waiters.

In a folder beside the file, each client has two files, named by a random id, its *wake address*:

- ``ADDRESS.life``, which it keeps ``flock``ed. The kernel releases that lock when the process ends,
  however it ends, so a file that can be locked proves that the process is dead, without polling and
  without the risk of a reused pid. A missing life file proves nothing: then only the lease counts.
  The file contains the pid, from which waiters open a pidfd and sleep until the process ends.
- ``ADDRESS.wake``, a Unix datagram socket that receives wake-ups. Messages are hints: a full or
  missing socket loses one, and the waiter's next refresh brings the same news.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lockfast import clock
from lockfast.core.ports import Wake
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Granted
from lockfast.stores.wakeups import Wakeups

MAX_REMOVALS = 200
MAX_WATCHED = 64
NOBODY: frozenset[str] = frozenset()
CHECK_INTERVAL = 30.0
MAX_SOCKET_PATH = 100  # the kernel's limit is 108 with the final NUL, 104 on some systems


class Peers:
    """Our own wake address, registered when first needed, and the view of the other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._wake_address = ""
        self._life = -1
        self._socket: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._folder_fd = -1
        self._wakeups = Wakeups()
        self._listening_since = 0.0
        self._watched: dict[str, frozenset[str]] = {}  # claim id → the addresses it waits for
        self._pidfds: dict[str, int] = {}  # wake address → pidfd of that process, or -1
        self._checked_at = 0.0
        # Called when there is a new descriptor to poll, so that a listener that sleeps includes it.
        self.changed: Callable[[], None] = lambda: None

    def wake_address(self) -> str:
        """Our wake address, registered on first use, and again if its files were deleted."""
        now = clock.now()
        wake_address = self._wake_address  # read once: another thread may be registering again
        if wake_address and now - self._checked_at < CHECK_INTERVAL:
            return wake_address
        try:
            with self._mutex:
                if not self._wake_address or not self._is_registered():
                    self._register_again()
                self._checked_at = now
            if self._wakeups:
                self._open_socket()
        except OSError as error:
            raise BackendError(
                f"this process cannot register in {self._folder}: {error}", transient=False
            ) from error
        return self._wake_address

    def _is_registered(self) -> bool:
        """Do our files still exist? Touches them: cleaners of temporary files delete old ones."""
        try:
            os.utime(self._path(self._wake_address, "life"))
            if self._socket is not None:
                os.utime(self._path(self._wake_address, "wake"))
            return True
        except FileNotFoundError:
            return False

    def _register_again(self) -> None:
        """Register under a new wake address, and create the folder if it is gone. Under the mutex.
        Rows with the old address end only by their lease: its life file is missing."""
        self._unregister()
        self._wake_address = self._register(secrets.token_hex(8))

    def _register(self, wake_address: str) -> str:
        """Create the life file. Unlocked it would look dead: until then its name is temporary."""
        make_folders(self._folder)
        unseen = self._folder / f".{wake_address}.new"
        self._life = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._life, fcntl.LOCK_EX)
        os.write(self._life, str(os.getpid()).encode())
        os.rename(unseen, self._path(wake_address, "life"))
        return wake_address

    @property
    def has_folder(self) -> bool:
        """Does the folder beside the file exist?"""
        return self._folder.is_dir()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Admit one process at a time, to open the file; yields False if another is inside."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        guard = os.open(self._folder / "guard", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            obtained = True
        except BlockingIOError:
            obtained = False
        try:
            yield obtained
        finally:
            os.close(guard)

    def is_dead(self, wake_address: str) -> bool:
        """Has that process ended? False also means unknown."""
        path = self._path(wake_address, "life")
        try:
            life = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(life, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # If it was deleted since we opened it, its process may have registered again.
            return os.path.exists(path)
        except OSError:
            return False
        finally:
            os.close(life)

    def dead(self) -> list[str]:
        """The addresses of dead processes whose files still exist; a bounded number of them."""
        try:
            found = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        random.shuffle(found)  # so that the dead are found even behind a large number of the living
        for name in found[:MAX_REMOVALS]:
            if name.endswith(".new") and self._is_old(name):
                self._unlink(f"{self._folder}/{name}")
        addresses = [name[:-5] for name in found if name.endswith(".life")][:MAX_REMOVALS]
        return [one for one in addresses if one != self._wake_address and self.is_dead(one)]

    def _is_old(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return clock.wall() - os.stat(f"{self._folder}/{name}").st_mtime > 60.0
        return False

    def remove(self, wake_addresses: Iterable[str]) -> None:
        """Delete the files of processes whose rows are deleted."""
        for wake_address in wake_addresses:
            for kind in ("wake", "life"):
                self._unlink(self._path(wake_address, kind))

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)

    # ---- deaths ------------------------------------------------------------------------------

    def watch_processes(self, claim_id: str, wake_addresses: frozenset[str]) -> None:
        """Wake this claim when one of these processes ends. A hint only: where the system has no
        pidfd, or the pid is unknown, the waiter's next refresh finds out."""
        with self._mutex:
            if self._watched.get(claim_id, NOBODY) == wake_addresses:
                return
            self._watched[claim_id] = wake_addresses
            self._close_unneeded_pidfds()
            for wake_address in wake_addresses - self._pidfds.keys():
                if len(self._pidfds) < MAX_WATCHED:
                    self._pidfds[wake_address] = self._open_process(wake_address)
        self.changed()
        for wake_address in wake_addresses:
            # It may have ended before we opened its pidfd, and its pid may be reused by now.
            if self.is_dead(wake_address):
                self._process_ended(wake_address)

    def _open_process(self, wake_address: str) -> int:
        try:
            with open(self._path(wake_address, "life"), "rb") as life:
                return os.pidfd_open(int(life.read(20) or b"0"))
        except (OSError, ValueError, AttributeError):
            return -1

    def _process_ended(self, wake_address: str) -> None:
        """Wake the waiters that watched this process: they ask again."""
        with self._mutex:
            waiting = [claim for claim, peers in self._watched.items() if wake_address in peers]
            for claim_id in waiting:
                del self._watched[claim_id]
            self._close_unneeded_pidfds()
        for claim_id in waiting:
            self._wakeups.deliver(claim_id, None)

    def _close_unneeded_pidfds(self) -> None:
        """Close the pidfds that no claim of ours waits for any more. Under the mutex."""
        wanted = set().union(*self._watched.values())
        for wake_address in self._pidfds.keys() - wanted:
            descriptor = self._pidfds.pop(wake_address)
            if descriptor >= 0:
                os.close(descriptor)

    # ---- wake-ups ----------------------------------------------------------------------------

    def watch(self, claim_id: str, wake: Wake, since: float) -> bool:
        """Register a waiter. True if a wake-up may be lost: our socket is newer than ``since``."""
        self._wakeups.watch(claim_id, wake)
        if self._socket is None:
            self._open_socket()
        return self._listening_since > since

    def unwatch(self, claim_id: str) -> None:
        self._wakeups.unwatch(claim_id)
        if claim_id in self._watched:
            with self._mutex:
                self._watched.pop(claim_id, None)
                self._close_unneeded_pidfds()

    def wake(self, wake_address: str, claim_id: str, grant: Granted | None) -> None:
        """Wake one waiter: directly in this process, elsewhere by a datagram that may be lost."""
        if wake_address == self._wake_address:
            self._wakeups.deliver(claim_id, grant)
            return
        message = f"{claim_id} {grant.fence} {grant.lease!r}" if grant else claim_id
        with contextlib.suppress(OSError):
            sender = self._sender or self._open_sender()
            sender.sendto(message.encode(), self._socket_path(wake_address))

    def _open_sender(self) -> socket.socket:
        with self._mutex:  # two threads that send for the first time at once share one socket
            if self._sender is None:
                sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                sender.setblocking(False)
                self._sender = sender
            return self._sender

    def listen(self, interrupt: int, timeout: float | None, drain: Callable[[], None]) -> None:
        """Deliver wake-ups until one arrived, a watched process ended, the pipe ``interrupt`` was
        written to (then ``drain`` is called), or the timeout is over."""
        poll = select.poll()
        poll.register(interrupt, select.POLLIN)
        sock = self._socket
        if sock is not None:
            poll.register(sock, select.POLLIN)
        watched = {fd: wake_address for wake_address, fd in list(self._pidfds.items()) if fd >= 0}
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if timeout is None else max(timeout, 0.0) * 1000.0)
        for descriptor, _ in ready:
            if descriptor == interrupt:
                drain()
            elif descriptor in watched:
                self._process_ended(watched[descriptor])
        if sock is None or sock.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # nothing more to read, or closed by another thread
            while True:
                self._deliver(sock.recv(512))

    def _deliver(self, message: bytes) -> None:
        """Wake the waiter named in the message; ignore malformed ones of other programs."""
        parts = message.decode(errors="replace").split(" ")
        try:
            grant = Granted(int(parts[1]), float(parts[2])) if len(parts) == 3 else None
        except ValueError:
            return
        self._wakeups.deliver(parts[0], grant)

    def _open_socket(self) -> None:
        self.wake_address()
        with self._mutex:
            if self._socket is not None:
                return
            try:
                try:
                    self._socket = self._bind_socket()
                except FileNotFoundError:
                    # The folder was deleted since the last check. The waiter asks again after this,
                    # because the socket is new, and so stores the new wake address.
                    self._register_again()
                    self._socket = self._bind_socket()
            except OSError as error:
                raise BackendError(
                    f"no wake-up socket can be opened in {self._folder}: {error}"
                ) from error
            self._listening_since = clock.now()
        self.changed()

    def _bind_socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            path = self._socket_path(self._wake_address)
            # Ours alone: left by a Ctrl-C between bind and the assignment of the socket.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            sock.bind(path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _path(self, wake_address: str, kind: str) -> str:
        return f"{self._folder}/{wake_address}.{kind}"

    def _socket_path(self, wake_address: str) -> str:
        """The path of the address's socket: through the folder's descriptor if it is too long."""
        path = self._path(wake_address, "wake")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if self._folder_fd < 0:
            self._folder_fd = os.open(self._folder, os.O_RDONLY)
        if not os.path.exists("/proc/self/fd"):
            raise ConfigurationError(
                f"the path {self._folder} is too long for a socket on this system: shorten it"
            )
        return f"/proc/self/fd/{self._folder_fd}/{wake_address}.wake"

    # ---- the end -----------------------------------------------------------------------------

    def close(self, *, ours: bool = True) -> None:
        """Unregister. ``ours`` is False in the child of a fork: the files are the parent's."""
        with self._mutex:
            wake_address = self._unregister()
            if ours and wake_address:
                self.remove([wake_address])
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            for descriptor in self._pidfds.values():
                if descriptor >= 0:
                    os.close(descriptor)
            self._watched.clear()
            self._pidfds.clear()

    def _unregister(self) -> str:
        """Close our files; the wake address they had. The folder's descriptor is closed too: if
        the folder was deleted, it does not lead to the new one, which long paths need."""
        wake_address, self._wake_address = self._wake_address, ""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1
        return wake_address

    def before_fork(self) -> None:
        self._mutex.acquire()

    def after_fork_in_parent(self) -> None:
        self._mutex.release()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._wakeups.clear()
        self.close(ours=False)


def make_folders(folder: Path) -> None:
    """Create the missing folders, each accessible to this user alone."""
    for above in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            if not above.exists():
                above.mkdir(mode=0o700)

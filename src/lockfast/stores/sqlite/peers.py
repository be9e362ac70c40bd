"""The processes that share one SQLite file: our registration among them, and which are dead.

In a folder beside the file, each client has files named by a random id, its *wake address*:

- ``ADDRESS.life``, which it keeps ``flock``ed. The kernel releases that lock when the process ends,
  however it ends, so a file that can be locked proves that the process is dead, without polling and
  without the risk of a reused pid. A missing life file proves nothing: then only the lease counts.
  The file contains the pid, from which waiters open a pidfd and sleep until the process ends.
- ``ADDRESS.wake`` and ``ADDRESS.N.wake``, its sockets (see `inboxes`).

Garbage collection and signal handlers may call in here while the same thread is inside: the mutex
is reentrant, and what it protects changes by single assignments.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError

MAX_REMOVALS = 200
MAX_OPEN = 64  # life files of other processes that stay open
CHECK_INTERVAL = 30.0
MAX_SOCKET_PATH = 100  # the kernel's limit is 108 with the final NUL, 104 on some systems
UNOPENED, UNKNOWN = -2, -1  # instead of a descriptor


class Peer:
    """The open life file of another process and, once a claim waits for it, its pidfd."""

    __slots__ = ("life", "pidfd")

    def __init__(self, path: str) -> None:
        self.life = self.pidfd = UNOPENED
        self.life = os.open(path, os.O_RDONLY)

    def open_pidfd(self) -> None:
        self.pidfd = UNKNOWN
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self.pidfd = os.pidfd_open(int(os.pread(self.life, 20, 0) or b"0"))

    def __del__(self) -> None:
        for descriptor in (self.life, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)


class Peers:
    """Our wake address, registered when first needed, and the view of the other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mutex = threading.RLock()
        self._wake_address = ""
        self._life = self._folder_fd = -1
        self._checked_at = 0.0
        self._open: dict[str, Peer] = {}
        self._watched: dict[str, frozenset[str]] = {}  # claim id → the processes it waits for

    # ---- our registration --------------------------------------------------------------------

    def wake_address(self) -> str:
        """Our wake address, registered on first use, and again if its files were deleted."""
        now = clock.now()
        wake_address = self._wake_address  # read once: another thread may be registering again
        if wake_address and now - self._checked_at < CHECK_INTERVAL:
            return wake_address
        try:
            with self.mutex:
                if not self._wake_address or not self._touch():
                    self.register_again()
                self._checked_at = now
        except OSError as error:
            raise BackendError(
                f"this process cannot register in {self.folder}: {error}", transient=False
            ) from error
        return self._wake_address

    def _touch(self) -> bool:
        """Touch our files, as cleaners of temporary files delete old ones; False: they are gone."""
        try:
            for path in (self.path(self._wake_address, "life"), *self._files("wake")):
                os.utime(path)
            return True
        except FileNotFoundError:
            return False

    def _files(self, kind: str) -> list[str]:
        ours = self._wake_address
        names = [one for one in os.listdir(self.folder) if one.startswith(ours)]
        return [f"{self.folder}/{one}" for one in names if one.endswith(kind)]

    def register_again(self) -> None:
        """Register under a new wake address, and create the folder if it is gone. Under the mutex.
        Rows with the old address end only by their lease: its life file is missing."""
        self.unregister()
        make_folders(self.folder)
        wake_address = secrets.token_hex(8)
        # Unlocked it would look dead: until then its name is temporary.
        unseen = self.folder / f".{wake_address}.new"
        life = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(life, fcntl.LOCK_EX)
            os.write(life, str(os.getpid()).encode())
            os.rename(unseen, self.path(wake_address, "life"))
            if self._wake_address:  # a finalizer or signal handler has registered meanwhile
                self.remove([wake_address])
            else:
                self._life, life = life, -1
                self._wake_address = wake_address
        finally:
            if life >= 0:
                os.close(life)

    def unregister(self) -> None:
        """Close our files. The folder's descriptor is closed too: if the folder was deleted, it
        does not lead to the new one, which long paths need."""

        self._wake_address = ""
        ours, self._life, self._folder_fd = (self._life, self._folder_fd), -1, -1
        for descriptor in ours:
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Admit one process at a time, to open the file; yields False if another is inside."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        guard = os.open(self.folder / "guard", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                obtained = True
            except BlockingIOError:
                obtained = False
            yield obtained
        finally:
            os.close(guard)

    # ---- deaths ------------------------------------------------------------------------------

    def is_dead(self, process: str) -> bool:
        """True if that process has ended; False also means unknown."""
        with self.mutex:
            peer = self._open.get(process) or self._peer(process)
            if peer is None:
                return False
            try:
                fcntl.flock(peer.life, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return False
            # If it was deleted since we opened it, its process may have registered again.
            self._open.pop(process, None)
            return os.path.exists(self.path(process, "life"))

    def _peer(self, process: str) -> Peer | None:
        """The open life file of a process; None if there is none. Under the mutex."""
        peer = self._open.get(process)
        if peer is None:
            try:
                peer = Peer(self.path(process, "life"))
            except OSError:
                return None
            while len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open)), None)
            self._open[process] = peer
        return peer

    def dead(self) -> list[str]:
        """The addresses of dead processes whose files still exist; a bounded number of them."""
        try:
            found = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        random.shuffle(found)  # so that the dead are found even behind a large number of the living
        for name in found[:MAX_REMOVALS]:
            with contextlib.suppress(OSError):
                path = self.folder / name
                if name.endswith(".new") and clock.wall() - path.stat().st_mtime > 60.0:
                    path.unlink()
        addresses = [name[:-5] for name in found if name.endswith(".life")][:MAX_REMOVALS]
        return [one for one in addresses if one != self._wake_address and self.is_dead(one)]

    def remove(self, processes: Iterable[str]) -> None:
        """Delete the files of processes whose rows are deleted, the life file last."""
        for process in processes:
            with contextlib.suppress(OSError):
                for name in sorted(os.listdir(self.folder), reverse=True):
                    if name.startswith(process):
                        os.unlink(f"{self.folder}/{name}")

    def watch(self, claim_id: str, processes: frozenset[str]) -> bool:
        """Watch these processes for a claim; True: a listener has more to poll. It is a hint: where
        the system has no pidfd, or the pid is unknown, the next refresh finds out."""
        found = False
        with self.mutex:
            self._watched[claim_id] = processes
            for process in processes:
                peer = self._peer(process)
                if peer is not None and peer.pidfd == UNOPENED:
                    peer.open_pidfd()
                    found = True
        return found

    def unwatch(self, claim_id: str) -> None:
        self._watched.pop(claim_id, None)

    def pidfds(self) -> dict[int, str]:
        """The pidfds to poll, and their processes."""
        return {peer.pidfd: one for one, peer in list(self._open.items()) if peer.pidfd >= 0}

    def ended(self, process: str) -> list[str]:
        """Forget a process that has ended; the claims that watched it."""
        with self.mutex:
            self._open.pop(process, None)
            watched = list(self._watched.items())  # others may `unwatch` meanwhile
            waiting = [claim_id for claim_id, those in watched if process in those]
            for claim_id in waiting:
                self._watched.pop(claim_id, None)
            return waiting

    # ---- the end -----------------------------------------------------------------------------

    def path(self, wake_address: str, kind: str) -> str:
        return f"{self.folder}/{wake_address}.{kind}"

    def socket_path(self, wake_address: str) -> str:
        """The path of the address's socket: through the folder's descriptor if it is too long."""
        path = self.path(wake_address, "wake")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if self._folder_fd < 0:
            self._folder_fd = os.open(self.folder, os.O_RDONLY)
        if not os.path.exists("/proc/self/fd"):
            raise ConfigurationError(
                f"the path {self.folder} is too long for a socket on this system: shorten it"
            )
        return f"/proc/self/fd/{self._folder_fd}/{wake_address}.wake"

    def close(self, *, ours: bool = True) -> None:
        """Unregister. ``ours`` is False in the child of a fork: the files are the parent's."""
        with self.mutex:
            wake_address = self._wake_address
            if ours and wake_address:
                self.remove([wake_address])
            self.unregister()
            self._watched.clear()
            self._open.clear()

    def after_fork_in_child(self) -> None:
        self.mutex = threading.RLock()
        self.close(ours=False)


def make_folders(folder: Path) -> None:
    """Create the missing folders, each accessible to this user alone."""
    for above in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            if not above.exists():
                above.mkdir(mode=0o700)

"""The processes that share one SQLite file: who lives, and how to ring them.

Beside the file is a folder. Each process has two files there, named by a random id, its *home*:

- ``HOME.life``, which it keeps ``flock``ed. The kernel drops that lock when the process ends,
  however it ends, so "can I lock it?" answers "is it dead?", with no polling and no pids that are
  used again. A life file that is missing proves nothing: then only the lease counts. It
  contains the pid, with which those who wait can sleep until the kernel says that the process
  ended.
- ``HOME.bell``, a Unix datagram socket: a doorbell. Messages are hints: a full, a missing or a deaf
  socket loses one, and the waiter's next refresh tells it the same.
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

MAX_BURIALS = 200
MAX_ATTENDED = 64
NOBODY: frozenset[str] = frozenset()
LOOK_EVERY = 30.0
MAX_SOCKET_PATH = 100  # the kernel's limit is 108 with the final NUL, 104 on some systems


class Peers:
    """Our own home, opened when first needed, and the view of the others'."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._wake_address = ""
        self._life = -1
        self._bell: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._folder_fd = -1
        self._wakeups = Wakeups()
        self._bell_since = 0.0
        self._attended: dict[str, frozenset[str]] = {}  # claim id → the homes it waits for
        self._processes: dict[str, int] = {}  # home → a descriptor of that process
        self._seen_at = 0.0
        # Called when there is something new to listen to, so that who hears already hears it too.
        self.changed: Callable[[], None] = lambda: None

    def wake_address(self) -> str:
        """Our home; on first use it is made, and made again if somebody cleaned it away."""
        now, wake_address = (
            clock.now(),
            self._wake_address,
        )  # read once: another thread may be moving
        if wake_address and now - self._seen_at < LOOK_EVERY:
            return wake_address
        try:
            with self._mutex:
                if not self._wake_address or not self._still_there():
                    self._move()
                self._seen_at = now
            if self._wakeups:
                self._open_bell()
        except OSError as error:
            raise BackendError(
                f"no home for this process in {self._folder}: {error}", transient=False
            ) from error
        return self._wake_address

    def _still_there(self) -> bool:
        """A cleaner of temporary files takes what was not touched for weeks: so touch it."""
        try:
            os.utime(self._path(self._wake_address, "life"))
            if self._bell is not None:
                os.utime(self._path(self._wake_address, "bell"))
            return True
        except FileNotFoundError:
            return False

    def _move(self) -> None:
        """Into a new home, and the folder is made if it is gone. Under the mutex. What the store
        still has under the old one is ended by nobody but its lease: its life file is missing."""
        self._give_up()
        self._wake_address = self._settle(secrets.token_hex(8))

    def _settle(self, wake_address: str) -> str:
        """Made under another name, so that nobody sees it before it is locked."""
        make_folders(self._folder)
        unseen = self._folder / f".{wake_address}.new"
        self._life = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._life, fcntl.LOCK_EX)
        os.write(self._life, str(os.getpid()).encode())
        os.rename(unseen, self._path(wake_address, "life"))
        return wake_address

    @property
    def settled(self) -> bool:
        """Is there a folder of ours beside the file?"""
        return self._folder.is_dir()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[bool]:
        """One process at a time in here, for what is done to files; False: another is inside."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        guard = os.open(self._folder / "guard", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        try:
            yield alone
        finally:
            os.close(guard)

    def is_dead(self, wake_address: str) -> bool:
        """Is that process gone, for good? False also means "cannot tell"."""
        path = self._path(wake_address, "life")
        try:
            life = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(life, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Deleted since we opened it, it proves nothing: who lived there may have moved.
            return os.path.exists(path)
        except OSError:
            return False
        finally:
            os.close(life)

    def dead(self) -> list[str]:
        """The homes of dead processes whose files are still there; a bounded number of them."""
        try:
            found = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        random.shuffle(found)  # so that many who live do not hide the dead behind them for ever
        for name in found[:MAX_BURIALS]:
            if name.endswith(".new") and self._is_old(name):
                self._unlink(f"{self._folder}/{name}")
        wake_addresses = [name[:-5] for name in found if name.endswith(".life")][:MAX_BURIALS]
        return [
            wake_address
            for wake_address in wake_addresses
            if wake_address != self._wake_address and self.is_dead(wake_address)
        ]

    def _is_old(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return clock.wall() - os.stat(f"{self._folder}/{name}").st_mtime > 60.0
        return False

    def remove(self, wake_addresses: Iterable[str]) -> None:
        """Their rows are buried: take their files away."""
        for wake_address in wake_addresses:
            for kind in ("bell", "life"):
                self._unlink(self._path(wake_address, kind))

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)

    # ---- deaths ------------------------------------------------------------------------------

    def attend(self, claim_id: str, wake_addresses: frozenset[str]) -> None:
        """This claim waits for what these processes have: wake it up when one of them ends, however
        it ends. A hint only; where the system or the pid does not lend itself, the next refresh
        finds out."""
        with self._mutex:
            if self._attended.get(claim_id, NOBODY) == wake_addresses:
                return
            self._attended[claim_id] = wake_addresses
            self._disregard()
            for wake_address in wake_addresses - self._processes.keys():
                if len(self._processes) < MAX_ATTENDED:
                    self._processes[wake_address] = self._open_process(wake_address)
        self.changed()
        for wake_address in wake_addresses:
            if self.is_dead(
                wake_address
            ):  # it ended before we watched; its pid may be another's by now
                self._mourn(wake_address)

    def _open_process(self, wake_address: str) -> int:
        try:
            with open(self._path(wake_address, "life"), "rb") as life:
                return os.pidfd_open(int(life.read(20) or b"0"))
        except (OSError, ValueError, AttributeError):
            return -1

    def _mourn(self, wake_address: str) -> None:
        """Who waited for it asks again: it may be their turn."""
        with self._mutex:
            waiting = [
                claim
                for claim, wake_addresses in self._attended.items()
                if wake_address in wake_addresses
            ]
            for claim_id in waiting:
                del self._attended[claim_id]
            self._disregard()
        for claim_id in waiting:
            self._wakeups.wake(claim_id, None)

    def _disregard(self) -> None:
        """Close the processes that nobody here waits for any more. Under the mutex."""
        wanted = set().union(*self._attended.values())
        for wake_address in self._processes.keys() - wanted:
            descriptor = self._processes.pop(wake_address)
            if descriptor >= 0:
                os.close(descriptor)

    # ---- bells -------------------------------------------------------------------------------

    def watch(self, claim_id: str, wake: Wake, since: float) -> bool:
        """Whether our bell was not there yet at ``since``, so that one may have been missed."""
        self._wakeups.watch(claim_id, wake)
        if self._bell is None:
            self._open_bell()
        return self._bell_since > since

    def unwatch(self, claim_id: str) -> None:
        self._wakeups.unwatch(claim_id)
        if claim_id in self._attended:
            with self._mutex:
                self._attended.pop(claim_id, None)
                self._disregard()

    def wake(self, wake_address: str, claim_id: str, grant: Granted | None) -> None:
        """Ring one bell: here directly, elsewhere by a datagram that may get lost."""
        if wake_address == self._wake_address:
            self._wakeups.wake(claim_id, grant)
            return
        message = f"{claim_id} {grant.fence} {grant.lease!r}" if grant else claim_id
        with contextlib.suppress(OSError):
            sender = self._sender or self._open_sender()
            sender.sendto(message.encode(), self._socket_path(wake_address))

    def _open_sender(self) -> socket.socket:
        with self._mutex:  # two threads that ring for the first time together share one
            if self._sender is None:
                sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                sender.setblocking(False)
                self._sender = sender
            return self._sender

    def listen(
        self, interrupt: int, timeout: float | None, interrupted: Callable[[], None]
    ) -> None:
        """Deliver what rings until something did, the pipe ``poke`` was written to (say so to
        ``poked``), or time ends."""
        waiter = select.poll()
        waiter.register(interrupt, select.POLLIN)
        bell = self._bell
        if bell is not None:
            waiter.register(bell, select.POLLIN)
        attended = {
            fd: wake_address for wake_address, fd in list(self._processes.items()) if fd >= 0
        }
        for descriptor in attended:
            waiter.register(descriptor, select.POLLIN)
        ready = waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000.0)
        for descriptor, _ in ready:
            if descriptor == interrupt:
                interrupted()
            elif descriptor in attended:
                self._mourn(attended[descriptor])
        if bell is None or bell.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # nothing more to read, or closed under us
            while True:
                self._heard(bell.recv(512))

    def _heard(self, message: bytes) -> None:
        """Others may write to our socket: what makes no sense is not for us."""
        parts = message.decode(errors="replace").split(" ")
        try:
            grant = Granted(int(parts[1]), float(parts[2])) if len(parts) == 3 else None
        except ValueError:
            return
        self._wakeups.wake(parts[0], grant)

    def _open_bell(self) -> None:
        self.wake_address()
        with self._mutex:
            if self._bell is not None:
                return
            try:
                try:
                    self._bell = self._bound()
                except FileNotFoundError:
                    # The folder was deleted since we looked at our home. Who waits asks again after
                    # this, because the bell is new, and so says where it lives now.
                    self._move()
                    self._bell = self._bound()
            except OSError as error:
                raise BackendError(f"no bell for {self._folder}: {error}") from error
            self._bell_since = clock.now()
        self.changed()

    def _bound(self) -> socket.socket:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bell.setblocking(False)
            bell.bind(self._socket_path(self._wake_address))
        except BaseException:
            bell.close()
            raise
        return bell

    def _path(self, wake_address: str, kind: str) -> str:
        return f"{self._folder}/{wake_address}.{kind}"

    def _socket_path(self, wake_address: str) -> str:
        """A socket's path is short by decree: a long one goes through the folder's descriptor."""
        path = self._path(wake_address, "bell")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        if self._folder_fd < 0:
            self._folder_fd = os.open(self._folder, os.O_RDONLY)
        if not os.path.exists("/proc/self/fd"):
            raise ConfigurationError(
                f"{self._folder} is too long for a socket on this system: use a shorter path"
            )
        return f"/proc/self/fd/{self._folder_fd}/{wake_address}.bell"

    # ---- the end -----------------------------------------------------------------------------

    def close(self, *, ours: bool = True) -> None:
        """Give up our home. ``ours`` False: we are a fork's child, and the files are the
        parent's."""
        with self._mutex:
            wake_address = self._give_up()
            if ours and wake_address:
                self.remove([wake_address])
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            for descriptor in self._processes.values():
                if descriptor >= 0:
                    os.close(descriptor)
            self._attended.clear()
            self._processes.clear()

    def _give_up(self) -> str:
        """Close what is open of our home; which it was. The folder too: if it was deleted, its
        descriptor leads to no other, and a long path goes through that."""
        wake_address, self._wake_address = self._wake_address, ""
        if self._bell is not None:
            self._bell.close()
            self._bell = None
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
    """The folders that are missing, each for this user alone."""
    for above in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            if not above.exists():
                above.mkdir(mode=0o700)

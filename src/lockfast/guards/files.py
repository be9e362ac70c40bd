"""Guard for a file: a stale holder cannot replace its content.

``report.json`` gets two side files. ``.report.json.fence``, the mark, contains the highest fence
that was seen. ``.report.json.lock`` is locked with flock during each write, and is never removed:
after a removal two writers could lock two different files. The steps of a write, each on disk
before the next one begins:

1. Lock. 2. Read the mark, and refuse a lower fence. 3. Raise the mark. 4. Write the new content to
a temporary file. 5. Rename that file over the old one.

A crash at any point leaves either the old or the new content, complete, and releases the lock.
After a crash between 3 and 5 the mark is higher than the fence of the content; it belongs to a real
hold, so nobody is refused wrongly. If the mark were raised last, a crash could leave new content
that no mark protects.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockfast.errors import AcquireTimeout, ConfigurationError
from lockfast.guards.fence import fence_of, refuse_if_stale
from lockfast.inputs import Seconds, checked_timeout

_POLL_INTERVAL = 0.01  # seconds; flock has no timeout, and a write takes about this long


class FileGuard:
    """Guard of one file, for all processes of a host (and of other hosts, if the file system's
    flock spans them). Blocking: in asyncio, use ``asyncio.to_thread``.

    ``timeout``: seconds to wait for another writer; None waits without limit. A writer that is
    paused in the middle of a write keeps the others out until it resumes or dies.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds | None = 30.0) -> None:
        # Different paths to the same file must lead to the same side files.
        self.path = Path(path).resolve()
        self._timeout = checked_timeout(timeout)
        self._mark = self.path.with_name(f".{self.path.name}.fence")
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self._new = self.path.with_name(f".{self.path.name}.new")

    def write(self, hold: object, content: bytes | str) -> None:
        """Replace the whole content; readers see the old or the new content, never a part of it.

        A str is written as UTF-8. Blocks while another process writes. Raises `StaleFence` if a
        higher fence has written, and `AcquireTimeout` if another writer does not finish in time;
        in both cases the file is unchanged.
        """
        if not isinstance(content, bytes | str):
            raise ConfigurationError(f"content must be bytes or str, not {type(content).__name__}")
        with self.writing(hold):
            self._replace(self.path, content.encode() if isinstance(content, str) else content)

    @contextmanager
    def writing(self, hold: object) -> Iterator[Path]:
        """Exclude all other guarded writers while the body of the ``with`` block runs.

        For changes that `write` does not cover, such as appending, or changing several files that
        belong together. Raises as `write` does, and then the body does not run. If the process dies
        in the body, the file stays as the body left it.
        """
        fence = fence_of(hold)
        with self._locked():
            seen = self._seen()
            refuse_if_stale(str(self.path), fence, seen)
            if fence > seen:
                self._replace(self._mark, b"%d\n" % fence)
            yield self.path

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait_for(descriptor)
            try:
                yield
            finally:
                # Unlock explicitly: a child forked meanwhile has the descriptor open too, so
                # closing ours would not release the lock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if until is not None and time.monotonic() >= until:
                    raise AcquireTimeout(
                        f"{str(self.path)!r}: another process has been writing this file for "
                        f"{self._timeout} s; nothing was written",
                        name=str(self.path),
                        timeout=self._timeout or 0.0,
                        snapshot=None,
                    ) from None
            time.sleep(_POLL_INTERVAL)

    def _seen(self) -> int:
        try:
            text = self._mark.read_bytes()
        except FileNotFoundError:
            return 0  # no guarded write yet: every fence may write
        if not text.strip().isdigit():
            raise ConfigurationError(
                f"{str(self._mark)!r} must contain the highest fence, but contains {text[:40]!r}: "
                "writes are refused until you repair that file"
            )
        return int(text)

    def _replace(self, path: Path, content: bytes) -> None:
        """Replace the file's content atomically and durably. There is only one writer at a time, so
        one name for the temporary file is enough, and leftovers of a crash are overwritten."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._new, flags, 0o666), "wb") as new:
            if path.exists():
                os.fchmod(new.fileno(), path.stat().st_mode & 0o7777)
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
        os.rename(self._new, path)
        # The rename is an entry of the folder: it is on disk once the folder is.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

"""A guard for a file: it is replaced only by who has not been overtaken.

Two side files stand beside ``report.json``: ``.report.json.fence`` says the highest fence that was
seen, ``.report.json.lock`` is locked (flock) while somebody writes, and is never removed: who
removed it would let two in. In this order, and each on disk before the next:

1. lock; 2. read the mark, and refuse a lower fence; 3. raise the mark; 4. write the new content to
a file of its own; 5. rename it over the old one.

Death at any point leaves the old content or the new, whole, and the lock is free. After a death
between 3 and 5 the mark is higher than what is there; it tells of a true hold, so nobody is refused
who should not be. Raised last instead, it could be missing for content that is there already.
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

_LOOK_EVERY = 0.01  # seconds; flock cannot wait with a limit, and writing takes about as long


class FileGuard:
    """One file, for all processes of one host (and of others, where the file system's flock
    reaches them). Blocking: in asyncio, use ``asyncio.to_thread``.

    ``timeout``: how long to wait for another writer, in seconds; None: without end. One that was
    paused while it wrote keeps others out until it goes on or dies.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds | None = 30.0) -> None:
        # Two ways to the same file must meet at the same side files.
        self.path = Path(path).resolve()
        self._timeout = checked_timeout(timeout)
        self._mark = self.path.with_name(f".{self.path.name}.fence")
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self._new = self.path.with_name(f".{self.path.name}.new")

    def write(self, hold: object, content: bytes | str) -> None:
        """Replace the whole content: readers see the old or the new, never a part. A text is
        written as UTF-8. `StaleFence` if a higher fence was here, `AcquireTimeout` if another
        writer does not end; then nothing was changed."""
        if not isinstance(content, bytes | str):
            raise ConfigurationError(f"content is bytes or a str, not {type(content).__name__}")
        with self.writing(hold):
            self._replace(self.path, content.encode() if isinstance(content, str) else content)

    @contextmanager
    def writing(self, hold: object) -> Iterator[Path]:
        """Keep all other guarded writers out while the body runs, for what `write` does not do: to
        append, or to change several files that belong together. Raises as `write` does, and then
        the body does not run. What the body has done when it dies halfway is its own affair."""
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
                # Said, not left to close: a child that was forked meanwhile has it open too.
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
                        f"{str(self.path)!r}: another process has been writing it for "
                        f"{self._timeout} s; nothing was written",
                        name=str(self.path),
                        timeout=self._timeout or 0.0,
                        snapshot=None,
                    ) from None
            time.sleep(_LOOK_EVERY)

    def _seen(self) -> int:
        try:
            text = self._mark.read_bytes()
        except FileNotFoundError:
            return 0  # nobody was here: every fence may write
        if not text.strip().isdigit():
            raise ConfigurationError(
                f"{str(self._mark)!r} should say the highest fence, and says {text[:40]!r}: "
                "nothing may be written until somebody puts it right"
            )
        return int(text)

    def _replace(self, path: Path, content: bytes) -> None:
        """The file's whole content, at once and for good. Only one writer is here, so one name for
        what is not finished is enough, and what a dead one left is overwritten."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._new, flags, 0o666), "wb") as new:
            if path.exists():
                os.fchmod(new.fileno(), path.stat().st_mode & 0o7777)
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
        os.rename(self._new, path)
        # The rename itself is in the folder, and on disk when that is.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

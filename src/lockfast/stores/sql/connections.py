"""Sessions with a server: exchanges are written once, and run in a thread or in an event loop.

An exchange is a generator over a non-blocking socket: it yields the event that it waits for, and
returns the reply. `Connection.run` waits for the events in this thread; `Connection.run_soon` lets
the callbacks of the loop continue the exchange, so a cancelled task does not interrupt it.

Nothing is retried here. After an error the caller checks ``broken``: a broken connection is closed,
because a reply may still arrive on it, and because closing rolls back a transaction that was not
finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.sql.book import NoTables, Retry

T = TypeVar("T")
READ, WRITE = select.POLLIN, select.POLLOUT
Exchange = Generator[int, None, Any]  # yields READ or WRITE
# An interrupted caller waits for the reply for so long: until it begins, and within it.
SETTLING, SILENCE = 0.25, 0.1


class Connection(ABC):
    """One session, for one thread or task at a time."""

    lost_by: tuple[type[Exception], ...] = (OSError,)  # the driver's errors of a lost connection

    def __init__(self, fd: int, where: str) -> None:
        self.fd = fd
        self.where = where
        self.broken = False
        self.used = clock.now()
        self._poll = select.poll()
        self._poll.register(fd, READ)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exchange: Exchange | None = None
        self._future: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False

    @abstractmethod
    def executing(self, request: Any) -> Exchange:
        """Execute a request, or a list of them; return the reply, or theirs."""

    @abstractmethod
    def creating_tables(self) -> Exchange:
        """Create the tables unless they exist."""

    @abstractmethod
    def _finish(self) -> None:
        """Close the socket, without a farewell: an exchange may be in progress."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Close this process's copy of the socket; the parent's session goes on. The loop, whose
        selector the parent shares, is left alone."""

    # ---- in a thread ---------------------------------------------------------------------------

    def run(self, exchange: Exchange, budget: float, now: float | None = None) -> Any:
        """Run an exchange to its end, blocking. It begins ``now``, if the caller knows."""
        until, rest = (clock.now() if now is None else now) + budget, budget
        try:
            wanted = next(exchange)
            while rest > 0 and self._wait(wanted, rest):
                wanted = next(exchange)
                rest = until - clock.now()
            raise self.late(budget)
        except StopIteration as end:
            return end.value
        except Exception as error:
            raise self._mapped(error)  # noqa: B904 (it has its cause)
        except BaseException:
            # Ctrl-C, for example. The interrupted waiter leaves the queue next, on another
            # connection, and must not overtake its own claim: so wait briefly for its end.
            self.broken = True
            self._settle()
            raise

    def _wait(self, wanted: int, seconds: float) -> bool:
        """Wait for an event, in a thread; False: it did not happen in time."""
        if wanted == READ:
            return bool(self._poll.poll(seconds * 1000))
        return wait(self.fd, wanted, seconds)

    def _is_readable(self, seconds: float) -> bool:
        return bool(self._poll.poll(seconds * 1000))

    def _settle(self) -> None:
        """Wait until the server has replied completely, or for `SETTLING` seconds."""
        pause, until = SETTLING, clock.now() + SETTLING
        with contextlib.suppress(OSError):
            while (rest := until - clock.now()) > 0 and self._is_readable(min(rest, pause)):
                if not os.read(self.fd, 65536):
                    return
                pause = SILENCE  # the reply has begun

    # ---- in an event loop ----------------------------------------------------------------------

    def bind(self) -> None:
        """Let the running loop watch the socket, until the connection is closed."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.fd, self._advance)

    async def run_soon(self, exchange: Exchange, budget: float) -> Any:
        """Run an exchange to its end. On cancellation, wait for it: the cancelled waiter leaves the
        queue next, on another connection, and must not overtake its own claim."""
        loop = self._loop
        if loop is None:  # the server has just closed the session: see `_advance`
            raise self.lost(ConnectionResetError("the server closed the connection"))
        self._exchange, self._future = exchange, loop.create_future()
        self._timer = loop.call_later(budget, self._expire, budget)
        self._advance()
        try:
            return await self._future
        except asyncio.CancelledError:
            if self._future.done() and not self._future.cancelled():
                self._future.exception()  # retrieved, so asyncio does not report it
            while self._exchange is not None:
                self._future = loop.create_future()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await self._future  # the first cancellation is raised below
            raise

    def _advance(self) -> None:
        """Continue the exchange. Without one, the server closes the session, or says that it is
        about to."""
        if self._exchange is None:
            self.broken = True
            self._forget()
            return
        try:
            wanted = next(self._exchange)
        except StopIteration as end:
            self._end(end.value, None)
        except Exception as error:
            self._end(None, self._mapped(error))
        except BaseException as error:
            self._end(None, self.lost(error))
            raise
        else:
            self._watch_writing(wanted == WRITE)

    def _expire(self, budget: float) -> None:
        if self._exchange is not None:
            self._end(None, self.late(budget))

    def _end(self, reply: Any, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
        self._watch_writing(False)
        if self._timer is not None:
            self._timer.cancel()
        if self._future is None or self._future.done():
            return
        if error is None:
            self._future.set_result(reply)
        else:
            self._future.set_exception(error)

    def _watch_writing(self, wanted: bool) -> None:
        if wanted != self._writing and self._loop is not None:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self.fd, self._advance)
            else:
                self._loop.remove_writer(self.fd)

    def _forget(self) -> None:
        """Unregister the socket, before it is closed and its descriptor may be reused."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.fd)
            if self._writing:
                loop.remove_writer(self.fd)

    # ---- errors, closing -----------------------------------------------------------------------

    def _mapped(self, error: Exception) -> Exception:
        """Map an error of an exchange. The server's own leave the connection as it is, and come
        first: a BackendError is an OSError."""
        if isinstance(error, BackendError | Retry | NoTables):
            return error
        if isinstance(error, self.lost_by):
            return self.lost(error)
        self.broken = True
        return error

    def lost(self, error: BaseException) -> BackendError:
        """Mark the connection broken and map a socket error."""
        self.broken = True
        found = BackendError(f"the connection to {self.where} was lost: {error}")
        found.__cause__ = error
        return found

    def late(self, budget: float) -> BackendError:
        self.broken = True
        return BackendError(f"{self.where} did not answer within {budget:.3g} s")

    def is_stale(self) -> bool:
        """Return whether the server closed the idle connection: it sends the reason before it
        does."""
        return self.broken or self._is_readable(0)

    def close(self) -> None:
        """Close immediately, even if the loop has ended."""
        self.broken = True
        self._forget()
        self._finish()
        if self._exchange is not None:
            self._end(None, self.lost(ConnectionResetError("this client was closed")))


def wait(fd: int, wanted: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, wanted)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


async def in_thread(work: Callable[[], T], limit: float, discard: Callable[[T], object]) -> T:
    """Run in a thread of its own, not in the executor of the loop, whose threads may all be busy.
    A result that comes too late is discarded; then this raises TimeoutError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(found: T | None, error: BaseException | None) -> None:
        if future.done():
            if error is None:
                discard(found)  # type: ignore[arg-type]
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        found, error = None, None
        try:
            found = work()
        except BaseException as why:  # raised in the loop
            error = why
        try:
            loop.call_soon_threadsafe(deliver, found, error)
        except RuntimeError:  # the loop has ended
            if error is None:
                discard(found)  # type: ignore[arg-type]

    threading.Thread(target=run, name="lockfast-connect", daemon=True).start()
    async with asyncio.timeout(limit):
        return await future

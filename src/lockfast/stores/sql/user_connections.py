"""Connections made by a user's function or by a user's SQLAlchemy engine.

A connection made this way belongs to lockfast from then on, which sets it up, keeps it and closes
it. None is taken out of the user's pool: the pool would be short of it, and a request might wait
for a pool whose connections are held by callers that wait for the lock. So the user's autocommit,
isolation level and pool size do not matter.

Both APIs need connections from one maker, because the keeper of an asyncio client is a thread. For
a thread, a coroutine function runs in a loop of its own, in a separate thread; for a task, a plain
function runs in a thread of its own. The dialect decides whether lockfast can use the driver's
connection, or only the parameters with which it was made.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from lockfast.errors import BackendError, ConfigurationError
from lockfast.stores.sql.connections import in_thread

# The dialect by the library of a connection.
DRIVERS = {"psycopg": "postgresql", "pymysql": "mysql", "asyncmy": "mysql"}
ENGINES = {
    ("postgresql", "psycopg"): "postgresql",
    ("postgresql", "psycopg_async"): "postgresql",
    ("mysql", "pymysql"): "mysql",
    ("mysql", "asyncmy"): "mysql",
    ("mariadb", "pymysql"): "mysql",
    ("mariadb", "asyncmy"): "mysql",
}
# The least time that a coroutine has to connect, and that the check of its connection has.
LEAST_CONNECTING, LEAST_CHECKING = 2.0, 0.5
LONGEST_CONNECTING = 60.0  # for a user's function that blocks, for a task
FIRST_BUDGET = 10.0  # for the first connection, which shows the dialect and the server

Then = Callable[[Any], Awaitable[Any]]


class UserConnections:
    """Maker of connections. ``dialect`` is "postgresql" or "mysql". Its endpoint sets ``then``,
    which is applied to a connection that a coroutine made, in its loop, and ``explain``, which
    maps an error of the driver if it can."""

    then: Then | None = None
    explain: Callable[[str, Exception], Exception | None] | None = None

    def __init__(self, make: Callable[[], Any], dialect: str, where: str) -> None:
        self._make = make
        self.dialect = dialect
        self.where = where
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def connect(self, budget: float) -> Any:
        """Return a new connection, for this thread."""
        try:
            made = self._make()
            if inspect.isawaitable(made):
                return _run_in_thread(self._awaited(made), max(budget, LEAST_CONNECTING))
            return self._new(made)
        except Exception as error:
            raise self._failed(error) from error

    async def connect_in_loop(self) -> Any:
        """Return a new connection, made in this loop, or in a thread if making it blocks."""
        try:
            made = await in_thread(self._make, LONGEST_CONNECTING, _close)
            return await self._awaited(made) if inspect.isawaitable(made) else self._new(made)
        except Exception as error:
            raise self._failed(error) from error

    async def _awaited(self, made: Awaitable[Any]) -> Any:
        connection = self._new(await made)
        return connection if self.then is None else await self.then(connection)

    def _failed(self, error: Exception) -> Exception:
        """Map an exception of the user's function."""
        if isinstance(error, BackendError | ConfigurationError):
            return error
        found = None if self.explain is None else self.explain(self.where, error)
        return found or BackendError(f"{self.where}: connecting failed: {error}")

    def _new(self, made: Any) -> Any:
        _identify(made)
        if made in self._known:
            raise ConfigurationError(
                "your function returned the same connection twice: each must be new, because "
                "lockfast uses them at the same time and closes them"
            )
        self._known.add(made)
        return made


def _close(made: Any) -> None:
    if hasattr(made, "close"):
        made.close()


def _run_in_thread(work: Any, budget: float) -> Any:
    """Run a coroutine in a new loop in a new thread; this thread may be running a loop already."""
    outcome: list[Any] = []

    async def limited() -> Any:
        async with asyncio.timeout(max(budget, 0.001)):
            return await work

    def run() -> None:
        try:
            outcome.append((asyncio.run(limited()), None))
        except BaseException as error:  # raised below, in the calling thread
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="lockfast-connect", daemon=True)
    thread.start()
    thread.join()
    made, error = outcome[0]
    if isinstance(error, TimeoutError):
        raise BackendError(
            f"your function did not make a connection within {budget:.3g} s"
        ) from None
    if error is not None:
        raise error
    return made


# ---- engines -----------------------------------------------------------------------------------


def of_engine(engine: Any) -> UserConnections:
    """Make connections as an `Engine` or `AsyncEngine` does: its URL, ``connect_args``, ``creator``
    and events count."""
    dialect = ENGINES.get((engine.dialect.name, engine.dialect.driver))
    if dialect is None:
        raise ConfigurationError(
            f"an engine of {engine.dialect.name}+{engine.dialect.driver} is not supported: use "
            "postgresql+psycopg, mysql+pymysql or mysql+asyncmy, or pass a URL"
        )
    url = engine.url
    where = f"{engine.dialect.name} at {url.host or 'localhost'}"
    where += f":{url.port}" if url.port else ""
    where += f"/{url.database}" if url.database else ""
    pool = getattr(engine, "sync_engine", engine).pool

    def detached() -> Any:
        # A pool of its own, configured like the engine's, for this one connection: the engine's
        # asyncio pool belongs to one loop.
        connection = pool.recreate().connect()
        driver = connection.driver_connection
        connection.detach()
        return driver

    if engine.dialect.is_async:
        from sqlalchemy.util import greenlet_spawn

        return UserConnections(lambda: greenlet_spawn(detached), dialect, where)
    return UserConnections(detached, dialect, where)


# ---- functions ---------------------------------------------------------------------------------


def of_function(make: Callable[[], Any]) -> UserConnections:
    """Make connections with a function or coroutine function without arguments. It is called once
    now, to find out the dialect and the server."""
    first = UserConnections(make, "", "your function")
    first.then = _identify_and_close
    found = first.connect(FIRST_BUDGET)
    if not isinstance(found, tuple):
        made, found = found, _identify(found)
        made.close()
    return UserConnections(make, *found)


async def _identify_and_close(made: Any) -> tuple[str, str]:
    found = _identify(made)
    closing = made.close()
    if inspect.isawaitable(closing):
        await closing
    return found


def _identify(made: Any) -> tuple[str, str]:
    """Return the dialect and the address of a connection."""
    libraries = [kind.__module__.split(".")[0] for kind in type(made).__mro__]
    library = next((name for name in libraries if name in DRIVERS), None)
    if library is None:
        if hasattr(made, "close"):
            made.close()  # returns it to its pool, for instance
        hint = ": pass the engine itself" if "sqlalchemy" in libraries else ""
        raise ConfigurationError(
            f"your function returned {type(made).__module__}.{type(made).__qualname__}, which is "
            f"not a connection of {', '.join(DRIVERS)}{hint}"
        )
    if getattr(made, "_pool", None) is not None:
        raise ConfigurationError(
            "your function returns a connection of a pool, which would be short of it: pass a "
            "function that makes new connections, which lockfast keeps and closes"
        )
    if library == "psycopg":
        info = made.info
        return "postgresql", f"postgresql at {info.host or 'localhost'}:{info.port}/{info.dbname}"
    prefix = "_" if library == "asyncmy" else ""
    host, port, name = (
        getattr(made, f"{prefix}{attribute}") for attribute in ("host", "port", "db")
    )
    name = name.decode() if isinstance(name, bytes) else name
    return "mysql", f"mysql at {host}:{port}/{name}"

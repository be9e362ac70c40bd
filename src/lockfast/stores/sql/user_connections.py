"""Connections that a user's own function makes, or a user's engine of SQLAlchemy.

Each one that it makes is ours from then on: we set it up, keep it and close it. None is ever taken
out of the user's pool, where it would be missed, and where it might wait for those who wait for us.
So the user's autocommit, isolation level and pool size do not matter.

Both colours are needed from one: the keeper of an asyncio client is a thread. What a coroutine
makes is made in a thread, in a loop of its own, where a thread needs it; what a function makes, in
a thread, where a task needs it. Whether the driver's object can then be used in the other colour,
or only tells how to connect, the dialect knows.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from lockfast.errors import BackendError, ConfigurationError

# By the library of a connection: its dialect.
DRIVERS = {"psycopg": "postgresql", "pymysql": "mysql", "asyncmy": "mysql"}
ENGINES = {
    ("postgresql", "psycopg"): "postgresql",
    ("postgresql", "psycopg_async"): "postgresql",
    ("mysql", "pymysql"): "mysql",
    ("mysql", "asyncmy"): "mysql",
    ("mariadb", "pymysql"): "mysql",
    ("mariadb", "asyncmy"): "mysql",
}
# How long a coroutine may take to make one, at least, and how long it may be looked at then.
MAKING, LOOKING = 2.0, 0.5
PATIENCE = 10.0  # for the first connection, which tells what it leads to

Then = Callable[[Any], Awaitable[Any]]


class Given:
    """Makes connections. ``dialect`` is "postgresql" or "mysql"."""

    def __init__(self, make: Callable[[], Any], dialect: str, where: str) -> None:
        self._make = make
        self.dialect = dialect
        self.where = where
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def blocking(self, budget: float, then: Then | None = None) -> Any:
        """A new connection, in this thread. ``then`` is done to what a coroutine makes, in its
        loop."""
        try:
            made = self._make()
            if inspect.isawaitable(made):
                return _elsewhere(self._both(made, then), max(budget, MAKING))
            return self._new(made)
        except Exception as error:
            raise self._failed(error) from error

    async def _both(self, made: Awaitable[Any], then: Then | None) -> Any:
        connection = self._new(await made)
        return connection if then is None else await then(connection)

    async def here(self) -> Any:
        """A new connection, made in this loop, or in a thread if it is made by blocking."""
        try:
            made = await asyncio.get_running_loop().run_in_executor(None, self._make)
            return self._new(await made if inspect.isawaitable(made) else made)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        """Whatever a user's function raises."""
        if isinstance(error, BackendError | ConfigurationError):
            return error
        return self.explain(error) or BackendError(f"{self.where}: no connection: {error}")

    def explain(self, error: Exception) -> Exception | None:
        """What a driver's error means, if the dialect knows."""
        return None

    def _new(self, made: Any) -> Any:
        _what(made)
        if made in self._known:
            raise ConfigurationError(
                "the function that makes connections gave the same one twice: each must be new, "
                "because they are used at the same time, and closed by us"
            )
        self._known.add(made)
        return made


def _elsewhere(work: Any, budget: float) -> Any:
    """Run it in a loop of its own; this thread may be running one already."""
    outcome: list[Any] = []

    async def limited() -> Any:
        async with asyncio.timeout(max(budget, 0.001)):
            return await work

    def run() -> None:
        try:
            outcome.append((asyncio.run(limited()), None))
        except BaseException as error:  # it is raised below, in the thread that asked
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="lockfast-connect", daemon=True)
    thread.start()
    thread.join()
    made, error = outcome[0]
    if isinstance(error, TimeoutError):
        raise BackendError(f"your connection was not made within {budget:.3g} s") from None
    if error is not None:
        raise error
    return made


# ---- an engine ---------------------------------------------------------------------------------


def of_engine(engine: Any) -> Given:
    """An `Engine` or `AsyncEngine`: its URL, its ``connect_args``, its ``creator``, its events."""
    dialect = ENGINES.get((engine.dialect.name, engine.dialect.driver))
    if dialect is None:
        raise ConfigurationError(
            f"an engine of {engine.dialect.name}+{engine.dialect.driver} is not understood: there "
            "are postgresql+psycopg, mysql+pymysql and mysql+asyncmy. Or give a URL"
        )
    url = engine.url
    where = f"{engine.dialect.name} at {url.host or 'localhost'}"
    where += f":{url.port}" if url.port else ""
    where += f"/{url.database}" if url.database else ""
    pool = getattr(engine, "sync_engine", engine).pool

    def detached() -> Any:
        # A pool of its own, like the engine's, for this one connection: a queue of asyncio belongs
        # to one loop.
        connection = pool.recreate().connect()
        driver = connection.driver_connection
        connection.detach()
        return driver

    if engine.dialect.is_async:
        from sqlalchemy.util import greenlet_spawn

        return Given(lambda: greenlet_spawn(detached), dialect, where)
    return Given(detached, dialect, where)


# ---- a function --------------------------------------------------------------------------------


def of_function(make: Callable[[], Any]) -> Given:
    """A function without arguments that makes a connection, or a coroutine function. It is called
    once now, to see what it leads to."""
    found = Given(make, "", "your function").blocking(PATIENCE, _looked)
    if not isinstance(found, tuple):
        made, found = found, _what(found)
        made.close()
    return Given(make, *found)


async def _looked(made: Any) -> tuple[str, str]:
    found = _what(made)
    closing = made.close()
    if inspect.isawaitable(closing):
        await closing
    return found


def _what(made: Any) -> tuple[str, str]:
    """Which dialect, and where."""
    libraries = [kind.__module__.split(".")[0] for kind in type(made).__mro__]
    library = next((name for name in libraries if name in DRIVERS), None)
    if library is None:
        if hasattr(made, "close"):
            made.close()  # back to its pool, for instance
        hint = ": give the engine itself" if "sqlalchemy" in libraries else ""
        raise ConfigurationError(
            f"your function made {type(made).__module__}.{type(made).__qualname__}, which is no "
            f"connection of {', '.join(DRIVERS)}{hint}"
        )
    if getattr(made, "_pool", None) is not None:
        raise ConfigurationError(
            "your function gives a connection of a pool, which would miss it: give one that makes "
            "new connections, which we keep and close"
        )
    if library == "psycopg":
        info = made.info
        return "postgresql", f"postgresql at {info.host or 'localhost'}:{info.port}/{info.dbname}"
    line = "_" if library == "asyncmy" else ""
    host, port, name = (getattr(made, f"{line}{word}") for word in ("host", "port", "db"))
    name = name.decode() if isinstance(name, bytes) else name
    return "mysql", f"mysql at {host}:{port}/{name}"

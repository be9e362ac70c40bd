"""A database as one client uses it: how its stores connect, listen and cross a fork, and the parts
of opening a URL that both dialects share."""

from __future__ import annotations

import difflib
import secrets
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lockfast import clock, forks
from lockfast.core.ports import Signal
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Capabilities, Granted
from lockfast.stores import Endpoint
from lockfast.stores.sql.book import ReadOnly, hash_of
from lockfast.stores.sql.channel import Channel, TaskChannel, ThreadChannel
from lockfast.stores.sql.connections import Connection, in_thread
from lockfast.stores.sql.listeners import POLL_BUDGET, Listener
from lockfast.stores.sql.store import RowsStore
from lockfast.stores.sql.transactions import Session, Transactions
from lockfast.stores.sql.user_connections import LEAST_CHECKING, UserConnections

if TYPE_CHECKING:
    from lockfast.stores.sql.mysql.dialect import MySQLDialect
    from lockfast.stores.sql.postgres.dialect import PostgresDialect

# The check of a new connection gets this much even if connecting took the whole budget.
LEAST_RUNNING = 0.05


class SqlEndpoint(Endpoint):
    """One database. ``url`` has no password; ``parameters`` are the driver's."""

    dialect: PostgresDialect | MySQLDialect
    session: type[Session]
    offers: Capabilities

    def __init__(
        self, parameters: Any, url: str, user_connections: UserConnections | None = None
    ) -> None:
        self.url = url
        self.parameters = parameters
        self._user_connections = user_connections
        self._was_writable = False
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._listener: Listener | None = None
        forks.register(self)

    # ---- connecting ----------------------------------------------------------------------------

    @abstractmethod
    def opened(self, made: Any, budget: float) -> Connection:
        """Connect, or take over the connection that a user's function has ``made``, in this thread;
        check that the server is fit, and set the session up."""

    def connect(self, budget: float) -> Connection:
        until = clock.now() + budget
        if self._user_connections is None:
            return self._fit(None, budget)
        made = self._user_connections.connect(budget)
        return self._fit(made, max(until - clock.now(), LEAST_CHECKING))

    def _fit(self, made: Any, budget: float) -> Connection:
        """Connect. A server that was writable and is not now may be again soon, after a failover:
        so that is a transient error."""
        try:
            connection = self.opened(made, budget)
        except ReadOnly as why:
            raise BackendError(str(why), transient=self._was_writable) from None
        self._was_writable = True
        return connection

    async def connect_soon(self, budget: float) -> Connection:
        """Connect in a thread: resolving a host name blocks."""
        until, made = clock.now() + budget, None
        if self._user_connections is not None:
            made = await self._user_connections.connect_in_loop()
            until = max(until, clock.now() + LEAST_CHECKING)
        rest = max(until - clock.now(), 0.001)
        try:
            return await in_thread(
                lambda: self._fit(made, rest), rest + LEAST_RUNNING, Connection.close
            )
        except TimeoutError:
            raise self.not_in_time(budget) from None

    def not_in_time(self, budget: float) -> BackendError:
        return BackendError(f"{self.url} did not answer in time while connecting ({budget:.3g} s)")

    # ---- stores --------------------------------------------------------------------------------

    def blocking(self, signal: Callable[[], Signal]) -> RowsStore:
        channel = ThreadChannel(self.connect, self.url)
        self._listener = self._listening(partial(self._poll_grants, channel))
        self._listeners.add(self._listener)
        return self._store(channel, self._listener)

    def tasks(self, signal: Callable[[], Signal]) -> RowsStore:
        """Make the store of the async API. Its keeper's store, made before, listens for it."""
        if self._listener is None:
            self.blocking(signal)
        assert self._listener is not None
        return self._store(TaskChannel(self.connect_soon, self.url), self._listener)

    def _listening(self, poll_grants: Callable[[Sequence[tuple[str, str]]], Any]) -> Listener:
        return Listener(poll_grants)

    def _store(self, channel: Channel, listener: Listener) -> RowsStore:
        self._channels.add(channel)
        return RowsStore(
            channel,
            listener,
            self.dialect,
            self.url,
            self.offers,
            secrets.token_bytes(32),
            Transactions(channel, self.session, self.url),
        )

    def _poll_grants(
        self, channel: Channel, waiting: Sequence[tuple[str, str]]
    ) -> list[tuple[str, Granted]]:
        request = self.dialect.poll_grants([(hash_of(name), one) for name, one in waiting])
        return self.dialect.decode_grants(channel.send(request, POLL_BUDGET))

    def after_fork_in_child(self) -> None:
        """Connections that cross a fork are discarded in the child."""
        for listener in list(self._listeners):
            listener.after_fork_in_child()
        for channel in list(self._channels):
            channel.after_fork_in_child()


def refuse_unknown(scheme: str, options: Iterable[str], known: Collection[str]) -> None:
    """Refuse an option that the driver does not know or would silently ignore; suggest a known
    one."""
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            choices = f" (there are: {', '.join(known)})" if len(known) < 10 else ""
            hint = f": did you mean {close[0]}?" if close else choices
            raise ConfigurationError(f"{scheme}://: unknown option {option!r}{hint}")


def not_a_url(kind: str, scheme: str) -> ConfigurationError:
    """Build the error for a malformed URL. The URL is not quoted: it may contain a password."""
    return ConfigurationError(
        f"not a valid {kind} URL: expected {scheme}://user:password@host:port/database, with / ? "
        "# @ in a password written as %2F %3F %23 %40"
    )

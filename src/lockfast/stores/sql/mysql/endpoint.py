"""The MariaDB and MySQL store: opened from a URL or from a user's connections, and its health
checks."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from lockfast import clock
from lockfast.errors import BackendError, ConfigurationError
from lockfast.model import Capabilities
from lockfast.stores.health_checks import HealthCheck

try:
    import asyncmy.errors
    import pymysql
except ImportError as missing:
    raise ConfigurationError(
        f"MariaDB and MySQL need a client library that is not installed ({missing.name}): "
        "pip install 'lockfast[mysql]'"
    ) from None

from lockfast.stores.sql.endpoint import SqlEndpoint, not_a_url, refuse_unknown
from lockfast.stores.sql.mysql.connections import (
    MySQLConnection,
    code_and_message,
    connected,
    taken_over,
    usable,
)
from lockfast.stores.sql.mysql.dialect import MySQLDialect, exception_for
from lockfast.stores.sql.mysql.transactions import MySQLSession
from lockfast.stores.sql.user_connections import LEAST_CHECKING, UserConnections

PORT = 3306
OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")


class MySQLEndpoint(SqlEndpoint):
    dialect = MySQLDialect()
    session = MySQLSession
    offers = Capabilities(
        store="mysql",
        across="network",
        wakes="one paced read per process",
        survives_restart=True,
        transaction_locks=True,
    )

    def opened(self, made: Any, budget: float) -> MySQLConnection:
        until, least, is_theirs = clock.now() + budget, 0.001, False
        if made is None:
            connection = connected(self.parameters, self.url, budget)
        elif isinstance(made, dict):
            connection, least = connected(made, self.url, budget), LEAST_CHECKING
        else:
            connection, is_theirs = taken_over(made, self.url, budget)
            least = LEAST_CHECKING
        try:
            connection.set_up(is_theirs, until, least)
        except BaseException:
            connection.close()
            raise
        return connection

    def health_checks(self) -> Iterator[HealthCheck]:
        from lockfast.stores.sql.health import mysql_checks  # used by `lockfast doctor` only

        return mysql_checks(self)


def open_mysql(url: str) -> MySQLEndpoint:
    """Open ``mysql://user:password@host:port/database``, or ``mariadb://``, which is the same."""
    parts = urlsplit(url)
    try:
        port, host, user = parts.port or PORT, parts.hostname or "localhost", parts.username or ""
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        port = 0
    database = unquote(parts.path.strip("/"))
    if not port or not database or "/" in database or parts.fragment:
        raise not_a_url(f"{parts.scheme}://", parts.scheme)
    refuse_unknown(parts.scheme, options, OPTIONS)
    parameters: dict[str, Any] = {
        "host": host,
        "port": port,
        "user": unquote(user),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    if "unix_socket" in options:
        parameters["unix_socket"] = options["unix_socket"]
    if any(option.startswith("ssl") for option in options):
        parameters["ssl"] = _tls_context(options)
    return MySQLEndpoint(parameters, f"{parts.scheme} at {host}:{port}/{database}")


def _tls_context(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        context.check_hostname = options.get("ssl_check_hostname", "true") != "false"
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"the TLS certificates cannot be read: {error}") from error
    return context


def open_mysql_connections(user_connections: UserConnections) -> MySQLEndpoint:
    """Open the store on connections that a user's function or engine makes."""
    user_connections.then = usable
    user_connections.explain = _map_driver_error
    return MySQLEndpoint({}, user_connections.where, user_connections)


def _map_driver_error(where: str, error: Exception) -> Exception | None:
    if not isinstance(error, pymysql.MySQLError | asyncmy.errors.MySQLError):
        return None
    found = exception_for(*code_and_message(error), where)
    return found if isinstance(found, BackendError) else None

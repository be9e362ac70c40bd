"""MariaDB and MySQL over TLS, and their authentication methods, in both APIs."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockfast
from lockfast.errors import BackendError
from lockfast.stores.sql.mysql.endpoint import open_mysql

APIS = ("blocking", "asyncio")
BUDGET = 5.0
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


@pytest.fixture(scope="module")
def secured(mariadb_server: Any) -> Iterator[Any]:
    from lab.servers.mariadb_server import MariaDBServer

    with MariaDBServer(tls=True) as server:
        yield server


def execute_once(api: str, url: str, sql: str) -> Any:
    """Execute one statement on a connection of lockfast and return its rows."""
    endpoint = open_mysql(url)

    async def execute() -> Any:
        connection = await endpoint.connect_soon(BUDGET)
        connection.bind()
        try:
            return await connection.run_soon(connection.executing(sql), BUDGET)
        finally:
            connection.close()

    if api == "asyncio":
        return asyncio.run(execute())[0].rows
    connection = endpoint.connect(BUDGET)
    try:
        return connection.run(connection.executing(sql), BUDGET)[0].rows
    finally:
        connection.close()


def lock_once(api: str, url: str) -> int:
    async def lock() -> int:
        async with lockfast.aio.connect(url) as client, client.lock("a", timeout=BUDGET) as hold:
            return int(hold.fence)

    if api == "asyncio":
        return asyncio.run(lock())
    with lockfast.connect(url) as client, client.lock("a", timeout=BUDGET) as hold:
        return int(hold.fence)


@pytest.mark.parametrize("api", APIS)
def test_connections_are_encrypted_if_the_server_offers_tls(secured, api):
    ((_, cipher),) = execute_once(api, secured.url, CIPHER)
    assert cipher
    assert lock_once(api, secured.url)


@pytest.mark.parametrize("api", APIS)
def test_connections_over_a_unix_socket_are_not_encrypted(secured, api):
    url = f"mysql://root@localhost/{secured.database}?unix_socket={secured.folder}/socket"
    assert execute_once(api, url, CIPHER) == [[b"Ssl_cipher", b""]]
    assert lock_once(api, url)


@pytest.mark.parametrize("api", APIS)
def test_a_certificate_is_checked_if_one_is_given(secured, api, tmp_path):
    assert lock_once(api, f"{secured.url}?ssl_ca={secured.ca_file}")
    from lab.servers.certificates import make_certificates

    make_certificates(tmp_path)
    with pytest.raises((BackendError, ssl.SSLError), match="certificate verify failed"):
        lock_once(api, f"{secured.url}?ssl_ca={tmp_path}/ca.pem")


def test_a_tls_connection_that_the_server_closed_is_recognized_as_stale(secured):
    connection: Any = open_mysql(secured.url).connect(BUDGET)

    def execute(sql: str) -> Any:
        return connection.run(connection.executing(sql), BUDGET)[0].rows

    ((number,),) = execute("SELECT CONNECTION_ID()")
    assert isinstance(connection._sock, ssl.SSLSocket)
    assert not connection.is_stale()
    assert execute("SELECT 1") == [[b"1"]]
    secured.call(f"KILL {number.decode()}")
    until = time.monotonic() + BUDGET
    while not connection.is_stale():
        assert time.monotonic() < until
        time.sleep(0.01)
    connection.close()


@pytest.mark.parametrize("shut_down", [True, False])
def test_a_loop_that_ended_leaves_no_socket_open_over_tls(secured, shut_down):
    """An ended loop closes no sockets any more; an unclosed one is a warning, and so an error
    here."""

    async def main() -> Any:
        client = lockfast.aio.connect(secured.url)
        await (await client.lock("a").acquire(timeout=BUDGET)).release()
        return client

    if shut_down:
        client = asyncio.run(main())
    else:
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(main())
        loop.close()
    asyncio.run(client.close())
    del client
    gc.collect()


# ---- passwords --------------------------------------------------------------------------------

PLUGINS = ("mysql_native_password", "caching_sha2_password", "sha256_password")


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Iterator[Callable[[Any, str], str]]:
    """Create a user whose password the server has not cached yet, and return the URL for it; skip
    where the server does not have the authentication plugin."""
    made: list[tuple[Any, str]] = []

    def account(server: Any, plugin: str) -> str:
        knows = "SELECT 1 FROM information_schema.plugins WHERE plugin_name = %s AND plugin_status"
        if not server.call(f"{knows} = 'ACTIVE'", plugin):
            pytest.skip(f"this server has no {plugin}")
        name = f"u{uuid.uuid4().hex[:8]}"
        how = f"WITH {plugin} BY 's3cret'"
        if not server.is_mysql:
            how = f"VIA {plugin} USING PASSWORD('s3cret')"
        server.call(f"CREATE USER {name}@127.0.0.1 IDENTIFIED {how}")
        server.call(f"GRANT ALL ON {server.database}.* TO {name}@127.0.0.1")
        made.append((server, name))
        return str(server.url).replace("root@", f"{name}:s3cret@")

    yield account
    for server, name in made:
        server.call(f"DROP USER {name}@127.0.0.1")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_each_authentication_plugin_of_the_server_works(secured, account, plugin, api):
    url = account(secured, plugin)
    assert lock_once(api, url)
    assert lock_once(api, url)  # the server may have cached the password
    with pytest.raises(BackendError, match="password is wrong") as caught:
        lock_once(api, url.replace("s3cret", "wr0ng"))
    assert not caught.value.transient and "wr0ng" not in str(caught.value)


@pytest.fixture(scope="module")
def plain(mariadb_server: Any) -> Iterator[Any]:
    from lab.servers.mariadb_server import MariaDBServer

    if not mariadb_server.is_mysql:
        pytest.skip("MariaDB has no such authentication plugin")
    server = MariaDBServer()
    server.start("--tls-version=")
    yield server
    server.stop()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("plugin", PLUGINS[1:])
def test_without_tls_a_password_needs_another_library(plain, account, plugin, api):
    url = account(plain, plugin)
    if importlib.util.find_spec("cryptography"):
        assert lock_once(api, url)
        return
    with pytest.raises(BackendError, match="enable TLS on the server") as caught:
        lock_once(api, url)
    assert not caught.value.transient and "cryptography" in str(caught.value)

"""MariaDB and MySQL over TLS, and the ways to tell them a password, in both APIs."""

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
from lockfast.stores.sql.mysql.connections import Link, connect
from lockfast.stores.sql.mysql.store import open_mysql
from lockfast.stores.sql.mysql.task_connections import connect_task

APIS = ("blocking", "asyncio")
BUDGET = 5.0
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"


@pytest.fixture(scope="module")
def secured(mariadb_server: Any) -> Iterator[Any]:
    from lab.servers.mariadb_server import MariaDBServer

    with MariaDBServer(tls=True) as server:
        yield server


def said(api: str, url: str, sql: str) -> Any:
    """What a session of lockfast's own is answered."""
    address = open_mysql(url)._address

    async def ask() -> Any:
        link = await connect_task(address, BUDGET)
        try:
            return await link.ask(sql, BUDGET)
        finally:
            link.close()

    if api == "asyncio":
        return asyncio.run(ask())[0].rows
    link = connect(address, BUDGET)
    try:
        return link.ask(sql, BUDGET)[0].rows
    finally:
        link.close()


def lock_once(api: str, url: str) -> int:
    async def lock() -> int:
        async with lockfast.aio.connect(url) as client, client.lock("a", timeout=BUDGET) as hold:
            return int(hold.fence)

    if api == "asyncio":
        return asyncio.run(lock())
    with lockfast.connect(url) as client, client.lock("a", timeout=BUDGET) as hold:
        return int(hold.fence)


@pytest.mark.parametrize("api", APIS)
def test_it_is_spoken_in_secret_to_a_server_that_can(secured, api):
    ((_, cipher),) = said(api, secured.url, CIPHER)
    assert cipher
    assert lock_once(api, secured.url)


@pytest.mark.parametrize("api", APIS)
def test_a_unix_socket_is_secret_enough(secured, api):
    url = f"mysql://root@localhost/{secured.database}?unix_socket={secured.folder}/socket"
    assert said(api, url, CIPHER) == (("Ssl_cipher", ""),)
    assert lock_once(api, url)


@pytest.mark.parametrize("api", APIS)
def test_a_certificate_is_checked_if_one_is_given(secured, api, tmp_path):
    assert lock_once(api, f"{secured.url}?ssl_ca={secured.ca_file}")
    from lab.servers.certificates import make_certificates

    make_certificates(tmp_path)
    with pytest.raises((BackendError, ssl.SSLError), match="certificate verify failed"):
        lock_once(api, f"{secured.url}?ssl_ca={tmp_path}/ca.pem")


def test_a_connection_that_the_server_ended_is_seen_to_be_also_over_tls(secured):
    link: Link = connect(open_mysql(secured.url)._address, BUDGET)
    ((number,),) = link.ask("SELECT CONNECTION_ID()", BUDGET)[0].rows
    assert isinstance(link._connection._sock, ssl.SSLSocket)
    assert not link.is_stale()
    assert link.ask("SELECT 1", BUDGET)[0].rows == ((1,),)
    secured.call(f"KILL {number}")
    until = time.monotonic() + BUDGET
    while not link.is_stale():
        assert time.monotonic() < until
        time.sleep(0.01)
    link.close()


@pytest.mark.parametrize("shut", [True, False])
def test_a_loop_that_ended_leaves_no_socket_open_over_tls(secured, shut):
    """It closes nothing any more. Warnings are errors here."""

    async def main() -> Any:
        client = lockfast.aio.connect(secured.url)
        await (await client.lock("a").acquire(timeout=BUDGET)).release()
        return client

    if shut:
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
    """A new user with a password that the server has not seen yet; skips where it knows no such
    way. The URL of who comes in with it."""
    made: list[tuple[Any, str]] = []

    def account(server: Any, plugin: str) -> str:
        knows = "SELECT 1 FROM information_schema.plugins WHERE plugin_name = %s AND plugin_status"
        if not server.call(f"{knows} = 'ACTIVE'", plugin):
            pytest.skip(f"this server knows no {plugin}")
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
def test_a_password_is_told_in_each_way_that_the_server_knows(secured, account, plugin, api):
    url = account(secured, plugin)
    assert lock_once(api, url)
    assert lock_once(api, url)  # it may remember what it was told
    with pytest.raises(BackendError, match="password is wrong") as caught:
        lock_once(api, url.replace("s3cret", "wr0ng"))
    assert not caught.value.transient and "wr0ng" not in str(caught.value)


@pytest.fixture(scope="module")
def plain(mariadb_server: Any) -> Iterator[Any]:
    from lab.servers.mariadb_server import MariaDBServer

    if not mariadb_server.is_mysql:
        pytest.skip("MariaDB knows no such way")
    server = MariaDBServer()
    server.start("--tls-version=")
    yield server
    server.stop()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("plugin", PLUGINS[1:])
def test_without_tls_a_password_needs_a_library_more(plain, account, plugin, api):
    url = account(plain, plugin)
    if importlib.util.find_spec("cryptography"):
        assert lock_once(api, url)
        return
    with pytest.raises(BackendError, match="let the server speak TLS") as caught:
        lock_once(api, url)
    assert not caught.value.transient and "cryptography" in str(caught.value)

"""TLS with a real server: which certificates are accepted, and the errors for the others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from zookeeper_nodes import nodes

import lockfast
from both_apis import APIS, PATIENCE, until
from lab.fault_proxy import FaultProxy


@pytest.fixture(scope="module")
def server(zookeeper_server: Any) -> Iterator[Any]:
    """A server that requires client certificates; skipped where `zookeeper_server` is."""
    from lab.servers.zookeeper_server import ZooKeeperServer

    with ZooKeeperServer(tls="need") as server:
        yield server


@pytest.fixture
def files(server: Any) -> str:
    """URL options with valid certificates."""
    return "".join(
        f"&{option}={server.folder}/{file}"
        for option, file in (
            ("ssl_ca", "ca.pem"),
            ("ssl_cert", "client.pem"),
            ("ssl_key", "client.key"),
        )
    )


def test_locks_work_over_tls(api: str, server: Any, files: str, name: str) -> None:
    first, second = (APIS[api](f"{server.tls_url}?session_timeout=10{files}") for _ in range(2))
    try:
        hold = first.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        waits = second.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        until(lambda: second.client.statistics().waiting == 1)
        assert len(nodes(server, name)) == 2
        # A large batch: more than one TLS record in each direction.
        batch = first.do(
            lambda client: client.multi_lock(*(f"{name}-{n:03d}" for n in range(200))).acquire()
        )
        assert len(first.do(lambda client: client.names(name))) == 201
        first.do(lambda client: batch.release())
        first.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
        assert later.fence > hold.fence
        second.do(lambda client: later.release())
        assert not nodes(server, name)
    finally:
        first.close()
        second.close()


def test_a_connection_that_breaks_is_encrypted_again_in_the_same_session(
    server: Any, files: str, name: str
) -> None:
    with FaultProxy(("127.0.0.1", server.tls_port)) as network:
        url = f"zookeeper+tls://127.0.0.1:{network.port}?session_timeout=4{files}"
        with lockfast.connect(url) as client:
            hold = client.lock(name).acquire(timeout=PATIENCE)
            before = nodes(server, name)
            for fault in (network.reset, network.freeze):
                fault()
                until(lambda: not hold.is_certain)
                network.thaw()
                until(lambda: hold.is_certain)
            assert hold.is_held and nodes(server, name) == before
            hold.release()


@pytest.mark.parametrize(
    "wrong, expected",
    [
        ("ssl_ca=", "certificate"),  # no CA signed the server's certificate
        ("ssl_cert=", "CERTIFICATE"),  # the server requires ours
    ],
)
def test_a_refused_certificate_is_reported(
    server: Any, files: str, name: str, wrong: str, expected: str
) -> None:
    left = "&".join(
        option
        for option in files[1:].split("&")
        if not option.startswith(wrong) and not (wrong == "ssl_cert=" and "ssl_key" in option)
    )
    with (
        lockfast.connect(f"{server.tls_url}?{left}") as client,
        pytest.raises(lockfast.BackendError) as caught,
    ):
        client.lock(name).acquire(timeout=1)
    assert not caught.value.transient
    assert "no encrypted connection" in str(caught.value) and expected in str(caught.value)


def test_another_hosts_certificate_is_refused_unless_that_is_allowed(
    server: Any, files: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host name that resolves to the server but is not in its certificate."""
    real = socket.getaddrinfo

    def known(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.0.1" if host == "elsewhere.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    url = f"zookeeper+tls://elsewhere.test:{server.tls_port}?session_timeout=10{files}"
    with (
        lockfast.connect(url) as client,
        pytest.raises(lockfast.BackendError, match=r"certificate.*elsewhere\.test"),
    ):
        client.lock(name).acquire(timeout=1)
    with (
        lockfast.connect(f"{url}&ssl_check_hostname=false") as client,
        client.lock(name, timeout=PATIENCE),
    ):
        assert len(nodes(server, name)) == 1


def test_the_certificates_of_a_kazoo_client_are_used(server: Any, name: str) -> None:
    theirs = KazooClient(
        f"127.0.0.1:{server.tls_port}",
        use_ssl=True,
        ca=f"{server.folder}/ca.pem",
        certfile=f"{server.folder}/client.pem",
        keyfile=f"{server.folder}/client.key",
    )
    with lockfast.connect(theirs) as client, client.lock(name, timeout=PATIENCE):
        assert len(nodes(server, name)) == 1
        assert "zookeeper+tls://" in repr(client)

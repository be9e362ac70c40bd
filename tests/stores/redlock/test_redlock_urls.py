"""URLs and clients of a quorum: invalid ones are refused, with the reason, before connecting."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio

import lockfast
from lockfast import ConfigurationError, Unsupported, aio


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redlock://a", "3 or more, not 1"),
        ("redlock://a,b", "3 or more, not 2"),
        ("redlock://a,b,c,d", "4 survive no more failures than 3"),
        ("redlock://", "not 0"),
        ("redlock://a,,c", "a host is missing"),
        ("redlock://a,b,a", "named twice"),
        ("redlock://a,b,c/x", "not a Redis URL"),
        ("redlock://a,b,c#x", "not a Redlock URL"),
        ("redlock://a,b,c?longest_lease=91", "longest_lease='91'"),
        ("redlock://a,b,c?longest_lease=x", "longest_lease='x'"),
        ("redlock://a,b,c?unknown=1", "unknown"),
        ("redlok://a,b,c", "did you mean redlock://?"),
    ],
)
def test_an_invalid_quorum_is_refused_with_the_reason(url, why):
    with pytest.raises(ConfigurationError) as caught:
        lockfast.connect(url)
    assert why in str(caught.value)


def test_no_password_is_shown():
    for url in ("redlock://:hunter2@a,b", "redlock://:hunter2@a,b,c?longest_lease=0"):
        with pytest.raises(ConfigurationError) as caught:
            lockfast.connect(url)
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(lockfast.connect("redlock://:hunter2@a,b,c"))


def test_a_lease_that_is_longer_than_the_longest_is_refused():
    client = lockfast.connect("redlock://a,b,c?longest_lease=20", lease=10)
    assert client.capabilities.longest_lease == 20
    with pytest.raises(Unsupported, match="20 s"):
        client.lock("a", lease=21)
    with pytest.raises(Unsupported, match="20 s"):
        lockfast.connect("redlock://a,b,c?longest_lease=20", lease=21)
    assert lockfast.connect("redlock://a,b,c?longest_lease=20")._lease == 20


def test_sync_and_async_clients_are_accepted(redlock_servers):
    ports = redlock_servers.ports
    for kind in (redis.Redis, redis.asyncio.Redis):
        clients = [kind(host="127.0.0.1", port=port) for port in ports]
        with lockfast.connect(clients) as client, client.lock("clients") as hold:
            assert hold.fence > 0
    with pytest.raises(ConfigurationError, match="not 2"):
        aio.connect([redis.Redis("a"), redis.Redis("b")])
    with pytest.raises(ConfigurationError, match="str is not a client"):
        lockfast.connect(["a", "b", "c"])


def test_passwords_and_tls_apply_to_all_nodes(new_redlock):
    nodes = new_redlock(3, password="secret", tls=True)
    hosts = ",".join(f"127.0.0.1:{port}" for port in nodes.ports)
    url = f"redlocks://:secret@{hosts}?ssl_ca_certs={nodes[0].folder}/ca.pem"
    with pytest.raises(lockfast.BackendError, match="certificate"):
        lockfast.connect(url).lock("a", timeout=5).acquire()
    url = f"redlocks://:secret@{hosts}?ssl_cert_reqs=none"
    with lockfast.connect(url) as client, client.lock("a"):
        assert len(client.inspect("a").holders) == 1
    with pytest.raises(lockfast.QuorumError, match="WRONGPASS"):
        lockfast.connect(url.replace("secret", "wrong")).lock("a", timeout=5).acquire()

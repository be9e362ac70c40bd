"""URLs and clients that connect() accepts for a cluster, and secrets that it never shows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.cluster import ClusterNode

import lockfast
from both_apis import PATIENCE, Agent, until
from lockfast import BackendError, ConfigurationError
from lockfast.stores.redis_cluster.slots import slot_of_key

Make = Callable[..., Agent]
SECRET = "tr0ub4dor-Zq"


@pytest.fixture(scope="module")
def vault(new_redis_cluster: Callable[..., Any]) -> Any:
    """A cluster with a password, a user, and TLS."""
    users = [f"clerk on >{SECRET} ~* &* +@all"]
    return new_redis_cluster(2, 0, password=SECRET, tls=True, users=users)


def works(agents: list[Agent], name: str) -> None:
    """Check that two clients exclude each other, and wake each other."""
    first, second = agents
    hold = first.do(lambda client: client.lock(name).acquire())
    assert second.do(lambda client: client.lock(name).try_acquire()) is None
    waits = second.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: second.client.statistics().waiting)
    first.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    second.do(lambda client: later.release())


def test_one_reachable_node_is_enough_to_connect(
    agent: Make, redis_cluster: Any, name: str
) -> None:
    node = redis_cluster.nodes[4]
    seeds = ["127.0.0.1:1", f"localhost:{node.port}"]
    url = f"redis+cluster://{','.join(seeds)}"
    works([agent(url), agent(redis_cluster.url)], name)


def test_a_url_with_a_password_and_tls_connects(agent: Make, vault: Any, name: str) -> None:
    options = f"?ssl_ca_certs={vault.nodes[0].ca_file}"
    as_user = vault.url.replace(f"//:{SECRET}", f"//clerk:{SECRET}")
    works([agent(vault.url + options), agent(as_user + options)], name)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_of_redis_py_replaces_a_url(
    agent: Make, redis_cluster: Any, name: str, kind: str
) -> None:
    port = redis_cluster.nodes[0].port
    if kind == "blocking":
        client: Any = redis.RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port)])
        close = client.close
    else:
        client = asyncio.run(_made("127.0.0.1", port))
        close = lambda: None  # noqa: E731  (the client never connected)
    try:
        works([agent(client), agent(redis_cluster.url)], name)
    finally:
        close()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_client_of_redis_py_passes_on_its_password_and_tls(
    agent: Make, vault: Any, name: str, kind: str
) -> None:
    options: Any = {"password": SECRET, "ssl": True, "ssl_ca_certs": str(vault.nodes[0].ca_file)}
    port = vault.nodes[0].port
    if kind == "blocking":
        client: Any = redis.RedisCluster(host="127.0.0.1", port=port, **options)
        client.close()
    else:
        client = asyncio.run(_made("127.0.0.1", port, **options))
    mine = agent(client)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())


async def _made(host: str, port: int, **options: Any) -> Any:
    return redis.asyncio.RedisCluster(host=host, port=port, **options)


def test_the_address_remap_of_a_client_is_used(redis_cluster: Any, name: str) -> None:
    """Nodes may be behind a network that translates their addresses."""
    seen: list[tuple[str, int]] = []

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        seen.append(address)
        return "localhost", address[1]

    port = redis_cluster.nodes[0].port
    client = redis.RedisCluster(host="127.0.0.1", port=port, address_remap=remap)
    client.close()
    with lockfast.connect(client) as mine, mine.lock(name):
        assert seen and f"localhost:{port}" in mine._endpoint._slots.masters  # type: ignore


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster:///0",
        "redis+cluster://h1:7000/1",
        "redis+cluster://h1:7000,",
        "redis+cluster://h1:port",
        "redis+cluster://h1:70000000",
        "redis+cluster://h1:7000?db=1",
        "redis+cluster://h1:7000?nonsense=1",
        "redis+cluster://h1:7000#x",
        f"redis+cluster://user:{SECRET}/@h1:7000",
        f"redis+cluster://:{SECRET}@h1:7000@h2",
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        lockfast.connect(url)
    assert SECRET not in str(caught.value)


def test_a_wrong_password_fails_at_once_and_is_never_shown(
    agent: Make, vault: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = vault.url.replace(SECRET, "wr0ng-Zq") + f"?ssl_ca_certs={vault.nodes[0].ca_file}"
    mine = agent(url)
    with pytest.raises(BackendError, match="password is wrong") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert not caught.value.transient
    for text in (str(caught.value), repr(mine.client), mine.client._endpoint.url, caplog.text):
        assert "wr0ng-Zq" not in text


def test_a_server_without_cluster_support_is_reported(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(f"redis+cluster://127.0.0.1:{redis_server.port}")
    with pytest.raises(BackendError, match="cluster support disabled") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    assert not caught.value.transient


def test_a_cluster_node_used_as_a_single_server_fails_with_the_url_to_use(
    agent: Make, redis_cluster: Any
) -> None:
    from cluster_clients import names_at

    one, other = redis_cluster.masters[:2]
    mine = agent(one.url)
    name = names_at(redis_cluster, other, 1)[0]
    with pytest.raises(BackendError, match=r"MOVED.*redis\+cluster://"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))


def test_unreachable_nodes_are_reported_within_the_budget(agent: Make, name: str) -> None:
    mine = agent("redis+cluster://127.0.0.1:1,127.0.0.1:2", lease=1.2)
    with pytest.raises(BackendError, match=r"127\.0\.0\.1:[12] is out of reach"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))


def test_slots_are_computed_as_the_servers_compute_them(redis_cluster: Any) -> None:
    node = redis_cluster.nodes[0]
    for key in (
        b"a",
        b"lf:{a}",
        b"lf:{}b",
        b"{a",
        b"}{b}c",
        b"x{y}z{w}",
        "ü{ß}".encode(),
        b"{}{a}",
    ):
        assert slot_of_key(key) == node.call("CLUSTER", "KEYSLOT", key)

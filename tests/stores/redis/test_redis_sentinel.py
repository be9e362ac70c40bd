"""Finding the master: real sentinels and real failovers, and sentinels with outdated information.

A `FakeSentinel` reports what a test wants; the servers it refers to are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio
from fake_redis import PATIENCE, Agent, FakeSentinel, connections, took, until

import lockfast
from lockfast import AcquireTimeout, BackendError, ConfigurationError
from lockfast.stores import open_endpoint

Make = Callable[..., Agent]
SECRET, SENTINEL_SECRET = "s3rver", "s3ntinel"


def acquire(name: str, **terms: Any) -> Callable[[Any], Any]:
    return lambda client: client.lock(name, **terms).acquire()


@pytest.fixture(scope="module")
def two_servers(redis_server: Any) -> Iterator[list[Any]]:
    """Two independent servers."""
    from lab.servers.redis_server import RedisServer

    servers = [RedisServer().start() for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def masters(two_servers: list[Any]) -> Iterator[list[Any]]:
    yield two_servers
    for server in two_servers:
        server.call("REPLICAOF", "NO", "ONE")


@pytest.fixture
def sentinel() -> Iterator[Callable[..., FakeSentinel]]:
    made: list[FakeSentinel] = []

    def sentinel(*arguments: Any, **options: Any) -> FakeSentinel:
        made.append(FakeSentinel(*arguments, **options))
        return made[-1]

    yield sentinel
    for one in made:
        one.close()


def url_of(*sentinels: Any) -> str:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
    return f"redis+sentinel://{hosts}/mymaster/0"


def holds(server: Any, name: str) -> bool:
    return bool(server.call("HLEN", f"lf:{{default:{name}}}") > 1)


def is_renewed(agent: Agent, hold: Any) -> bool:
    try:
        agent.do(lambda client: hold.renew())
    except BackendError:
        return False
    return True


# ---- real sentinels -----------------------------------------------------------------------------


def test_the_master_is_found_by_url_and_by_redis_py_clients(
    agent: Make, redis_sentinels: Any, name: str
) -> None:
    addresses = [("127.0.0.1", sentinel.port) for sentinel in redis_sentinels.sentinels]
    for where in (
        redis_sentinels.url,
        redis.Sentinel(addresses).master_for("mymaster"),
        redis.asyncio.Sentinel(addresses).master_for("mymaster", db=0),
    ):
        mine = agent(where, lease=3)
        hold = mine.do(acquire(name, timeout=3))
        assert holds(redis_sentinels.servers[redis_sentinels.master], name)
        mine.do(lambda client, hold=hold: hold.release())


def test_servers_and_sentinels_have_passwords_of_their_own(
    agent: Make, new_sentinels: Callable[..., Any], name: str
) -> None:
    from urllib.parse import quote

    servers = new_sentinels(password=SECRET, sentinel_password=SENTINEL_SECRET)
    ports = [sentinel.port for sentinel in servers.sentinels]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    without = f"redis+sentinel://:{quote(SECRET, safe='')}@{hosts}/mymaster/3"
    right = f"{without}?sentinel_password={quote(SENTINEL_SECRET, safe='')}"
    mine = agent(right)
    mine.do(acquire(name))
    theirs = redis.Sentinel(
        [("127.0.0.1", port) for port in ports], sentinel_kwargs={"password": SENTINEL_SECRET}
    ).master_for("mymaster", password=SECRET, db=3)
    with pytest.raises(AcquireTimeout):  # both use the same database
        agent(theirs).do(acquire(name, timeout=0))
    for wrong in (without, right.replace("s3rver", "wrong")):
        other = agent(wrong, lease=0.3)
        with pytest.raises(BackendError) as raised:
            other.do(acquire(name, timeout=0))
        assert not raised.value.transient and "password" in str(raised.value)
        shown = f"{raised.value} {other.client!r} {other.client._endpoint.url}"
        assert "s3ntinel" not in shown and "s3rver" not in shown and "wrong@" not in shown


def test_a_holder_and_a_waiter_survive_a_failover(
    agent: Make, new_sentinels: Callable[..., Any], name: str
) -> None:
    """The hold is renewed on the new master, and the waiter goes on waiting and is woken there."""
    servers = new_sentinels(down_after=0.5)
    mine, other = agent(servers.url, lease=30, replicas=1), agent(servers.url, lease=30)
    hold = mine.do(acquire(name))
    waits = other.later(acquire(name, timeout=60))
    until(lambda: other.client.statistics().waiting == 1)
    old = servers.master
    servers.servers[old].kill()
    new = servers.wait_for_new_master(old)
    until(lambda: is_renewed(mine, hold))
    assert hold.is_held and holds(servers.servers[new], name) and not waits.done()
    server = servers.servers[new]
    until(lambda: server.call("PUBSUB", "CHANNELS", "lf:wake:*"))  # the waiter listens there
    with took() as it:
        mine.do(lambda client: hold.release())
        after = waits.result(PATIENCE)
    assert after.fence > hold.fence and it.seconds < 3


def test_a_hold_is_renewed_while_all_sentinels_are_down(
    agent: Make, new_sentinels: Callable[..., Any], name: str
) -> None:
    servers = new_sentinels()
    mine = agent(servers.url, lease=1.5)
    hold = mine.do(acquire(name))
    for sentinel in servers.sentinels:
        sentinel.kill()
    server = servers.servers[0]
    server.call("CLIENT", "KILL", "TYPE", "normal")  # so that the client must find it again
    renewals = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewals + 3)
    assert hold.is_held
    mine.do(lambda client: hold.release())
    mine.do(acquire(f"{name}-2"))  # the last known master also serves new claims


def test_sentinels_known_to_another_sentinel_are_remembered(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    second = sentinel(masters[1].port, epoch=2)
    first = sentinel(masters[0].port, others=(second.port,))
    mine = agent(url_of(first), lease=3)
    hold = mine.do(acquire(name))
    first.gone = True
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    masters[0].call("CLIENT", "KILL", "TYPE", "normal")
    until(lambda: holds(masters[1], name) or not hold.is_held)
    mine.do(acquire(f"{name}-2", timeout=PATIENCE))
    assert holds(masters[1], f"{name}-2")


# ---- contradicting sentinels --------------------------------------------------------------------


def test_a_server_that_is_no_master_is_not_used_as_one(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """A sentinel that was cut off reports the former master: the client asks the next one."""
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    late, knowing = sentinel(masters[0].port), sentinel(masters[1].port)
    mine = agent(url_of(late, knowing), lease=6)
    mine.do(acquire(name))
    assert holds(masters[1], name)
    only_late = agent(url_of(late), lease=0.6)
    with pytest.raises(BackendError, match="not the master"):
        only_late.do(acquire(name, timeout=0.5))


def test_of_two_masters_the_one_with_the_higher_epoch_is_used(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """The client stays with the newer master even if the only sentinel that answers reports the old
    one, which still considers itself master after a partition. The older report counts only once
    the last known master is no longer one."""
    late, knowing = sentinel(masters[0].port, epoch=1), sentinel(masters[1].port, epoch=2)
    mine = agent(url_of(knowing, late))
    mine.do(acquire(f"{name}-1"))
    knowing.gone = True
    masters[1].call("CLIENT", "KILL", "TYPE", "normal")
    mine.do(acquire(f"{name}-2", timeout=PATIENCE))
    assert holds(masters[1], f"{name}-2")
    masters[1].call("REPLICAOF", "127.0.0.1", masters[0].port)
    masters[1].call("CLIENT", "KILL", "TYPE", "normal")
    mine.do(acquire(f"{name}-3", timeout=PATIENCE))
    assert holds(masters[0], f"{name}-3")


def test_a_connection_to_the_old_master_is_not_used_any_more(
    agents: Callable[..., Agent],
    masters: list[Any],
    sentinel: Callable[..., FakeSentinel],
    name: str,
) -> None:
    """The old master was paused, comes back, and still considers itself master. One thread has
    found the new master; the connection of another thread leads to the old one."""
    reporting = sentinel(masters[0].port, epoch=1)
    mine = agents("blocking", url_of(reporting), lease=6)
    mine.do(acquire(f"{name}-1"))
    assert holds(masters[0], f"{name}-1")
    reporting.master_port, reporting.epoch = masters[1].port, 2
    mine.later(acquire(f"{name}-2")).result(PATIENCE)  # another thread has another connection
    assert holds(masters[1], f"{name}-2")
    mine.do(acquire(f"{name}-3"))
    assert holds(masters[1], f"{name}-3") and not holds(masters[0], f"{name}-3")


def test_clients_leave_a_demoted_master_that_keeps_their_connections_open(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """The old master answers READONLY; waiters subscribe on the new one and are woken there."""
    reporting = sentinel(masters[0].port)
    mine, other = agent(url_of(reporting), lease=6), agent(url_of(reporting), lease=6)
    hold = mine.do(acquire(name))
    waits = other.later(acquire(name, timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting == 1)
    masters[1].call("REPLICAOF", "127.0.0.1", masters[0].port)
    until(lambda: holds(masters[1], name))
    masters[1].call("REPLICAOF", "NO", "ONE")
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    reporting.master_port, reporting.epoch = masters[1].port, 2
    with pytest.raises(BackendError, match="READONLY"):
        mine.do(lambda client: hold.renew())
    mine.do(lambda client: hold.renew())
    until(lambda: masters[1].call("PUBSUB", "CHANNELS", "lf:wake:*"))
    with took() as it:
        mine.do(lambda client: hold.release())
        assert waits.result(PATIENCE).fence > hold.fence
    assert it.seconds < 1.4  # woken by the release, not by the next refresh


def test_waiters_do_not_flood_the_sentinels_while_there_is_no_master(
    agent: Make, sentinel: Callable[..., FakeSentinel], masters: list[Any], name: str
) -> None:
    """Each of fifty waiters asks the sentinels once when it has lost its connection; after that
    they ask ten times a second in total."""
    reporting = sentinel(masters[0].port)
    mine, holder = agent(url_of(reporting), lease=20), agent(masters[0].url, lease=20)
    hold = holder.do(acquire(name))
    all_waits = [mine.later(acquire(name, timeout=60)) for _ in range(50)]
    until(lambda: mine.client.statistics().waiting == 50)
    reporting.master_port = 1  # no server listens there
    before = reporting.accepted
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    masters[0].call("CLIENT", "KILL", "TYPE", "normal")
    masters[0].call("CLIENT", "KILL", "TYPE", "pubsub")
    time.sleep(2)
    assert 2 <= reporting.accepted - before <= 50 + 2 * 10 + 10
    masters[0].call("REPLICAOF", "NO", "ONE")
    reporting.master_port = masters[0].port
    assert not any(waits.done() for waits in all_waits)
    holder.do(lambda client: hold.release() if hold.is_held else None)
    until(lambda: any(waits.done() for waits in all_waits))
    [waits.result() for waits in all_waits if waits.done()]


def test_a_waiter_goes_on_waiting_until_its_timeout(
    agent: Make, sentinel: Callable[..., FakeSentinel], masters: list[Any], name: str
) -> None:
    reporting = sentinel(masters[0].port)
    mine, holder = agent(url_of(reporting), lease=0.9), agent(masters[0].url, lease=30)
    holder.do(acquire(name))
    waits = mine.later(acquire(name, timeout=2.5))
    until(lambda: mine.client.statistics().waiting == 1)
    began = time.monotonic()
    reporting.master_port = 1
    masters[0].call("CLIENT", "KILL", "TYPE", "normal")
    masters[0].call("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises((BackendError, AcquireTimeout)):
        waits.result(PATIENCE)
    assert time.monotonic() - began > 2.0
    assert (
        mine.client._core.store.patience > 60
    )  # without a timeout, as long as a failover may take


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://host",
        "redis+sentinel://host/",
        "redis+sentinel://host/a/b",
        "redis+sentinel://host/a/0/0",
        "redis+sentinel:///a",
        "redis+sentinel://host:p0rt/a",
        "redis+sentinel://one,,two/a",
        "redis+sentinel://user:pass#word@host/a",
        "redis+sentinel://host/a?socket_timeout=soon",
        "redis+sentinel://host/a?bogus=1",
        "redis+sentinel://host/a?sentinel_bogus=1",
        "redis+sentinel://host/a?replicas=some",
        "rediss+sentinel://host/a?ssl_bogus=1",
    ],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_endpoint(url)
    assert "pass" not in str(raised.value).replace("password", "")


def test_options_of_a_url_go_to_the_server_or_to_the_sentinels() -> None:
    address: Any = open_endpoint(
        "rediss+sentinel://me:a%2Fb@one,[::1]:7,three:8/my%20master/2?ssl_ca_certs=x"
        "&sentinel_username=s&sentinel_password=t&client_name=n&replicas=2"
    )._address
    assert "my master/2" in address.where and "a/b" not in address.where
    kind, options = address._kind, address.options
    assert kind is redis.SSLConnection
    assert (options["username"], options["password"], options["db"]) == ("me", "a/b", 2)
    assert [sentinel.endpoint for sentinel in address._sentinels] == [
        "one:26379",
        "::1:7",
        "three:8",
    ]
    one = address._sentinels[0].options
    assert (one["username"], one["password"], one["ssl_ca_certs"]) == ("s", "t", "x")
    assert "client_name" not in one and "replicas" not in options
    plain: Any = open_endpoint("rediss+sentinel://one/a?sentinel_tls=no&ssl_ca_certs=x")._address
    assert "ssl_ca_certs" not in plain._sentinels[0].options


def test_servers_and_sentinels_use_tls_with_their_own_certificates(
    agent: Make, new_redis: Callable[..., Any], name: str
) -> None:
    from lab.servers.redis_sentinel import Sentinel

    server = new_redis(tls=True)
    conf = [f"sentinel monitor mymaster 127.0.0.1 {server.port} 1", "tls-replication yes"]
    with Sentinel(conf, password=None, tls=True) as sentinel:
        base = f"rediss+sentinel://127.0.0.1:{sentinel.port}/mymaster"
        own = f"sentinel_ssl_ca_certs={sentinel.folder}/ca.pem"
        mine = agent(f"{base}?ssl_ca_certs={server.ca_file}&{own}")
        mine.do(acquire(name))
        other = agent(f"{base}?ssl_ca_certs={server.ca_file}")
        with pytest.raises(BackendError, match="certificate") as raised:
            other.do(acquire(name))
        assert not raised.value.transient


def test_a_service_that_no_sentinel_knows_is_named(
    agent: Make, redis_sentinels: Any, name: str
) -> None:
    url = redis_sentinels.url.replace("mymaster", "unknown-service")
    with pytest.raises(BackendError, match="unknown-service"):
        agent(url, lease=0.6).do(acquire(name))


def test_concurrent_threads_have_a_connection_each(
    redis_sentinels: Any, agents: Callable[..., Agent], name: str
) -> None:
    mine = agents("blocking", redis_sentinels.url, lease=3)
    mine.do(acquire(name))
    server = redis_sentinels.servers[redis_sentinels.master]
    before = len(connections(server))
    ready, done = threading.Barrier(5), threading.Barrier(5)

    def one(number: int) -> None:
        ready.wait(PATIENCE)
        with mine.client.lock(f"{name}-{number}"):
            done.wait(PATIENCE)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE)
    until(lambda: done.n_waiting == 4)
    assert len(connections(server)) >= before + 4
    done.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    assert isinstance(mine.client, lockfast.Client)

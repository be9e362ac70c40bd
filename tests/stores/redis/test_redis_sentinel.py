"""Where the master is: real sentinels and real failovers, and sentinels that tell of the past.

A `FakeSentinel` says what a test wants; the servers that it tells of are real.
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
from lockfast.stores import open_store

Make = Callable[..., Agent]
SECRET, SENTINEL_SECRET = "s3rver", "s3ntinel"


def acquire(name: str, **terms: Any) -> Callable[[Any], Any]:
    return lambda client: client.lock(name, **terms).acquire()


@pytest.fixture(scope="module")
def two(redis_server: Any) -> Iterator[list[Any]]:
    """Two servers that know nothing of each other."""
    from lab.servers.redis_server import RedisServer

    servers = [RedisServer().start() for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def masters(two: list[Any]) -> Iterator[list[Any]]:
    yield two
    for server in two:
        server.call("REPLICAOF", "NO", "ONE")


@pytest.fixture
def sentinel() -> Iterator[Callable[..., FakeSentinel]]:
    made: list[FakeSentinel] = []

    def sentinel(*said: Any, **more: Any) -> FakeSentinel:
        made.append(FakeSentinel(*said, **more))
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


def test_the_master_is_found_by_url_and_by_existing_clients(
    agent: Make, redis_sentinels: Any, name: str
) -> None:
    waiters = [("127.0.0.1", sentinel.port) for sentinel in redis_sentinels.sentinels]
    for where in (
        redis_sentinels.url,
        redis.Sentinel(waiters).master_for("mymaster"),
        redis.asyncio.Sentinel(waiters).master_for("mymaster", db=0),
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
    said = f"redis+sentinel://:{quote(SECRET, safe='')}@{hosts}/mymaster/3"
    right = f"{said}?sentinel_password={quote(SENTINEL_SECRET, safe='')}"
    mine = agent(right)
    mine.do(acquire(name))
    theirs = redis.Sentinel(
        [("127.0.0.1", port) for port in ports], sentinel_kwargs={"password": SENTINEL_SECRET}
    ).master_for("mymaster", password=SECRET, db=3)
    with pytest.raises(AcquireTimeout):  # it is the same place
        agent(theirs).do(acquire(name, timeout=0))
    for wrong in (said, right.replace("s3rver", "wrong")):
        other = agent(wrong, lease=0.3)
        with pytest.raises(BackendError) as raised:
            other.do(acquire(name, timeout=0))
        assert not raised.value.transient and "password" in str(raised.value)
        shown = f"{raised.value} {other.client!r} {other.client.store.url}"
        assert "s3ntinel" not in shown and "s3rver" not in shown and "wrong@" not in shown


def test_a_failover_under_a_holder_and_a_waiter(
    agent: Make, new_sentinels: Callable[..., Any], name: str
) -> None:
    """The holder is renewed on the new master, the waiter goes on waiting and is rung there."""
    servers = new_sentinels(down_after=0.5)
    mine, other = agent(servers.url, lease=30, replicas=1), agent(servers.url, lease=30)
    hold = mine.do(acquire(name))
    turn = other.later(acquire(name, timeout=60))
    until(lambda: other.client.statistics().waiting == 1)
    old = servers.master
    servers.servers[old].kill()
    new = servers.wait_for_another_than(old)
    until(lambda: is_renewed(mine, hold))
    assert hold.is_held and holds(servers.servers[new], name) and not turn.done()
    server = servers.servers[new]
    until(lambda: server.call("PUBSUB", "CHANNELS", "lf:wake:*"))  # it is heard there
    with took() as it:
        mine.do(lambda client: hold.release())
        after = turn.result(PATIENCE)
    assert after.fence > hold.fence and it.seconds < 3


def test_who_holds_is_renewed_although_no_sentinel_lives(
    agent: Make, new_sentinels: Callable[..., Any], name: str
) -> None:
    servers = new_sentinels()
    mine = agent(servers.url, lease=1.5)
    hold = mine.do(acquire(name))
    for sentinel in servers.sentinels:
        sentinel.kill()
    server = servers.servers[0]
    server.call("CLIENT", "KILL", "TYPE", "normal")  # so that it must be found again
    renewals = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewals + 3)
    assert hold.is_held
    mine.do(lambda client: hold.release())
    mine.do(acquire(f"{name}-2"))  # the last known master serves newcomers, too


def test_sentinels_that_are_told_of_are_remembered(
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


# ---- what sentinels say -------------------------------------------------------------------------


def test_who_is_no_master_is_not_believed_to_be_one(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """A sentinel that was cut off tells of the past: the next one is asked."""
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    late, knowing = sentinel(masters[0].port), sentinel(masters[1].port)
    mine = agent(url_of(late, knowing), lease=6)
    mine.do(acquire(name))
    assert holds(masters[1], name)
    only_late = agent(url_of(late), lease=0.6)
    with pytest.raises(BackendError, match="not the master"):
        only_late.do(acquire(name))


def test_of_two_masters_the_one_of_the_higher_epoch_is_used(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """Also if the only sentinel that answers still knows the old one, which calls itself master
    after a partition. Only when the last known one is a master no more, the older word counts."""
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
    """It was paused, comes back, and still calls itself master. One thread has found the new one,
    the connection of the other leads to the old one."""
    tells = sentinel(masters[0].port, epoch=1)
    mine = agents("blocking", url_of(tells), lease=6)
    mine.do(acquire(f"{name}-1"))
    assert holds(masters[0], f"{name}-1")
    tells.waiter, tells.epoch = masters[1].port, 2
    mine.later(acquire(f"{name}-2")).result(PATIENCE)  # on another thread: another connection
    assert holds(masters[1], f"{name}-2")
    mine.do(acquire(f"{name}-3"))
    assert holds(masters[1], f"{name}-3") and not holds(masters[0], f"{name}-3")


def test_a_master_that_was_demoted_is_left_though_it_closes_nothing(
    agent: Make, masters: list[Any], sentinel: Callable[..., FakeSentinel], name: str
) -> None:
    """It answers READONLY; ears are opened anew at the new one, and bells are heard there."""
    tells = sentinel(masters[0].port)
    mine, other = agent(url_of(tells), lease=6), agent(url_of(tells), lease=6)
    hold = mine.do(acquire(name))
    turn = other.later(acquire(name, timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting == 1)
    masters[1].call("REPLICAOF", "127.0.0.1", masters[0].port)
    until(lambda: holds(masters[1], name))
    masters[1].call("REPLICAOF", "NO", "ONE")
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    tells.waiter, tells.epoch = masters[1].port, 2
    with pytest.raises(BackendError, match="READONLY"):
        mine.do(lambda client: hold.renew())
    mine.do(lambda client: hold.renew())
    until(lambda: masters[1].call("PUBSUB", "CHANNELS", "lf:wake:*"))
    with took() as it:
        mine.do(lambda client: hold.release())
        assert turn.result(PATIENCE).fence > hold.fence
    assert it.seconds < 1.4  # by a bell, not by the next refresh


def test_no_storm_while_there_is_no_master(
    agent: Make, sentinel: Callable[..., FakeSentinel], masters: list[Any], name: str
) -> None:
    """Fifty who wait ask the sentinels once each when they have lost their connection, and then ten
    times a second together."""
    tells = sentinel(masters[0].port)
    mine, holder = agent(url_of(tells), lease=20), agent(masters[0].url, lease=20)
    hold = holder.do(acquire(name))
    turns = [mine.later(acquire(name, timeout=60)) for _ in range(50)]
    until(lambda: mine.client.statistics().waiting == 50)
    tells.waiter = 1  # nobody is there
    before = tells.accepted
    masters[0].call("REPLICAOF", "127.0.0.1", masters[1].port)
    masters[0].call("CLIENT", "KILL", "TYPE", "normal")
    masters[0].call("CLIENT", "KILL", "TYPE", "pubsub")
    time.sleep(2)
    assert 2 <= tells.accepted - before <= 50 + 2 * 10 + 10
    masters[0].call("REPLICAOF", "NO", "ONE")
    tells.waiter = masters[0].port
    assert not any(turn.done() for turn in turns)
    holder.do(lambda client: hold.release() if hold.is_held else None)
    until(lambda: any(turn.done() for turn in turns))
    [turn.result() for turn in turns if turn.done()]


def test_who_waits_goes_on_waiting_to_the_end_of_its_time(
    agent: Make, sentinel: Callable[..., FakeSentinel], masters: list[Any], name: str
) -> None:
    tells = sentinel(masters[0].port)
    mine, holder = agent(url_of(tells), lease=0.9), agent(masters[0].url, lease=30)
    holder.do(acquire(name))
    turn = mine.later(acquire(name, timeout=2.5))
    until(lambda: mine.client.statistics().waiting == 1)
    began = time.monotonic()
    tells.waiter = 1
    masters[0].call("CLIENT", "KILL", "TYPE", "normal")
    masters[0].call("CLIENT", "KILL", "TYPE", "pubsub")
    with pytest.raises((BackendError, AcquireTimeout)):
        turn.result(PATIENCE)
    assert time.monotonic() - began > 2.0
    assert mine.client.core.backend.patience > 60  # and without one as long as a failover may take


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
        "redis+sentinel://host/a?unheard_of=1",
        "redis+sentinel://host/a?sentinel_unheard_of=1",
        "redis+sentinel://host/a?replicas=some",
        "rediss+sentinel://host/a?ssl_unheard_of=1",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        open_store(url)
    assert "pass" not in str(raised.value).replace("password", "")


def test_what_a_url_says_is_told_to_whom_it_is_for() -> None:
    address: Any = open_store(
        "rediss+sentinel://me:a%2Fb@one,[::1]:7,three:8/my%20master/2?ssl_ca_certs=x"
        "&sentinel_username=s&sentinel_password=t&client_name=n&replicas=2"
    )._address
    assert "my master/2" in address.where and "a/b" not in address.where
    kind, said = address._kind, address.said
    assert kind is redis.SSLConnection
    assert (said["username"], said["password"], said["db"]) == ("me", "a/b", 2)
    assert [sentinel.waiter for sentinel in address._sentinels] == ["one:26379", "::1:7", "three:8"]
    one = address._sentinels[0].said
    assert (one["username"], one["password"], one["ssl_ca_certs"]) == ("s", "t", "x")
    assert "client_name" not in one and "replicas" not in said
    plain: Any = open_store("rediss+sentinel://one/a?sentinel_tls=no&ssl_ca_certs=x")._address
    assert "ssl_ca_certs" not in plain._sentinels[0].said


def test_servers_and_sentinels_speak_tls_with_certificates_of_their_own(
    agent: Make, new_redis: Callable[..., Any], name: str
) -> None:
    from lab.servers.redis_sentinel import Sentinel

    server = new_redis(tls=True)
    conf = [f"sentinel monitor mymaster 127.0.0.1 {server.port} 1", "tls-replication yes"]
    with Sentinel(conf, password=None, tls=True) as sentinel:
        said = f"rediss+sentinel://127.0.0.1:{sentinel.port}/mymaster"
        own = f"sentinel_ssl_ca_certs={sentinel.folder}/ca.pem"
        mine = agent(f"{said}?ssl_ca_certs={server.ca_file}&{own}")
        mine.do(acquire(name))
        other = agent(f"{said}?ssl_ca_certs={server.ca_file}")
        with pytest.raises(BackendError, match="certificate") as raised:
            other.do(acquire(name))
        assert not raised.value.transient


def test_a_service_that_no_sentinel_knows_is_said(
    agent: Make, redis_sentinels: Any, name: str
) -> None:
    url = redis_sentinels.url.replace("mymaster", "unheard")
    with pytest.raises(BackendError, match="unheard"):
        agent(url, lease=0.6).do(acquire(name))


def test_threads_that_ask_at_once_have_a_connection_each(
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

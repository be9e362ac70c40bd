"""Errors and states of a Redis server, and their effect on locks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from fake_redis import PATIENCE, Agent, connections, took, until

from lockfast import AcquireTimeout, BackendError, HoldLost
from lockfast.stores.redis.commands import key_of

New = Callable[..., Any]
Make = Callable[..., Agent]


@pytest.fixture(scope="module")
def configurable() -> Iterator[Any]:
    """A server whose settings the tests change."""
    from lab.servers.redis_server import RedisServer

    server = RedisServer().start("--enable-protected-configs", "yes")
    yield server
    server.stop()


@pytest.fixture
def server(configurable: Any) -> Iterator[Any]:
    """The configurable server; its settings and data are reset after the test."""
    yield configurable
    for setting, value in (
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
        ("maxclients", "10000"),
        ("stop-writes-on-bgsave-error", "no"),
        ("busy-reply-threshold", "5000"),
        ("timeout", "0"),
    ):
        configurable.call("CONFIG", "SET", setting, value)
    configurable.call("REPLICAOF", "NO", "ONE")
    configurable.call("FLUSHALL")


def try_once(client: Any, name: str, **terms: Any) -> Any:
    return client.lock(name, **terms).try_acquire()


# ---- flushed scripts ----------------------------------------------------------------------------


def test_flushed_scripts_are_sent_again(agent: Make, server: Any, name: str) -> None:
    mine = agent(server.url, lease=3)
    for _ in range(2):
        server.call("SCRIPT", "FLUSH")
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=0))
        server.call("SCRIPT", "FLUSH")
        mine.do(lambda client: hold.renew())  # noqa: B023
        server.call("SCRIPT", "FLUSH")
        snapshot = mine.do(lambda client: client.inspect(name))
        assert [holder.fence for holder in snapshot.holders] == [hold.fence]
        server.call("SCRIPT", "FLUSH")
        assert mine.do(lambda client: client.names()) == [name]
        server.call("SCRIPT", "FLUSH")
        mine.do(lambda client: hold.release())  # noqa: B023
    assert mine.do(lambda client: client.names()) == []


def test_the_keeper_sends_flushed_scripts_again(agent: Make, server: Any, name: str) -> None:
    mine, other = agent(server.url, lease=0.6), agent(server.url, lease=0.6)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    for _ in range(5):
        server.call("SCRIPT", "FLUSH")
        time.sleep(0.1)
    assert hold.is_held and not waits.done()
    assert mine.client.statistics().renewals >= 1
    assert mine.client.statistics().renew_errors == other.client.statistics().renew_errors == 0
    mine.do(lambda client: hold.release())
    server.call("SCRIPT", "FLUSH")
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    other.do(lambda client: later.release())


# ---- transient errors ---------------------------------------------------------------------------


def provoke_error(server: Any, which: str) -> Callable[[], None]:
    """Make the server answer with this error; call the result to end it."""

    def put(*pairs: str) -> None:
        for setting, value in zip(pairs[::2], pairs[1::2], strict=True):
            server.call("CONFIG", "SET", setting, value)

    if which == "READONLY":
        server.call("REPLICAOF", "127.0.0.1", "1")
        return lambda: server.call("REPLICAOF", "NO", "ONE")
    if which == "OOM":
        put("maxmemory", "1")
        return lambda: put("maxmemory", "0")
    if which == "MISCONF":
        folder = str(server.folder)
        put("dir", "/proc", "save", "3600 1")
        server.call("BGSAVE")
        until(lambda: server.call("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        put("stop-writes-on-bgsave-error", "yes")
        return lambda: put("stop-writes-on-bgsave-error", "no", "save", "", "dir", folder)
    assert which == "MAXCLIENTS"
    # The only connection that is left belongs to the test.
    held = server.client()
    held.ping()
    held.config_set("maxclients", 1)
    return lambda: (held.config_set("maxclients", 10000), held.close())[0]


MESSAGES = {
    "READONLY": "READONLY.*connect to the master",
    "OOM": "OOM.*maxmemory",
    "MISCONF": "MISCONF.*look at its log",
    "MAXCLIENTS": "max number of clients.*maxclients",
}


@pytest.mark.parametrize("which", list(MESSAGES))
def test_a_transient_error_is_raised_within_the_budget_and_leaves_nothing(
    agent: Make, server: Any, name: str, which: str
) -> None:
    mine = agent(server.url, lease=1.2)
    if which != "MAXCLIENTS":
        mine.do(lambda client: client.names())  # connect before the error
    end = provoke_error(server, which)
    try:
        with took() as time_of, pytest.raises(BackendError, match=MESSAGES[which]) as caught:
            mine.do(lambda client: try_once(client, name))
        assert caught.value.transient
        assert time_of.unstalled < 0.2 + 1.0, "longer than a budget"
    finally:
        end()
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=5))
    mine.do(lambda client: hold.release())
    assert mine.do(lambda client: client.names()) == []


@pytest.mark.parametrize("which", ["READONLY", "MISCONF"])
def test_an_error_shorter_than_a_lease_ends_neither_a_hold_nor_a_wait(
    agent: Make, server: Any, name: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    mine, other = agent(server.url, lease=0.9), agent(server.url, lease=0.9)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    end = provoke_error(server, which)
    try:
        until(lambda: mine.client.statistics().renew_errors)
    finally:
        end()
    renewed = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewed)
    assert hold.is_held and not waits.done()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence


def test_a_slow_script_of_another_client_is_a_transient_error(
    agent: Make, server: Any, name: str
) -> None:
    mine = agent(server.url, lease=1.2)
    mine.do(lambda client: client.names())
    server.call("CONFIG", "SET", "busy-reply-threshold", "1")
    endless = server.client(socket_timeout=PATIENCE)
    ended = threading.Event()

    def run() -> None:
        try:
            endless.eval("while true do end", 0)
        except redis.ResponseError:
            ended.set()  # killed

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.05)
    try:
        with pytest.raises(BackendError, match=r"BUSY.*SCRIPT KILL") as caught:
            mine.do(lambda client: client.lock(name).try_acquire(timeout=0.5))
        assert caught.value.transient
        waits = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        time.sleep(0.1)
    finally:
        server.call("SCRIPT", "KILL")
    assert ended.wait(PATIENCE)
    thread.join(PATIENCE)
    endless.close()
    try:
        hold = waits.result(PATIENCE)
    except BackendError:  # the first claim has only one budget, and then raises
        hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())


def test_loading_is_a_transient_error_that_ends_with_the_loading(
    agent: Make, new_redis: New, name: str
) -> None:
    server = new_redis()
    server.call("DEBUG", "POPULATE", "2000", "k", "10")
    mine = agent(server.url, lease=6)
    # Each key takes 0.4 ms to load, and the server answers clients meanwhile.
    server.call("SAVE")
    dump = (server.folder / "dump.rdb").read_bytes()
    server.kill()
    (server.folder / "dump.rdb").write_bytes(dump)
    starter = threading.Thread(
        target=server.start,
        args=("--key-load-delay", "400", "--loading-process-events-interval-bytes", "1024"),
    )
    starter.start()
    until(lambda: b"Loading" in (server.folder / "log").read_bytes() or not starter.is_alive())
    seen = ""
    while starter.is_alive():
        try:
            early = mine.do(lambda client: client.lock(name).try_acquire(timeout=0.3))
            mine.do(lambda client: early.release())  # noqa: B023
            break
        except BackendError as error:
            assert error.transient
            seen += str(error)
    assert "LOADING" in seen and "loading its data" in seen
    starter.join(PATIENCE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())


def test_a_server_whose_memory_is_full_still_extends_what_it_has(
    agent: Make, server: Any, name: str
) -> None:
    """Renewals, refreshes, transfers and releases need no memory to speak of: no lock is lost, and
    no waiter loses its position, because others have filled the server."""
    mine, other = agent(server.url, lease=1.5), agent(server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    detached = mine.do(lambda client: client.lock(f"{name}-2", lease=9).acquire())
    text = mine.do(lambda client: detached.detach())
    server.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BackendError, match="OOM"):
        mine.do(lambda client: client.lock(f"{name}-3").acquire(timeout=2))
    before = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals >= before + 3)
    mine.do(lambda client: hold.renew())
    attached = mine.do(lambda client: client.attach(f"{name}-2", text))
    time.sleep(1.6)  # longer than the interval of refreshes
    assert hold.is_held and mine.client.statistics().lost == 0
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence
    mine.do(lambda client: attached.release())


# ---- eviction, flushed and deleted data ---------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_evicting_server_causes_one_warning(
    agent: Make, server: Any, name: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    server.call("CONFIG", "SET", "maxmemory", "1gb")
    mine = agent(server.url)
    for _ in range(2):
        hold = mine.do(lambda client: client.lock(name).acquire())
        mine.do(lambda client: hold.release())  # noqa: B023
    until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name == "lockfast"
    assert policy in record.getMessage() and str(server.port) in record.getMessage()


def test_an_eviction_policy_without_a_memory_limit_causes_no_warning(
    agent: Make, server: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Without maxmemory nothing is evicted.
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    mine = agent(server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())
    assert not caplog.records


@pytest.mark.parametrize("how", ["FLUSHALL", "HDEL"])
def test_a_forgotten_hold_is_reported_lost_and_not_created_again(
    agent: Make, server: Any, name: str, how: str
) -> None:
    mine = agent(server.url, lease=0.9)
    lost = threading.Event()
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda hold: lost.set()).acquire())
    key = key_of(f"default:{name}")
    with took() as time_of:
        if how == "HDEL":
            (field,) = (field for field in server.call("HKEYS", key) if field != b".f")
            assert server.call("HDEL", key, field) == 1
        else:
            server.call(how)
        assert lost.wait(PATIENCE)
    assert time_of.unstalled < 0.3 + 0.5, "longer than a third of the lease and some slack"
    assert hold.lost and not hold.is_held
    time.sleep(0.35)  # another renewal would be due
    assert server.call("KEYS", "lf:*") in ([], [key.encode()] if how == "HDEL" else [])
    assert mine.do(lambda client: client.names()) == []
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())


def test_a_waiter_is_served_after_the_server_lost_all_data(
    agent: Make, server: Any, name: str
) -> None:
    mine, other = agent(server.url), agent(server.url, lease=2.4)
    hold = mine.do(lambda client: client.lock(name, lease=20).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    with took() as time_of:
        server.call("FLUSHALL")
        fresh = waits.result(PATIENCE)
    assert time_of.unstalled < 2.0 + 0.5 and fresh.fence > hold.fence
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert other.do(lambda client: client.inspect(name)).holders[0].fence == fresh.fence


def test_a_restart_without_data_ends_holds_and_the_next_fence_is_greater(
    agent: Make, new_redis: New, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    server = new_redis()
    mine, other = agent(server.url, lease=0.9), agent(server.url, lease=0.9)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    server.restart(keep_data=False)
    until(lambda: hold.lost)
    fresh = waits.result(PATIENCE)
    assert fresh.fence > hold.fence
    other.do(lambda client: fresh.release())
    again = mine.do(lambda client: client.lock(f"{name}-2").acquire(timeout=5))
    assert again.fence > hold.fence


# ---- authentication and TLS ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    from lab.servers.redis_server import RedisServer

    with RedisServer(password="tidings of war") as server:
        yield server


@pytest.mark.parametrize(
    "login, message",
    [
        (":wrong-Aex9@", "password is wrong"),
        ("nobody:wrong-Aex9@", "password is wrong"),
        ("", "a password is required"),
    ],
)
def test_a_wrong_or_missing_password_is_an_immediate_permanent_error(
    agent: Make, guarded: Any, name: str, login: str, message: str
) -> None:
    mine = agent(f"redis://{login}127.0.0.1:{guarded.port}")
    with took() as time_of, pytest.raises(BackendError, match=message) as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=10))
    assert not caught.value.transient and time_of.unstalled < 3, "it must not be retried"
    assert "Aex9" not in repr(caught.value)


def test_a_needless_password_is_accepted_or_named(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(f"redis://:needless-Aex9@127.0.0.1:{redis_server.port}")
    try:
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=3))
    except BackendError as error:
        assert not error.transient and "Aex9" not in str(error) and "password" in str(error)
    else:
        mine.do(lambda client: hold.release())  # Redis 7 accepts any password for the default user


@pytest.fixture(scope="module")
def secured() -> Iterator[Any]:
    from lab.servers.redis_server import RedisServer

    with RedisServer(tls=True) as server:
        yield server


def test_tls_with_the_right_ca_works(agent: Make, secured: Any, name: str) -> None:
    mine = agent(f"{secured.url}?ssl_ca_certs={secured.ca_file}")
    other = agent(f"{secured.url}?ssl_ca_certs={secured.ca_file}")
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    time.sleep(0.05)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        waits.result(PATIENCE)
    assert time_of.unstalled < 1.0, "not woken by the release"


def test_a_certificate_of_an_unknown_ca_is_a_permanent_error(
    agent: Make, secured: Any, name: str
) -> None:
    mine = agent(secured.url)
    with took() as time_of, pytest.raises(BackendError, match=r"TLS failed.*certificate") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=10))
    assert not caught.value.transient and time_of.unstalled < 3


def test_a_plain_connection_to_a_tls_server_is_explained(
    agent: Make, secured: Any, name: str
) -> None:
    mine = agent(f"redis://127.0.0.1:{secured.port}", lease=1.2)
    with pytest.raises(BackendError, match="rediss://"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))


def test_a_tls_connection_to_a_plain_server_is_explained(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(f"rediss://127.0.0.1:{redis_server.port}", lease=1.2)
    with took() as time_of, pytest.raises(BackendError, match="TLS"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert time_of.unstalled < 0.2 + 1.0


# ---- connections that the server closes ---------------------------------------------------------


def test_idle_connections_that_the_server_closes_are_reopened_silently(
    agent: Make, server: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.call("CONFIG", "SET", "timeout", "1")
    mine = agent(server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    until(lambda: not connections(server))
    assert mine.do(lambda client: client.inspect(name)).holders[0].fence == hold.fence
    mine.do(lambda client: hold.release())
    assert mine.do(lambda client: client.names()) == []
    assert not caplog.records


@pytest.mark.parametrize("what", ["pubsub", "both"])
def test_a_waiter_whose_connections_are_killed_is_still_served(
    agent: Make, server: Any, name: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    mine, other = agent(server.url), agent(server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    until(lambda: server.call("PUBSUB", "CHANNELS"))
    killed = 0
    for kind in ("normal", "pubsub") if what == "both" else (what,):
        killed += server.call("CLIENT", "KILL", "TYPE", kind)
    assert killed
    time.sleep(0.3)  # the waiter listens again first of all
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.unstalled < 1.0, "not woken by the release"
    assert later.fence > hold.fence
    # The next waiter has a listener again.
    again = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: mine.client.statistics().waiting)
    time.sleep(0.1)
    with took() as time_of:
        other.do(lambda client: later.release())
        again.result(PATIENCE)
    assert time_of.unstalled < 1.0, "not woken by the release"


def test_a_wait_that_runs_out_during_an_error_raises(agent: Make, server: Any, name: str) -> None:
    mine, other = agent(server.url), agent(server.url, lease=1.2)
    mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=0.5))
    until(lambda: other.client.statistics().waiting)
    end = provoke_error(server, "READONLY")
    try:
        with pytest.raises((AcquireTimeout, BackendError)):
            waits.result(PATIENCE)
    finally:
        end()

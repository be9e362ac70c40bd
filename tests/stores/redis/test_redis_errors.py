"""What a Redis server may be in the mood for, and what becomes of locks meanwhile."""

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
def moody() -> Iterator[Any]:
    """A server whose settings tests change, and set back."""
    from lab.servers.redis_server import RedisServer

    server = RedisServer().start("--enable-protected-configs", "yes")
    yield server
    server.stop()


@pytest.fixture
def mood(moody: Any) -> Iterator[Any]:
    yield moody
    for setting, value in (
        ("maxmemory", "0"),
        ("maxmemory-policy", "noeviction"),
        ("maxclients", "10000"),
        ("stop-writes-on-bgsave-error", "no"),
        ("busy-reply-threshold", "5000"),
        ("timeout", "0"),
    ):
        moody.call("CONFIG", "SET", setting, value)
    moody.call("REPLICAOF", "NO", "ONE")
    moody.call("FLUSHALL")


def try_once(client: Any, name: str, **terms: Any) -> Any:
    return client.lock(name, **terms).try_acquire()


# ---- scripts that the server forgot -------------------------------------------------------------


def test_scripts_that_were_flushed_are_told_again(agent: Make, mood: Any, name: str) -> None:
    mine = agent(mood.url, lease=3)
    for _ in range(2):
        mood.call("SCRIPT", "FLUSH")
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=0))
        mood.call("SCRIPT", "FLUSH")
        mine.do(lambda client: hold.renew())  # noqa: B023
        mood.call("SCRIPT", "FLUSH")
        snapshot = mine.do(lambda client: client.inspect(name))
        assert [holder.fence for holder in snapshot.holders] == [hold.fence]
        mood.call("SCRIPT", "FLUSH")
        assert mine.do(lambda client: client.names()) == [name]
        mood.call("SCRIPT", "FLUSH")
        mine.do(lambda client: hold.release())  # noqa: B023
    assert mine.do(lambda client: client.names()) == []


def test_the_keepers_scripts_are_told_again_too(agent: Make, mood: Any, name: str) -> None:
    mine, other = agent(mood.url, lease=0.6), agent(mood.url, lease=0.6)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    for _ in range(5):
        mood.call("SCRIPT", "FLUSH")
        time.sleep(0.1)
    assert hold.is_held and not waits.done()
    assert mine.client.statistics().renewals >= 1
    assert mine.client.statistics().renew_errors == other.client.statistics().renew_errors == 0
    mine.do(lambda client: hold.release())
    mood.call("SCRIPT", "FLUSH")
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    other.do(lambda client: later.release())


# ---- what passes by itself ----------------------------------------------------------------------


def condition(server: Any, which: str) -> Callable[[], None]:
    """Bring it about; the value ends it."""

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
        wake_address = str(server.folder)
        put("dir", "/proc", "save", "3600 1")
        server.call("BGSAVE")
        until(lambda: server.call("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        put("stop-writes-on-bgsave-error", "yes")
        return lambda: put("stop-writes-on-bgsave-error", "no", "save", "", "dir", wake_address)
    assert which == "MAXCLIENTS"
    # The one connection that is left is the test's own.
    held = server.client()
    held.ping()
    held.config_set("maxclients", 1)
    return lambda: (held.config_set("maxclients", 10000), held.close())[0]


SAID = {
    "READONLY": "READONLY.*connect to the master",
    "OOM": "OOM.*maxmemory",
    "MISCONF": "MISCONF.*look at its log",
    "MAXCLIENTS": "max number of clients.*maxclients",
}


@pytest.mark.parametrize("which", list(SAID))
def test_a_condition_is_told_and_leaves_nothing(
    agent: Make, mood: Any, name: str, which: str
) -> None:
    mine = agent(mood.url, lease=1.2)
    if which != "MAXCLIENTS":
        mine.do(lambda client: client.names())  # it is connected already
    end = condition(mood, which)
    try:
        with took() as time_of, pytest.raises(BackendError, match=SAID[which]) as caught:
            mine.do(lambda client: try_once(client, name))
        assert caught.value.transient
        assert time_of.seconds < 0.2 + 1.0, "more than a budget"
    finally:
        end()
    hold = mine.do(lambda client: client.lock(name).acquire(timeout=5))
    mine.do(lambda client: hold.release())
    assert mine.do(lambda client: client.names()) == []


@pytest.mark.parametrize("which", ["READONLY", "OOM"])
def test_a_condition_shorter_than_a_lease_does_not_end_a_hold_nor_a_wait(
    agent: Make, mood: Any, name: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    mine, other = agent(mood.url, lease=0.9), agent(mood.url, lease=0.9)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    end = condition(mood, which)
    try:
        until(lambda: mine.client.statistics().renew_errors)
    finally:
        end()
    renewed = mine.client.statistics().renewals
    until(lambda: mine.client.statistics().renewals > renewed)
    assert hold.is_held and not waits.done()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence


def test_a_slow_script_of_somebody_else_is_told_and_passes(
    agent: Make, mood: Any, name: str
) -> None:
    mine = agent(mood.url, lease=1.2)
    mine.do(lambda client: client.names())
    mood.call("CONFIG", "SET", "busy-reply-threshold", "1")
    endless = mood.client(socket_timeout=PATIENCE)
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
            mine.do(lambda client: try_once(client, name))
        assert caught.value.transient
        waits = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
        time.sleep(0.1)
    finally:
        mood.call("SCRIPT", "KILL")
    assert ended.wait(PATIENCE)
    thread.join(PATIENCE)
    endless.close()
    try:
        hold = waits.result(PATIENCE)
    except BackendError:  # it is asked for one budget at first: then the caller knows
        hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())


def test_a_server_that_is_loading_is_waited_for(agent: Make, new_redis: New, name: str) -> None:
    server = new_redis()
    server.call("DEBUG", "POPULATE", "2000", "k", "10")
    mine = agent(server.url, lease=6)
    # Each key takes 2 ms to load, and clients are heard all the while.
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
            early = mine.do(lambda client: client.lock(name).try_acquire())
            mine.do(lambda client: early.release())  # noqa: B023
            break
        except BackendError as error:
            assert error.transient
            seen += str(error)
    assert "LOADING" in seen and "reading its data" in seen
    starter.join(PATIENCE)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())


# ---- eviction, flushing, deleting ---------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_warned_of_once(
    agent: Make, mood: Any, name: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    mood.call("CONFIG", "SET", "maxmemory-policy", policy)
    mood.call("CONFIG", "SET", "maxmemory", "1gb")
    mine = agent(mood.url)
    for _ in range(2):
        hold = mine.do(lambda client: client.lock(name).acquire())
        mine.do(lambda client: hold.release())  # noqa: B023
    until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.name == "lockfast"
    assert policy in record.getMessage() and str(mood.port) in record.getMessage()


def test_a_server_that_does_not_evict_is_not_warned_of(
    agent: Make, mood: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mood.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")  # without a limit: never
    mine = agent(mood.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    mine.do(lambda client: hold.release())
    assert not caplog.records


@pytest.mark.parametrize("how", ["FLUSHALL", "HDEL"])
def test_a_hold_that_the_server_forgot_is_told_lost_and_not_made_again(
    agent: Make, mood: Any, name: str, how: str
) -> None:
    mine = agent(mood.url, lease=0.9)
    told = threading.Event()
    hold = mine.do(lambda client: client.lock(name, on_lost=lambda hold: told.set()).acquire())
    key = key_of(f"default:{name}")
    with took() as time_of:
        if how == "HDEL":
            (field,) = (field for field in mood.call("HKEYS", key) if field != b".f")
            assert mood.call("HDEL", key, field) == 1
        else:
            mood.call(how)
        assert told.wait(PATIENCE)
    assert time_of.seconds < 0.3 + 0.5, "a third of the lease and some slack"
    assert hold.lost and not hold.is_held
    time.sleep(0.35)  # another renewal would be due
    assert mood.call("KEYS", "lf:*") in ([], [key.encode()] if how == "HDEL" else [])
    assert mine.do(lambda client: client.names()) == []
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())


def test_a_waiter_is_served_though_the_server_forgot_everything(
    agent: Make, mood: Any, name: str
) -> None:
    mine, other = agent(mood.url), agent(mood.url, lease=2.4)
    hold = mine.do(lambda client: client.lock(name, lease=20).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    with took() as time_of:
        mood.call("FLUSHALL")
        fresh = waits.result(PATIENCE)
    assert time_of.seconds < 2.0 + 0.5 and fresh.fence > hold.fence
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


# ---- who is not let in --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    from lab.servers.redis_server import RedisServer

    with RedisServer(password="tidings of war") as server:
        yield server


@pytest.mark.parametrize(
    "login, said",
    [
        (":wrong-Aex9@", "password is wrong"),
        ("nobody:wrong-Aex9@", "password is wrong"),
        ("", "asks for a password"),
    ],
)
def test_who_does_not_know_the_password_is_told_at_once(
    agent: Make, guarded: Any, name: str, login: str, said: str
) -> None:
    mine = agent(f"redis://{login}127.0.0.1:{guarded.port}")
    with took() as time_of, pytest.raises(BackendError, match=said) as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=10))
    assert not caught.value.transient and time_of.seconds < 3, "asking again cannot help"
    assert "Aex9" not in repr(caught.value)


def test_who_gives_a_password_that_is_not_asked_for_is_told(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(f"redis://:needless-Aex9@127.0.0.1:{redis_server.port}")
    try:
        hold = mine.do(lambda client: client.lock(name).acquire(timeout=3))
    except BackendError as error:
        assert not error.transient and "Aex9" not in str(error) and "password" in str(error)
    else:
        mine.do(lambda client: hold.release())  # Redis 7: HELLO … AUTH default anything is fine


@pytest.fixture(scope="module")
def secured() -> Iterator[Any]:
    from lab.servers.redis_server import RedisServer

    with RedisServer(tls=True) as server:
        yield server


def test_tls_with_the_right_authority_works(agent: Make, secured: Any, name: str) -> None:
    mine = agent(f"{secured.url}?ssl_ca_certs={secured.ca_file}")
    other = agent(f"{secured.url}?ssl_ca_certs={secured.ca_file}")
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    time.sleep(0.05)
    with took() as time_of:
        mine.do(lambda client: hold.release())
        waits.result(PATIENCE)
    assert time_of.seconds < 1.0, "not by the bell"


def test_tls_with_an_unknown_authority_is_refused_and_said(
    agent: Make, secured: Any, name: str
) -> None:
    mine = agent(secured.url)
    with took() as time_of, pytest.raises(BackendError, match=r"TLS failed.*certificate") as caught:
        mine.do(lambda client: client.lock(name).acquire(timeout=10))
    assert not caught.value.transient and time_of.seconds < 3


def test_a_plain_client_of_a_tls_server_is_told(agent: Make, secured: Any, name: str) -> None:
    mine = agent(f"redis://127.0.0.1:{secured.port}", lease=1.2)
    with pytest.raises(BackendError, match="rediss://"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))


def test_a_tls_client_of_a_plain_server_is_told(agent: Make, redis_server: Any, name: str) -> None:
    mine = agent(f"rediss://127.0.0.1:{redis_server.port}", lease=1.2)
    with took() as time_of, pytest.raises(BackendError, match="TLS"):
        mine.do(lambda client: client.lock(name).acquire(timeout=0))
    assert time_of.seconds < 0.2 + 1.0


# ---- connections that the server ends -----------------------------------------------------------


def test_a_server_that_closes_idle_connections_is_no_trouble(
    agent: Make, mood: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mood.call("CONFIG", "SET", "timeout", "1")
    mine = agent(mood.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    until(lambda: not connections(mood))
    assert mine.do(lambda client: client.inspect(name)).holders[0].fence == hold.fence
    mine.do(lambda client: hold.release())
    assert mine.do(lambda client: client.names()) == []
    assert not caplog.records


@pytest.mark.parametrize("what", ["pubsub", "both"])
def test_a_waiter_whose_connections_are_killed_is_still_served(
    agent: Make, mood: Any, name: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    mine, other = agent(mood.url), agent(mood.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    until(lambda: mood.call("PUBSUB", "CHANNELS"))
    killed = 0
    for kind in ("normal", "pubsub") if what == "both" else (what,):
        killed += mood.call("CLIENT", "KILL", "TYPE", kind)
    assert killed
    time.sleep(0.3)  # the first thing that it does is to listen again
    with took() as time_of:
        mine.do(lambda client: hold.release())
        later = waits.result(PATIENCE)
    assert time_of.seconds < 1.0, "not by the bell"
    assert later.fence > hold.fence
    # And the next wait has an ear again.
    again = mine.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: mine.client.statistics().waiting)
    time.sleep(0.1)
    with took() as time_of:
        other.do(lambda client: later.release())
        again.result(PATIENCE)
    assert time_of.seconds < 1.0, "not by the bell"


def test_a_wait_that_ends_in_a_condition_says_so(agent: Make, mood: Any, name: str) -> None:
    mine, other = agent(mood.url), agent(mood.url, lease=1.2)
    mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=0.5))
    until(lambda: other.client.statistics().waiting)
    end = condition(mood, "READONLY")
    try:
        with pytest.raises((AcquireTimeout, BackendError)):
            waits.result(PATIENCE)
    finally:
        end()

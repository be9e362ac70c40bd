"""Arguments of connect(), the number of connections, and secrets that are never shown."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from fake_redis import PATIENCE, Agent, connections, took, until
from redis.sentinel import Sentinel

import lockfast
from lockfast import AcquireTimeout, BackendError, ConfigurationError, aio

Make = Callable[..., Agent]
SECRET = "tr0ub4dor-Zq"


@pytest.fixture(scope="module")
def secured() -> Iterator[Any]:
    """A server with a password, a user, TLS on its port, and a unix socket."""
    from lab.servers.redis_server import RedisServer

    users = [f"clerk on >{SECRET} ~* &* +@all"]
    with RedisServer(password=SECRET, tls=True, users=users) as server:
        yield server


@pytest.fixture(scope="module")
def own_server() -> Iterator[Any]:
    """A server with no other clients, whose connections can be counted."""
    from lab.servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server


def assert_exclusive(agents: list[Agent], name: str) -> None:
    """Assert that two clients exclude and wake each other."""
    first, second = agents
    hold = first.do(lambda client: client.lock(name).acquire())
    second.do(lambda client: client.inspect(name))  # connects, which may take longer than a try
    assert second.do(lambda client: client.lock(name).try_acquire()) is None
    waits = second.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: second.client.statistics().waiting)
    first.do(lambda client: hold.release())
    later = waits.result(PATIENCE)
    assert later.fence > hold.fence
    second.do(lambda client: later.release())


# ---- clients of redis-py ------------------------------------------------------------------------


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoding": {"decode_responses": True},
    "another database": {"db": 3},
    "with retries": {"retry_on_error": [OSError], "health_check_interval": 1},
    "named": {"client_name": "app"},
    "RESP2": {"protocol": 2},
}


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize("what", list(OPTIONS))
def test_a_redis_py_client_provides_the_address_of_the_server(
    agent: Make, redis_server: Any, name: str, what: str, kind: Any
) -> None:
    theirs = kind(host="127.0.0.1", port=redis_server.port, **OPTIONS[what])
    db = OPTIONS[what].get("db", 0)
    plain = agent(f"redis://127.0.0.1:{redis_server.port}/{db}")
    assert_exclusive([agent(theirs), plain], name)
    if kind is redis.Redis:
        assert theirs.ping()  # the client is still usable
        theirs.close()


@pytest.mark.parametrize(
    "kind", [redis.BlockingConnectionPool, redis.asyncio.BlockingConnectionPool]
)
def test_a_pool_of_one_connection_is_not_exhausted(
    agent: Make, redis_server: Any, name: str, kind: Any
) -> None:
    pool = kind(host="127.0.0.1", port=redis_server.port, max_connections=1)
    library = redis if kind is redis.BlockingConnectionPool else redis.asyncio
    theirs = library.Redis(connection_pool=pool)
    assert_exclusive([agent(theirs), agent(theirs)], name)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize("how", ["tls", "unix"])
def test_the_password_tls_options_and_socket_of_a_redis_py_client_are_used(
    agent: Make, secured: Any, name: str, kind: Any, how: str
) -> None:
    options: dict[str, Any] = {"username": "clerk", "password": SECRET}
    if how == "tls":
        options |= {"host": "127.0.0.1", "port": secured.port, "ssl": True}
        options |= {"ssl_ca_certs": str(secured.ca_file)}
        url = f"rediss://:{SECRET}@127.0.0.1:{secured.port}?ssl_ca_certs={secured.ca_file}"
    else:
        options |= {"unix_socket_path": f"{secured.folder}/socket", "db": 2}
        url = f"unix://clerk:{SECRET}@{secured.folder}/socket?db=2"
    mine, other = agent(kind(**options)), agent(url)
    assert_exclusive([mine, other], name)
    for one in (mine, other):
        assert SECRET not in f"{one.client!r} {one.client._endpoint.url} {one.client.lock(name)!r}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sentinel([("127.0.0.1", 1)]).slave_for("mymaster"),
        lambda: redis.Redis().lock("a"),
        lambda: redis.ConnectionPool(),
        lambda: object(),
        lambda: 7,
        lambda: b"redis://localhost",
    ],
)
def test_an_object_that_is_no_client_of_one_server_is_refused(
    make: Callable[[], Any], agent: Make
) -> None:
    with pytest.raises(ConfigurationError):
        agent(make())


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", ["", "/0", "?db=0", "/0?socket_timeout=3&client_name=a", "?protocol=2"]
)
def test_urls_have_the_same_meaning_as_in_redis_py(
    agent: Make, redis_server: Any, name: str, more: str
) -> None:
    assert_exclusive(
        [agent(f"redis://127.0.0.1:{redis_server.port}{more}"), agent(redis_server.url)], name
    )


@pytest.mark.parametrize("one, two", [("/0", "/1"), ("?db=4", "/5")])
def test_databases_are_independent(
    agent: Make, redis_server: Any, name: str, one: str, two: str
) -> None:
    where = f"redis://127.0.0.1:{redis_server.port}"
    hold = agent(where + one).do(lambda client: client.lock(name).acquire())
    other = agent(where + two).do(lambda client: client.lock(name).acquire(timeout=0))
    assert hold.is_held and other.is_held


@pytest.mark.parametrize(
    "url, message",
    [
        ("redis://:{}@h/0?bogus=1", "unknown option 'bogus'"),
        ("redis://h/0?password={}&bogus={}", "unknown option 'bogus'"),
        ("unix://u:{}@/tmp/x?bogus=1", "unknown option 'bogus'"),
        ("redis://:{}@h?socket_timeout=x{}", "socket_timeout"),
        ("redis://:{}@h?db=x", "'db'"),
        ("redis://:{}@h/abc", "db is a number"),
        ("redis://:{}/x@host:6379/0", "%2F"),
        ("redis://:{}#@host/1", "%23"),
        ("redis://host:{}", "not a Redis URL"),
        ("redis://:{}@host:99999999", "not a Redis URL"),
        ("redis://:{}@[::1/0", "not a valid URL"),
        ("redis://[::1?password={}", "not a valid URL"),
        ("redis://:{}\u2100@host", "not a valid URL"),
        ("redi://:{}@host", "did you mean redis://"),
        ("rediss://:{}@host?ssl_cert_reqs=foo", "foo"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(
    agent: Make, url: str, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        agent(url.replace("{}", SECRET))
    error = caught.value
    context = "" if error.__suppress_context__ else repr(error.__context__)
    shown = f"{error} {error!r} {error.__cause__!r} {context}"
    assert message in str(error)
    assert SECRET not in shown and SECRET[:9] not in shown


def test_no_password_and_no_claim_id_is_shown_anywhere(
    agent: Make, secured: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"rediss://clerk:{SECRET}@127.0.0.1:{secured.port}?ssl_ca_certs={secured.ca_file}"
    mine, wrong = agent(url, lease=4.0), agent(url.replace(SECRET, SECRET + "x"), lease=4.0)
    hold = mine.do(lambda client: client.lock(name).acquire())
    errors: list[BaseException] = []
    for work in (
        lambda: wrong.do(lambda client: client.lock(name).acquire(timeout=0)),
        lambda: mine.later(lambda client: client.lock(name).acquire(timeout=0)).result(PATIENCE),
        lambda: pickle.dumps(hold),
        lambda: copy.copy(hold),
    ):
        with pytest.raises((BackendError, AcquireTimeout, TypeError)) as caught:
            work()
        errors.append(caught.value)
    secured.call("FLUSHALL")
    until(lambda: hold.lost)
    with pytest.raises(lockfast.HoldLost) as lost:
        mine.do(lambda client: hold.release())
    shown = caplog.text + repr([*errors, lost.value, hold, hold._held.claim, mine.client])
    for error in errors:
        while error is not None:
            shown += f"{error!s} {error!r}"
            error = error.__cause__  # type: ignore[assignment]
    assert SECRET not in shown
    assert hold._held.claim.id.split("-")[0][:12] not in shown


@pytest.mark.parametrize("missing", ["redis", "hiredis"])
def test_a_missing_library_is_named(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import lockfast; lockfast.connect('redis://h')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigurationError" in done.stderr and "pip install 'lockfast[redis]'" in done.stderr
    assert missing in done.stderr.splitlines()[-1]


# ---- both APIs ----------------------------------------------------------------------------------


def test_clients_of_the_two_apis_exclude_and_wake_each_other(
    agents: Callable[..., Agent], redis_server: Any, name: str
) -> None:
    both = [agents("blocking", redis_server.url), agents("asyncio", redis_server.url)]
    assert_exclusive(both, name)
    assert_exclusive(both[::-1], name)


def test_one_asyncio_client_serves_one_loop_after_the_other(
    own_server: Any, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    client = aio.connect(own_server.url)

    async def scene(number: int) -> int:
        async with client.lock(f"{name}-{number}", timeout=5) as hold:
            waits = asyncio.create_task(client.lock(f"{name}-{number}").acquire(timeout=5))
            await asyncio.sleep(0.05)
            await hold.release()
            with contextlib.suppress(lockfast.NotHeld):
                await (later := await waits).release()
            return later.fence

    async def body(number: int) -> int:
        try:
            return await scene(number)
        except lockfast.NotHeld:
            return 1  # the with block released a second time

    assert asyncio.run(body(1)) and asyncio.run(body(2))

    async def end() -> None:
        hold = await client.lock(name).acquire(timeout=5)
        await hold.release()
        await client.close()

    asyncio.run(end())
    gc.collect()
    until(lambda: not connections(own_server))
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_a_hold_survives_the_loop_that_acquired_it(own_server: Any, name: str) -> None:
    client = aio.connect(own_server.url, lease=0.9)
    hold = asyncio.run(_acquire(client, name))
    until(lambda: client.statistics().renewals >= 2)
    assert hold.is_held

    async def end() -> None:
        await hold.release()
        await client.close()

    asyncio.run(end())
    assert not hold.lost


async def _acquire(client: aio.Client, name: str) -> Any:
    return await client.lock(name).acquire()


# ---- how many connections -----------------------------------------------------------------------


def test_each_thread_and_the_keeper_have_a_connection_and_threads_listen_on_theirs(
    own_server: Any, name: str
) -> None:
    until(lambda: not connections(own_server))
    with lockfast.connect(own_server.url) as client:
        hold = client.lock(name).acquire()
        assert len(connections(own_server)) <= 2  # this thread's, and perhaps the keeper's
        ready, waits = threading.Barrier(6), []
        with ThreadPoolExecutor(5) as pool:

            def wait() -> None:
                ready.wait(PATIENCE)
                client.lock(name).acquire(timeout=PATIENCE).release()

            waits = [pool.submit(wait) for _ in range(5)]
            ready.wait(PATIENCE)
            until(lambda: client.statistics().waiting == 5)
            until(lambda: len(connections(own_server)) == 5 + 1 + 1)
            until(lambda: sum(one["sub"] != "0" for one in connections(own_server)) == 5)
            hold.release()
            for each in waits:
                each.result(PATIENCE)
            assert len(connections(own_server)) <= 5 + 1 + 1
        # The connections end with their threads.
        gc.collect()
        until(lambda: len(connections(own_server)) <= 2)
    until(lambda: not connections(own_server))


def test_all_tasks_share_one_connection_and_the_keeper_has_one(own_server: Any, name: str) -> None:
    until(lambda: not connections(own_server))

    async def scene() -> None:
        async with aio.connect(own_server.url, lease=0.9) as client:
            hold = await client.lock(name).acquire()
            waits = [
                asyncio.create_task(client.lock(name).acquire(timeout=PATIENCE)) for _ in range(20)
            ]
            await asyncio.to_thread(until, lambda: client.statistics().waiting == 20)
            await asyncio.to_thread(until, lambda: client.statistics().renewals)
            assert len(connections(own_server)) == 2
            await hold.release()
            for each in waits:
                await (await each).release()
            assert len(connections(own_server)) == 2

    asyncio.run(scene())
    until(lambda: not connections(own_server))


def test_tasks_that_start_together_connect_once(own_server: Any, name: str) -> None:
    until(lambda: not connections(own_server))
    before = own_server.call("INFO", "stats")["total_connections_received"]

    async def scene() -> None:
        async with aio.connect(own_server.url) as client:
            holds = await asyncio.gather(
                *(client.lock(f"{name}-{i}").acquire(timeout=5) for i in range(50))
            )
            assert len({hold.fence for hold in holds}) >= 1 and len(connections(own_server)) <= 2
            await asyncio.gather(*(hold.release() for hold in holds))

    asyncio.run(scene())
    tcp = own_server.call("INFO", "stats")["total_connections_received"] - before
    assert tcp < 2 + 10, "the count includes the connections of the test itself"


def test_close_ends_all_connections_and_threads(agent: Make, own_server: Any, name: str) -> None:
    until(lambda: not connections(own_server))
    mine, other = agent(own_server.url), agent(own_server.url)
    mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    other.close()
    with pytest.raises((lockfast.NotHeld, asyncio.CancelledError)):
        waits.result(PATIENCE)
    mine.close()
    until(lambda: not connections(own_server))
    assert not [
        thread
        for thread in threading.enumerate()
        if "keeper" in thread.name and thread in _keepers(mine, other)
    ]
    assert own_server.call("EXISTS", f"lf:{{default:{name}}}:q") == 0


def _keepers(*agents: Agent) -> list[threading.Thread]:
    alive = [agent for agent in agents if agent.client._core.keeper.running]
    until(lambda: not any(agent.client._core.keeper.running for agent in alive))
    return []


def test_a_garbage_collected_client_closes_its_connections(own_server: Any, name: str) -> None:
    until(lambda: not connections(own_server))
    client = lockfast.connect(own_server.url)
    client.inspect(name)
    assert connections(own_server)
    del client
    gc.collect()
    until(lambda: not connections(own_server))


def test_a_waiter_is_woken_and_does_not_poll(agent: Make, own_server: Any, name: str) -> None:
    mine, other = agent(own_server.url), agent(own_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    until(lambda: own_server.call("PUBSUB", "CHANNELS", "lf:wake:*"))

    def calls() -> int:
        statistics = own_server.call("INFO", "commandstats")
        return int(statistics.get("cmdstat_evalsha", {}).get("calls", 0))

    until(lambda: calls() >= 0)
    before = calls()
    threading.Event().wait(0.4)
    assert calls() - before <= 2
    with took() as time_of:
        mine.do(lambda client: hold.release())
        waits.result(PATIENCE)
    assert time_of.unstalled < 0.5


def test_an_asyncio_client_works_on_any_loop_and_any_thread(redis_server: Any, name: str) -> None:
    client = aio.connect(redis_server.url)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    fences: list[int] = []

    def connections_made() -> int:
        return int(redis_server.call("INFO", "stats")["total_connections_received"])

    async def cycles(name: str = name) -> None:
        for _ in range(2):
            async with client.lock(name) as hold:
                fences.append(hold.fence)

    def on_another_thread(index: int, *names: str) -> None:
        thread = threading.Thread(target=loops[index].run_until_complete, args=(cycles(*names),))
        thread.start()
        thread.join()

    async def on_two_loops() -> None:
        async with client.lock(name) as hold:
            fences.append(hold.fence)
            await asyncio.to_thread(on_another_thread, 1, f"{name}-2")
        await cycles()

    began = connections_made()
    each = connections_made() - began
    for index in (0, 1, 0, 0, 1):
        loops[index].run_until_complete(cycles())
    assert connections_made() - began - 2 * each == 4, "one connection each time the loop changes"
    for index in (1, 0):
        on_another_thread(index)
    loops[0].run_until_complete(cycles())
    loops[0].run_until_complete(on_two_loops())
    assert len(set(fences)) == 16 + 5 and fences == sorted(fences)
    loops[0].run_until_complete(client.close())
    for loop in loops:
        loop.close()

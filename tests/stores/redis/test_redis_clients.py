"""What connect() takes, how many connections it costs, and what is never shown."""

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
def vault() -> Iterator[Any]:
    """A server with a password, a user, TLS on its port, and a unix socket."""
    from lab.servers.redis_server import RedisServer

    users = [f"clerk on >{SECRET} ~* &* +@all"]
    with RedisServer(password=SECRET, tls=True, users=users) as server:
        yield server


@pytest.fixture(scope="module")
def counted() -> Iterator[Any]:
    """A server that nobody else is connected to."""
    from lab.servers.redis_server import RedisServer

    with RedisServer() as server:
        yield server


def works(agents: list[Agent], name: str) -> None:
    """They exclude each other, and wake each other."""
    first, second = agents
    hold = first.do(lambda client: client.lock(name).acquire())
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
def test_a_client_of_redis_py_is_taken_for_its_address(
    agent: Make, redis_server: Any, name: str, what: str, kind: Any
) -> None:
    theirs = kind(host="127.0.0.1", port=redis_server.port, **OPTIONS[what])
    db = OPTIONS[what].get("db", 0)
    plain = agent(f"redis://127.0.0.1:{redis_server.port}/{db}")
    works([agent(theirs), plain], name)
    if kind is redis.Redis:
        assert theirs.ping()  # we took nothing of it
        theirs.close()


@pytest.mark.parametrize(
    "kind", [redis.BlockingConnectionPool, redis.asyncio.BlockingConnectionPool]
)
def test_a_pool_of_one_is_not_used_up(agent: Make, redis_server: Any, name: str, kind: Any) -> None:
    pool = kind(host="127.0.0.1", port=redis_server.port, max_connections=1)
    library = redis if kind is redis.BlockingConnectionPool else redis.asyncio
    theirs = library.Redis(connection_pool=pool)
    works([agent(theirs), agent(theirs)], name)


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize("how", ["tls", "unix"])
def test_a_clients_password_tls_and_socket_are_taken_over(
    agent: Make, vault: Any, name: str, kind: Any, how: str
) -> None:
    said: dict[str, Any] = {"username": "clerk", "password": SECRET}
    if how == "tls":
        said |= {"host": "127.0.0.1", "port": vault.port, "ssl": True}
        said |= {"ssl_ca_certs": str(vault.ca_file)}
        url = f"rediss://:{SECRET}@127.0.0.1:{vault.port}?ssl_ca_certs={vault.ca_file}"
    else:
        said |= {"unix_socket_path": f"{vault.folder}/socket", "db": 2}
        url = f"unix://clerk:{SECRET}@{vault.folder}/socket?db=2"
    mine, other = agent(kind(**said)), agent(url)
    works([mine, other], name)
    for one in (mine, other):
        assert SECRET not in f"{one.client!r} {one.client.store.url} {one.client.lock(name)!r}"


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
def test_what_is_no_client_of_one_server_is_refused(make: Callable[[], Any], agent: Make) -> None:
    with pytest.raises(ConfigurationError):
        agent(make())


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", ["", "/0", "?db=0", "/0?socket_timeout=3&client_name=a", "?protocol=2"]
)
def test_urls_as_redis_py_reads_them(agent: Make, redis_server: Any, name: str, more: str) -> None:
    works([agent(f"redis://127.0.0.1:{redis_server.port}{more}"), agent(redis_server.url)], name)


@pytest.mark.parametrize("one, two", [("/0", "/1"), ("?db=4", "/5")])
def test_databases_are_strangers(
    agent: Make, redis_server: Any, name: str, one: str, two: str
) -> None:
    where = f"redis://127.0.0.1:{redis_server.port}"
    hold = agent(where + one).do(lambda client: client.lock(name).acquire())
    other = agent(where + two).do(lambda client: client.lock(name).acquire(timeout=0))
    assert hold.is_held and other.is_held


@pytest.mark.parametrize(
    "url, said",
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
        ("redis://:{}@[::1/0", "not a URL"),
        ("redis://[::1?password={}", "not a URL"),
        ("redis://:{}\u2100@host", "not a URL"),
        ("redi://:{}@host", "did you mean redis://"),
        ("rediss://:{}@host?ssl_cert_reqs=foo", "foo"),
    ],
)
def test_a_wrong_url_is_refused_without_telling_its_password(
    agent: Make, url: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        agent(url.replace("{}", SECRET))
    error = caught.value
    context = "" if error.__suppress_context__ else repr(error.__context__)
    shown = f"{error} {error!r} {error.__cause__!r} {context}"
    assert said in str(error)
    assert SECRET not in shown and SECRET[:9] not in shown


def test_no_password_and_no_claim_id_is_shown_anywhere(
    agent: Make, vault: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"rediss://clerk:{SECRET}@127.0.0.1:{vault.port}?ssl_ca_certs={vault.ca_file}"
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
    vault.call("FLUSHALL")
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
def test_a_library_that_is_missing_is_named(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import lockfast; lockfast.connect('redis://h')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigurationError" in done.stderr and "pip install 'lockfast[redis]'" in done.stderr
    assert missing in done.stderr.splitlines()[-1]


# ---- both colours -------------------------------------------------------------------------------


def test_the_two_colours_exclude_and_wake_each_other(
    agents: Callable[..., Agent], redis_server: Any, name: str
) -> None:
    both = [agents("blocking", redis_server.url), agents("asyncio", redis_server.url)]
    works(both, name)
    works(both[::-1], name)


def test_one_asyncio_client_serves_one_loop_after_the_other(
    counted: Any, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    client = aio.connect(counted.url)

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
            return 1  # the with block released what was released

    assert asyncio.run(body(1)) and asyncio.run(body(2))

    async def end() -> None:
        hold = await client.lock(name).acquire(timeout=5)
        await hold.release()
        await client.close()

    asyncio.run(end())
    gc.collect()
    until(lambda: not connections(counted))
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_a_hold_survives_the_loop_that_acquired_it(counted: Any, name: str) -> None:
    client = aio.connect(counted.url, lease=0.9)
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


def test_each_thread_has_a_connection_and_hears_on_it_and_the_keeper_has_one(
    counted: Any, name: str
) -> None:
    until(lambda: not connections(counted))
    with lockfast.connect(counted.url) as client:
        hold = client.lock(name).acquire()
        assert len(connections(counted)) <= 2  # ours, and perhaps the keeper's
        ready, waits = threading.Barrier(6), []
        with ThreadPoolExecutor(5) as pool:

            def wait() -> None:
                ready.wait(PATIENCE)
                client.lock(name).acquire(timeout=PATIENCE).release()

            waits = [pool.submit(wait) for _ in range(5)]
            ready.wait(PATIENCE)
            until(lambda: client.statistics().waiting == 5)
            until(lambda: len(connections(counted)) == 5 + 1 + 1)
            until(lambda: sum(one["sub"] != "0" for one in connections(counted)) == 5)
            hold.release()
            for each in waits:
                each.result(PATIENCE)
            assert len(connections(counted)) <= 5 + 1 + 1
        # The threads have ended, and their connections with them.
        gc.collect()
        until(lambda: len(connections(counted)) <= 2)
    until(lambda: not connections(counted))


def test_all_tasks_share_one_connection_and_the_keeper_has_one(counted: Any, name: str) -> None:
    until(lambda: not connections(counted))

    async def scene() -> None:
        async with aio.connect(counted.url, lease=0.9) as client:
            hold = await client.lock(name).acquire()
            waits = [
                asyncio.create_task(client.lock(name).acquire(timeout=PATIENCE)) for _ in range(20)
            ]
            await asyncio.to_thread(until, lambda: client.statistics().waiting == 20)
            await asyncio.to_thread(until, lambda: client.statistics().renewals)
            assert len(connections(counted)) == 2
            await hold.release()
            for each in waits:
                await (await each).release()
            assert len(connections(counted)) == 2

    asyncio.run(scene())
    until(lambda: not connections(counted))


def test_many_tasks_that_begin_together_connect_once(counted: Any, name: str) -> None:
    until(lambda: not connections(counted))
    before = counted.call("INFO", "stats")["total_connections_received"]

    async def scene() -> None:
        async with aio.connect(counted.url) as client:
            holds = await asyncio.gather(
                *(client.lock(f"{name}-{i}").acquire(timeout=5) for i in range(50))
            )
            assert len({hold.fence for hold in holds}) >= 1 and len(connections(counted)) <= 2
            await asyncio.gather(*(hold.release() for hold in holds))

    asyncio.run(scene())
    tcp = counted.call("INFO", "stats")["total_connections_received"] - before
    assert tcp < 2 + 10, "the tests' own are among them"


def test_close_closes_all_connections_and_threads_end(agent: Make, counted: Any, name: str) -> None:
    until(lambda: not connections(counted))
    mine, other = agent(counted.url), agent(counted.url)
    mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    other.close()
    with pytest.raises((lockfast.NotHeld, asyncio.CancelledError)):
        waits.result(PATIENCE)
    mine.close()
    until(lambda: not connections(counted))
    assert not [
        thread
        for thread in threading.enumerate()
        if "keeper" in thread.name and thread in _keepers(mine, other)
    ]
    assert counted.call("EXISTS", f"lf:{{default:{name}}}:q") == 0


def _keepers(*agents: Agent) -> list[threading.Thread]:
    alive = [agent for agent in agents if agent.client.core.keeper.running]
    until(lambda: not any(agent.client.core.keeper.running for agent in alive))
    return []


def test_a_client_that_is_forgotten_closes_its_connections(counted: Any, name: str) -> None:
    until(lambda: not connections(counted))
    client = lockfast.connect(counted.url)
    client.inspect(name)
    assert connections(counted)
    del client
    gc.collect()
    until(lambda: not connections(counted))


def test_waiting_is_woken_and_not_polled(agent: Make, counted: Any, name: str) -> None:
    mine, other = agent(counted.url), agent(counted.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    until(lambda: counted.call("PUBSUB", "CHANNELS", "lf:wake:*"))
    calls = lambda: counted.call("INFO", "commandstats").get("cmdstat_evalsha", {}).get("calls", 0)  # noqa: E731
    until(lambda: calls() >= 0)
    before = calls()
    threading.Event().wait(0.4)
    assert calls() - before <= 2
    with took() as time_of:
        mine.do(lambda client: hold.release())
        waits.result(PATIENCE)
    assert time_of.seconds < 0.5


def test_an_asyncio_client_works_on_whichever_loop_runs_and_on_any_thread(
    redis_server: Any, name: str
) -> None:
    client = aio.connect(redis_server.url)
    loops = [asyncio.new_event_loop() for _ in range(2)]
    fences: list[int] = []

    def made() -> int:
        """Connections so far."""
        return int(redis_server.call("INFO", "stats")["total_connections_received"])

    async def cycles(name: str = name) -> None:
        for _ in range(2):
            async with client.lock(name) as hold:
                fences.append(hold.fence)

    def on_another_thread(turn: int, *said: str) -> None:
        thread = threading.Thread(target=loops[turn].run_until_complete, args=(cycles(*said),))
        thread.start()
        thread.join()

    async def meanwhile() -> None:
        async with client.lock(name) as hold:
            fences.append(hold.fence)
            await asyncio.to_thread(on_another_thread, 1, f"{name}-2")
        await cycles()

    began = made()
    each = made() - began
    for turn in (0, 1, 0, 0, 1):
        loops[turn].run_until_complete(cycles())
    assert made() - began - 2 * each == 4, "one for each loop that it comes to"
    for turn in (1, 0):
        on_another_thread(turn)
    loops[0].run_until_complete(cycles())
    loops[0].run_until_complete(meanwhile())
    assert len(set(fences)) == 16 + 5 and fences == sorted(fences)
    loops[0].run_until_complete(client.close())
    for loop in loops:
        loop.close()

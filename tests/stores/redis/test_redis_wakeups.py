"""Threads that wait receive their wake-ups themselves, on their own connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, until

import lockfast
from lab.servers.redis_server import RedisServer
from lockfast.stores.redis.commands import channel_of
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.endpoint import address_of_url
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.threads import IDLE

Make = Callable[..., Agent]
AT_ONCE = 1.0  # less than the interval of the waiters' refresh, which would also find the grant


def waiting(agents: Make, url: str, name: str) -> tuple[Any, Agent, Agent, Any]:
    """Return a hold, its client, the client that waits for it, and the future of the wait."""
    mine, other = agents("blocking", url), agents("blocking", url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    return hold, mine, other, waits


def listening(agent: Agent) -> list[Any]:
    """Return the connections on which the client's threads listen."""
    connections = agent.client._store._channel._connections
    return [connection for connection in connections if connection.pushed is not None]


def served(mine: Agent, hold: Any, waits: Any) -> float:
    began = time.monotonic()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence
    return time.monotonic() - began


def test_a_wake_up_needs_no_other_thread_of_the_process(
    redis_server: Any, name: str, agents: Make
) -> None:
    """The keeper may be busy or starved: waking a waiter does not need it."""
    hold, mine, other, waits = waiting(agents, redis_server.url, name)
    other.client._core.keeper.stop()
    until(lambda: not other.client._core.keeper.running)
    assert served(mine, hold, waits) < AT_ONCE


def test_a_waiting_thread_whose_connection_ends_listens_on_another(
    redis_server: Any, name: str, agents: Make
) -> None:
    hold, mine, other, waits = waiting(agents, redis_server.url, name)
    (before,) = listening(other)
    address = "{}:{}".format(*before.sock.getsockname())
    assert redis_server.call("CLIENT", "KILL", "ADDR", address) == 1
    until(lambda: before.sock.fileno() < 0)
    until(lambda: any(each is not before for each in listening(other)))
    assert served(mine, hold, waits) < AT_ONCE


def test_a_late_wake_up_is_read_and_the_connection_is_used_again(
    redis_server: Any, name: str, agents: Make
) -> None:
    mine = agents("blocking", redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    with lockfast.connect(redis_server.url) as client:
        transport = client._store._channel
        assert client.lock(name).try_acquire(timeout=0.1) is None
        connection, wake_address = transport._local.connection, transport.wake_address
        mine.do(lambda client: hold.release())
        assert redis_server.call("PUBLISH", channel_of(wake_address), "nobody 1 1000") == 1
        time.sleep(IDLE * 1.1)
        with client.lock(name):
            assert (
                transport._local.connection is connection
                and transport.wake_address == wake_address != "."
            )


@pytest.mark.parametrize("listens", [False, True])
def test_a_connection_that_the_server_closed_is_recognized_as_stale_also_over_tls(
    listens: bool,
) -> None:
    with RedisServer(tls=True) as server:
        connection = Connection(
            address_of_url(f"{server.url}?ssl_ca_certs={server.ca_file}"), PATIENCE
        )
        if listens:
            connection.subscribe(packed("SUBSCRIBE", "a"), PATIENCE)
            connection.pushed = print
        assert not connection.is_stale()
        if not listens:
            assert connection.ask(packed("PING"), PATIENCE) == b"PONG"
            assert not connection.is_stale()
        address = "{}:{}".format(*connection.sock.getsockname())
        assert server.call("CLIENT", "KILL", "ADDR", address) == 1
        until(connection.is_stale)
        connection.close()

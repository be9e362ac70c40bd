"""A thread that waits hears its bells itself, on its own connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, until

import lockfast
from lab.servers.redis_server import RedisServer
from lockfast.stores.redis.connections import Link
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.store import address_of_url
from lockfast.stores.redis.threads import IDLE
from lockfast.stores.redis.wakeup_messages import channel_of

Make = Callable[..., Agent]
AT_ONCE = 1.0  # less than the time after which a place is refreshed, which would tell it too


def waiting(agents: Make, url: str, name: str) -> tuple[Any, Agent, Agent, Any]:
    """Who holds it, who waits, and the waiting."""
    mine, other = agents("blocking", url), agents("blocking", url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    return hold, mine, other, waits


def listening(agent: Agent) -> list[Any]:
    """The links on which its threads listen."""
    return [link for link in agent.client._backend._transport._links if link.pushed is not None]


def served(mine: Agent, hold: Any, waits: Any) -> float:
    began = time.monotonic()
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence
    return time.monotonic() - began


def test_a_bell_needs_no_other_thread_of_its_process(
    redis_server: Any, name: str, agents: Make
) -> None:
    """The keeper may be busy, or starved by others: it is not needed to wake anybody."""
    hold, mine, other, waits = waiting(agents, redis_server.url, name)
    other.client.core.keeper.stop()
    until(lambda: not other.client.core.keeper.running)
    assert served(mine, hold, waits) < AT_ONCE


def test_a_thread_whose_connection_ends_while_it_waits_listens_on_another(
    redis_server: Any, name: str, agents: Make
) -> None:
    hold, mine, other, waits = waiting(agents, redis_server.url, name)
    (before,) = listening(other)
    address = "{}:{}".format(*before.sock.getsockname())
    assert redis_server.call("CLIENT", "KILL", "ADDR", address) == 1
    until(lambda: before.sock.fileno() < 0)
    until(lambda: any(link is not before for link in listening(other)))
    assert served(mine, hold, waits) < AT_ONCE


def test_a_late_bell_is_read_and_the_connection_is_used_again(
    redis_server: Any, name: str, agents: Make
) -> None:
    mine = agents("blocking", redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    with lockfast.connect(redis_server.url) as client:
        transport = client._backend._transport
        assert client.lock(name).try_acquire(timeout=0.1) is None
        link, wake_address = transport._local.link, transport.wake_address
        mine.do(lambda client: hold.release())
        assert redis_server.call("PUBLISH", channel_of(wake_address), "nobody 1 1000") == 1
        time.sleep(IDLE * 1.1)
        with client.lock(name):
            assert transport._local.link is link and transport.wake_address == wake_address != "."


@pytest.mark.parametrize("listens", [False, True])
def test_a_connection_that_the_server_ended_is_seen_to_be_also_over_tls(listens: bool) -> None:
    with RedisServer(tls=True) as server:
        link = Link(address_of_url(f"{server.url}?ssl_ca_certs={server.ca_file}"), PATIENCE)
        if listens:
            link.subscribe(packed("SUBSCRIBE", "a"), PATIENCE)
            link.pushed = print
        assert not link.is_stale()
        if not listens:
            assert link.ask(packed("PING"), PATIENCE) == b"PONG"
            assert not link.is_stale()
        address = "{}:{}".format(*link.sock.getsockname())
        assert server.call("CLIENT", "KILL", "ADDR", address) == 1
        until(link.is_stale)
        link.close()

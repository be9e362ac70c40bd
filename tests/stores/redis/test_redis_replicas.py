"""Claims that count only when replicas acknowledge them, with real replicas that fall silent.

A replica that is stopped (SIGSTOP) acknowledges nothing and stays connected: the master goes on, as
it does when the network to its replicas is cut.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, FakeServer, took, until

import lockfast
from lockfast import BackendError, ConfigurationError, HoldLost, NotReplicated, Unsupported
from lockfast.stores.redis.commands import key_of

Make = Callable[..., Agent]
LEASE, LONGER = 1.2, 3.0


class Family:
    """A master and two replicas."""

    def __init__(self) -> None:
        from lab.servers.redis_server import RedisServer

        self.master = RedisServer().start("--repl-diskless-sync-delay", "0")
        replica_of = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.replicas = [RedisServer().start(*replica_of) for _ in range(2)]
        self.url = self.master.url
        until(lambda: len(self.master.call("ROLE")[2]) == 2)

    def silence(self, number: int = 2) -> None:
        for replica in self.replicas[:number]:
            replica.pause()

    def heal(self) -> None:
        for replica in self.replicas:
            replica.resume()
        until(lambda: len(self.master.call("ROLE")[2]) == 2)

    def holders(self, name: str) -> int:
        return int(self.master.call("HLEN", key_of(f"default:{name}")))

    def stop(self) -> None:
        for server in (*self.replicas, self.master):
            server.stop()


@pytest.fixture(scope="module")
def shared_family(redis_server: Any) -> Iterator[Family]:
    family = Family()
    yield family
    family.stop()


@pytest.fixture
def family(shared_family: Family) -> Iterator[Family]:
    yield shared_family
    shared_family.heal()


def acquire(name: str, **terms: Any) -> Callable[[Any], Any]:
    return lambda client: client.lock(name, **terms).acquire()


def is_granted(agent: Agent, name: str) -> bool:
    try:
        agent.do(acquire(name))
    except NotReplicated:
        return False
    return True


@pytest.mark.parametrize("wanted, silent", [(1, 1), (2, 0), ("majority", 1), ("all", 0)])
def test_a_claim_that_enough_replicas_acknowledge_is_granted(
    agent: Make, family: Family, name: str, wanted: Any, silent: int
) -> None:
    mine = agent(family.url, replicas=wanted)
    mine.do(acquire(f"{name}-before"))
    family.silence(silent)
    hold = mine.do(acquire(name))
    assert hold.is_held and mine.client.capabilities.replicas == wanted
    mine.do(lambda client: hold.release())


@pytest.mark.parametrize("wanted, silent", [(1, 2), (2, 1), (3, 0), ("majority", 2), ("all", 1)])
def test_a_claim_that_too_few_replicas_acknowledge_is_undone_and_raises(
    agent: Make, family: Family, name: str, wanted: Any, silent: int
) -> None:
    mine = agent(f"{family.url}?replicas={wanted}", lease=LEASE)
    if silent and isinstance(wanted, str):
        mine.do(acquire(f"{name}-before", lease=30))  # the client learns the number of replicas
    family.silence(silent)
    with took() as it, pytest.raises(NotReplicated, match=name) as raised:
        mine.do(acquire(name, timeout=3))
    error = raised.value
    needed = {"majority": 1, "all": 2}.get(wanted, wanted)
    assert (error.name, error.acknowledged, error.wanted) == (name, 2 - silent, needed)
    assert it.seconds < LEASE + 1  # within its budget, not at the end of the timeout
    assert family.holders(name) <= 1  # only the last fence is left
    # A client that requires no replicas finds the lock free.
    other = agent(family.url, lease=LEASE)
    assert other.do(lambda client: client.lock(name).try_acquire()) is not None


def test_a_master_without_replicas_grants_nothing_to_a_client_that_requires_them(
    agent: Make, redis_server: Any, name: str
) -> None:
    for wanted in (1, "majority", "all"):
        with pytest.raises(NotReplicated) as raised:
            agent(redis_server.url, lease=LEASE, replicas=wanted).do(acquire(name))
        assert (raised.value.acknowledged, raised.value.wanted) == (0, 1)


def test_a_multi_lock_and_a_simple_lock_that_are_not_acknowledged_leave_nothing(
    agent: Make, family: Family, name: str
) -> None:
    mine = agent(family.url, lease=LEASE, replicas=2)
    family.silence(1)
    names = [f"{name}-{letter}" for letter in "abcde"]
    with pytest.raises(NotReplicated, match="2 more"):
        mine.do(lambda client: client.multi_lock(*names).acquire())
    assert all(family.holders(one) <= 1 for one in names)
    with pytest.raises(NotReplicated):
        mine.do(acquire(name, layout="simple"))
    assert family.master.call("EXISTS", name) == 0


@pytest.mark.parametrize("layout", ["", "simple"])
def test_an_unacknowledged_renewal_does_not_prolong_validity(
    agent: Make, family: Family, name: str, layout: str
) -> None:
    mine = agent(family.url, lease=LONGER, replicas=1)
    hold = mine.do(acquire(name, layout=layout) if layout else acquire(name))
    with took() as it:
        family.silence()
        until(lambda: not hold.is_held)
    # The hold ends although the master has renewed it, but not at the first failed renewal.
    assert LONGER * 0.6 < it.seconds < LONGER + 0.5
    with pytest.raises(HoldLost):
        mine.do(lambda client: hold.release())
    assert mine.client.statistics().renew_errors > 0


def test_replicas_that_return_before_the_lease_ends_save_the_hold(
    agent: Make, family: Family, name: str
) -> None:
    mine = agent(family.url, lease=6, replicas=1)
    hold = mine.do(acquire(name))
    family.silence()
    until(lambda: mine.client.statistics().renew_errors > 0)
    family.heal()
    until(lambda: mine.client.statistics().renewals > 0)
    assert hold.is_held
    mine.do(lambda client: hold.release())


def test_a_wake_up_with_a_grant_counts_only_when_replicas_acknowledge_it(
    agent: Make, family: Family, name: str
) -> None:
    """The release of a client that requires no replicas grants the name to one that does."""
    loose = agent(family.url, lease=6)
    strict = agent(family.url, lease=6, replicas=1)
    hold = loose.do(acquire(name))
    waits = strict.later(acquire(name))
    until(lambda: strict.client.statistics().waiting == 1)
    family.silence()
    loose.do(lambda client: hold.release())
    with pytest.raises(NotReplicated):
        waits.result(PATIENCE)
    until(lambda: family.holders(name) <= 1)
    family.heal()
    hold = loose.do(acquire(name))
    waits = strict.later(acquire(name))
    until(lambda: strict.client.statistics().waiting == 1)
    loose.do(lambda client: hold.release())
    strict.do(lambda client: waits.result(PATIENCE).release()) if strict.api == "blocking" else (
        waits.result(PATIENCE)
    )


def test_flushed_scripts_are_sent_again(agent: Make, family: Family, name: str) -> None:
    mine = agent(family.url, replicas=2)
    family.master.call("SCRIPT", "FLUSH")
    hold = mine.do(acquire(name))
    family.master.call("SCRIPT", "FLUSH")
    mine.do(lambda client: hold.renew())
    assert mine.client.statistics().renew_errors == 0
    mine.do(lambda client: hold.release())


def test_concurrent_tasks_share_a_wait_command(
    agents: Callable[..., Agent], family: Family, name: str
) -> None:
    """WAIT blocks its connection until a replica has acknowledged: one WAIT per task, one after the
    other, would be slow."""
    mine = agents("asyncio", family.url, lease=30, replicas=1)

    async def acquire_all(client: Any) -> None:
        await asyncio.gather(*[client.lock(f"{name}-{one}").acquire() for one in range(100)])

    mine.do(acquire(name))  # connect first
    before = family.master.call("INFO", "commandstats")["cmdstat_wait"]["calls"]
    mine.do(acquire_all)
    after = family.master.call("INFO", "commandstats")["cmdstat_wait"]["calls"]
    assert 1 <= after - before <= 20


def test_a_replica_that_joins_is_counted_from_then_on(
    agent: Make, new_redis: Callable[..., Any], name: str
) -> None:
    master = new_redis("--repl-diskless-sync-delay", "0")
    replica_of = ("--replicaof", "127.0.0.1", str(master.port))
    first = new_redis(*replica_of)
    until(lambda: len(master.call("ROLE")[2]) == 1)
    mine = agent(master.url, lease=9, replicas="all")
    until(lambda: is_granted(mine, f"{name}-1"))
    second = new_redis(*replica_of)
    until(lambda: len(master.call("ROLE")[2]) == 2)
    until(lambda: is_granted(mine, f"{name}-2"))  # the replica may need a moment to catch up
    second.pause()
    with pytest.raises(NotReplicated) as raised:
        mine.do(acquire(f"{name}-3"))
    assert (raised.value.acknowledged, raised.value.wanted) == (1, 2)
    # A replica that is gone still counts: a master that is cut off must not suffice by itself.
    second.kill()
    until(lambda: len(master.call("ROLE")[2]) == 1)
    with pytest.raises(NotReplicated):
        mine.do(acquire(f"{name}-4"))
    assert first.is_running


def test_a_refused_wait_command_names_the_missing_permission(agent: Make, name: str) -> None:
    fake = FakeServer(
        b"*3\r\n:1\r\n:7000000\r\n:1200000\r\n-NOPERM this user has no permissions to run the "
        b"'wait' command\r\n",
        b":0\r\n",
    )
    try:
        with pytest.raises(BackendError, match=r"\+wait"):
            agent(fake.url, lease=LEASE, replicas=1).do(acquire(name))
    finally:
        fake.close()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "most", "", "0", "1.5", 10**6, [1]])
def test_an_invalid_number_of_replicas_is_refused(
    value: Any, agent: Make, redis_server: Any
) -> None:
    with pytest.raises(ConfigurationError, match="replicas="):
        agent(redis_server.url, replicas=value)
    if isinstance(value, str) and value:
        with pytest.raises(ConfigurationError, match="replicas="):
            agent(f"{redis_server.url}?replicas={value}")


def test_a_store_without_replicas_refuses_the_option(agent: Make) -> None:
    with pytest.raises(Unsupported, match="replicas"):
        agent("memory://", replicas=1)


def test_not_replicated_survives_pickling() -> None:
    error = NotReplicated("no", name="a", acknowledged=0, wanted=1)
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, again.acknowledged, again.wanted) == ("a", 0, 1)
    assert isinstance(error, lockfast.LockfastError) and not isinstance(error, ConnectionError)

"""Foreign data under lockfast's keys, and servers that are not Redis: errors name them, the data is
never overwritten, and malformed replies are never trusted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_redis import PATIENCE, Agent, FakeServer, took, until

from lockfast import AcquireTimeout, BackendError
from lockfast.stores.redis.commands import key_of

Make = Callable[..., Agent]

FOREIGN = {
    "string": lambda key: ("SET", key, "somebody's"),
    "list": lambda key: ("RPUSH", key, "a", "b"),
    "hash": lambda key: ("HSET", key, "user", "7", "name", "x"),
    "counter": lambda key: ("HSET", key, ".f", "text"),
}


@pytest.mark.parametrize("kind", list(FOREIGN))
def test_foreign_data_under_the_key_of_a_lock_is_named_and_left_alone(
    agent: Make, redis_server: Any, name: str, kind: str
) -> None:
    key = key_of(f"default:{name}")
    redis_server.call(*FOREIGN[kind](key))
    before = redis_server.call("DUMP", key)
    mine = agent(redis_server.url)
    for verb in (
        lambda client: client.lock(name).try_acquire(),
        lambda client: client.lock(name).acquire(timeout=0.1),
        lambda client: client.inspect(name),
        lambda client: client.break_hold(name, 1),
    ):
        with pytest.raises(BackendError, match="did not write") as caught:
            mine.do(verb)
        assert key in str(caught.value) and not caught.value.transient
    assert name not in mine.do(lambda client: client.names())
    assert redis_server.call("DUMP", key) == before
    assert redis_server.call("PTTL", key) == -1
    redis_server.call("DEL", key)


@pytest.mark.parametrize("which, kind", [(":q", "string"), (":q", "hash"), (":w", "list")])
def test_foreign_data_under_the_key_of_a_queue_is_named_and_left_alone(
    agent: Make, redis_server: Any, name: str, which: str, kind: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    key = key_of(f"default:{name}")
    redis_server.call(*FOREIGN[kind](key + which))
    before = redis_server.call("DUMP", key + which)
    with pytest.raises(BackendError, match="did not write") as caught:
        other.do(lambda client: client.lock(name).acquire(timeout=1))
    assert key in str(caught.value)
    assert redis_server.call("DUMP", key + which) == before
    redis_server.call("DEL", key + which)
    mine.do(lambda client: hold.release())


def test_an_overwritten_key_does_not_prevent_the_renewal_of_other_holds(
    agent: Make, redis_server: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "lockfast")
    mine, other = agent(redis_server.url, lease=0.6), agent(redis_server.url, lease=0.6)
    holds = [mine.do(lambda c, i=i: c.lock(f"{name}-{i}").acquire()) for i in range(5)]
    waits = [
        other.later(lambda c, i=i: c.lock(f"{name}-{i}").acquire(timeout=PATIENCE))
        for i in range(1, 3)
    ]
    until(lambda: other.client.statistics().waiting == 2)
    victim = key_of(f"default:{name}-2")
    redis_server.call("SET", victim, "somebody's")
    until(lambda: holds[2].lost)
    with pytest.raises(BackendError, match="did not write"):
        waits[1].result(PATIENCE)
    time.sleep(0.65)  # a whole lease without renewal would end the others
    assert [hold.is_held for hold in holds] == [True, True, False, True, True]
    assert mine.client.statistics().renew_errors == 0 and not waits[0].done()
    assert set(mine.do(lambda client: client.names(name))) == {f"{name}-{i}" for i in (0, 1, 3, 4)}
    mine.do(lambda client: holds[1].release())
    waits[0].result(PATIENCE)
    assert redis_server.call("GET", victim) == b"somebody's"
    redis_server.call("DEL", victim)


def test_keys_that_only_resemble_lock_keys_are_ignored_by_names(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine = agent(redis_server.url)
    odd = [f"lf:{{default:{name}", f"lf:{{default:{name}%zz}}", f"lf:{{default:{name}}}:x"]
    keys: list[Any] = [
        *odd,
        b"lf:{default:" + name.encode() + b"\xff\xfe}",
        f"lf:{{default:{name}%41}}",
    ]
    for key in keys:
        redis_server.call("SET", key, "1")
    hold = mine.do(lambda client: client.lock(f"{name}-real").acquire())
    assert mine.do(lambda client: client.names(name)) == [f"{name}-real"]
    mine.do(lambda client: hold.release())
    redis_server.call("DEL", *keys)


# ---- servers that are not Redis -----------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def fake(*answers: Any) -> FakeServer:
        servers.append(FakeServer(*answers))
        return servers[-1]

    yield fake
    for server in servers:
        server.close()


NOW = b"1800000000000000"
GRANT = b"*3\r\n:1\r\n:" + NOW + b"\r\n:1200000\r\n"
MALFORMED = {
    "a status": b"+OK\r\n",
    "null": b"_\r\n",
    "a number": b":1\r\n",
    "an empty list": b"*0\r\n",
    "a short list": b"*1\r\n:1\r\n",
    "a map": b"%1\r\n:0\r\n:1\r\n",
    "a fence that is text": b"*3\r\n:1\r\n$3\r\nabc\r\n:1200000\r\n",
    "a fence that is null": b"*3\r\n:1\r\n_\r\n:1200000\r\n",
    "a fence below zero": b"*3\r\n:1\r\n:-5\r\n:1200000\r\n",
    "a fence that is a fraction": b"*3\r\n:1\r\n,1.5\r\n:1200000\r\n",
    "a fence that is too large": b"*3\r\n:1\r\n:9223372036854775807\r\n:1200000\r\n",
    "a lease of years": b"*3\r\n:1\r\n:" + NOW + b"\r\n:900000000000000\r\n",
    "a lease of zero": b"*3\r\n:1\r\n:" + NOW + b"\r\n:0\r\n",
    "a lease that is text": b"*3\r\n:1\r\n:" + NOW + b"\r\n$1\r\nx\r\n",
    "an unknown kind": b"*3\r\n:7\r\n:1\r\n:1\r\n",
    "busy with text": b"*3\r\n:0\r\n$1\r\nx\r\n$1\r\ny\r\n",
    "text": b"$3\r\nabc\r\n",
    "empty text": b"$0\r\n\r\n",
    "text that is not quite a fence": b"$17\r\n" + NOW + b" \r\n",
    "a fence of zero": b"$1\r\n0\r\n",
    "a fence below zero, as text": b"$2\r\n-5\r\n",
    "a fence that is too large, as text": b"$19\r\n9223372036854775807\r\n",
    "garbage": b"\x16\x03\x01 this is not what you think\r\n\r\n",
    "a web page": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "a nested array": b"*1\r\n" * 60 + b":1\r\n",
}


@pytest.mark.parametrize("what", list(MALFORMED))
def test_a_malformed_reply_is_an_error_and_ends_the_connection(
    agent: Make, fake: Callable[..., FakeServer], what: str
) -> None:
    server = fake(MALFORMED[what])
    mine = agent(server.url, lease=1.2)
    with took() as time_of, pytest.raises(BackendError, match=r"unexpected reply|protocol"):
        mine.do(lambda client: client.lock("a").acquire(timeout=0))
    assert time_of.unstalled < 0.2 + 1.0, "the call hung"
    until(lambda: not server.in_use)
    assert mine.client.statistics().held == 0


@pytest.mark.parametrize("answer", [b"*0\r\n", b"$1\r\nx\r\n", b"*1\r\n*0\r\n"])
@pytest.mark.parametrize("verb", ["release", "renew", "inspect", "names", "break_hold", "detach"])
def test_no_operation_accepts_a_malformed_reply(
    agent: Make, fake: Callable[..., FakeServer], verb: str, answer: bytes
) -> None:
    server = fake(GRANT, answer)
    mine = agent(server.url, lease=1.2)
    hold = mine.do(lambda client: client.lock("a").acquire(timeout=0))
    verbs: dict[str, Callable[[Any], Any]] = {
        "release": lambda client: hold.release(),
        "renew": lambda client: hold.renew(),
        "detach": lambda client: hold.detach(),
        "inspect": lambda client: client.inspect("a"),
        "names": lambda client: client.names(),
        "break_hold": lambda client: client.break_hold("a", 1),
    }
    with pytest.raises(BackendError):
        mine.do(verbs[verb])
    server.answers = [b":1\r\n"]


def test_a_decreasing_fence_is_refused(agent: Make, fake: Callable[..., FakeServer]) -> None:
    busy = b"*3\r\n:0\r\n:1500000\r\n:" + NOW + b"\r\n"
    back = b"*3\r\n:1\r\n:1799999999999999\r\n:1200000\r\n"
    server = fake(busy, back)
    mine = agent(server.url, lease=6)
    with pytest.raises(BackendError, match="fence 1799999999999999 after it had issued 18"):
        mine.do(lambda client: client.lock("a").acquire(timeout=5))


def test_a_surplus_reply_is_not_taken_for_the_next_one(
    agent: Make, fake: Callable[..., FakeServer]
) -> None:
    server = fake(GRANT + b":0\r\n", GRANT)
    mine = agent(server.url, lease=1.2)
    hold = mine.do(lambda client: client.lock("a").acquire(timeout=0))
    server.answers = [b":1\r\n"]
    mine.do(lambda client: hold.release())  # the surplus reply means "not held"
    until(lambda: server.closed)


def endless_reply(start: bytes, more: bytes) -> Callable[[Any], None]:
    def answer(end: Any) -> None:
        end.settimeout(PATIENCE)
        end.sendall(start)
        while True:
            end.sendall(more)

    return answer


@pytest.mark.parametrize(
    "start, more",
    [
        (b"$4000000000\r\n", b"x" * 65536),
        (b"", b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n" * 1000),
    ],
)
def test_an_endless_reply_is_an_error_within_the_budget_and_does_not_fill_memory(
    agent: Make, fake: Callable[..., FakeServer], start: bytes, more: bytes
) -> None:
    server = fake(endless_reply(start, more))
    mine = agent(server.url, lease=1.2)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock("a").acquire(timeout=0))
    assert time_of.unstalled < 0.2 + 1.5
    until(lambda: not server.in_use)


def test_a_trickling_reply_ends_with_the_budget(
    agent: Make, fake: Callable[..., FakeServer]
) -> None:
    def trickle(end: Any) -> None:
        for byte in b"$100\r\n" + b"x" * 100:
            end.sendall(bytes([byte]))
            time.sleep(0.03)

    server = fake(trickle)
    mine = agent(server.url, lease=1.2)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock("a").acquire(timeout=0))
    assert time_of.unstalled < 0.2 + 0.7


def test_a_forged_wake_up_wakes_but_does_not_grant(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).try_acquire(timeout=0.5))
    until(lambda: other.client.statistics().waiting)
    (channel,) = until(lambda: redis_server.call("PUBSUB", "CHANNELS", "lf:wake:*"))
    (claim_id,) = other.client._core.ledger.waiting
    for message in (
        f"{claim_id} 1 30000000",
        f"{claim_id} x y",
        f"{claim_id} {hold.fence} 5000000",
        claim_id,
        "",
        b"\xff\xfe",
        f"{claim_id} 1 2 3 4",
    ):
        redis_server.call("PUBLISH", channel, message)
    assert waits.result(PATIENCE) is None
    assert hold.is_held
    mine.do(lambda client: hold.release())


def test_a_reply_and_a_wake_up_in_one_read_are_both_processed(
    redis_server: Any, network: Any, proxied: str, name: str, agents: Callable[..., Agent]
) -> None:
    """A thread receives replies and wake-ups on one connection. A wake-up may arrive right behind a
    reply, in the same read, and then poll() no longer reports it."""
    mine, other = agents("blocking", redis_server.url), agents("blocking", proxied, lease=1.5)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    transport = other.client._store._channel
    listening = [each for each in transport._connections if each.pushed is not None]
    # The wake-up follows the reply that the waiter reads next.
    (connection,), delivered, late = listening, threading.Event(), []
    feed = connection.reader.feed
    (claim_id,) = other.client._core.ledger.waiting

    class Reader:
        def __getattr__(self, attribute: str) -> Any:
            return getattr(reader, attribute)

        def feed(self, data: bytes) -> None:
            if pushed:
                late.append(not delivered.is_set())
            elif data[:1] == b"*":
                pushed.append(True)
                message = claim_id.encode()
                push = b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$%d\r\n%b\r\n" % (len(message), message)
                data += push
            feed(data)

    pushed: list[bool] = []
    reader, connection.reader = connection.reader, Reader()
    deliver = transport.wakeups.deliver
    transport.wakeups.deliver = lambda claim_id, grant: (delivered.set(), deliver(claim_id, grant))
    transport.wakeups.wake_all()  # the waiter claims again
    assert delivered.wait(PATIENCE) and not any(late), "the wake-up stayed in the reader"
    mine.do(lambda client: hold.release())
    waits.result(PATIENCE)


def test_a_waiter_whose_queue_was_evicted_is_enqueued_again(
    redis_server: Any, name: str, agents: Callable[..., Agent]
) -> None:
    """A single key of a name can be evicted: the waiter must not wait for ever."""
    mine, other = agents("blocking", redis_server.url), agents("blocking", redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: mine.do(lambda client: client.inspect(name)).waiters)
    assert redis_server.call("DEL", f"{key_of(f'default:{name}')}:q") == 1
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence

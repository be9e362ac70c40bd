"""Data that is not ours under our keys, and servers that are not Redis: said, never overwritten,
never believed."""

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
    "counter": lambda key: ("HSET", key, ".f", "many"),
}


@pytest.mark.parametrize("kind", list(FOREIGN))
def test_data_of_others_in_place_of_a_lock_is_named_and_left_alone(
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
def test_data_of_others_in_place_of_a_queue_is_named_and_left_alone(
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


def test_one_key_that_was_overwritten_does_not_cost_its_neighbours_their_renewal(
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


def test_keys_that_look_like_ours_but_are_not_do_not_break_names(
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
NONSENSE = {
    "a status": b"+OK\r\n",
    "nothing": b"_\r\n",
    "a number": b":1\r\n",
    "an empty list": b"*0\r\n",
    "a short list": b"*1\r\n:1\r\n",
    "a map": b"%1\r\n:0\r\n:1\r\n",
    "a fence that is text": b"*3\r\n:1\r\n$3\r\nabc\r\n:1200000\r\n",
    "a fence that is nothing": b"*3\r\n:1\r\n_\r\n:1200000\r\n",
    "a fence below zero": b"*3\r\n:1\r\n:-5\r\n:1200000\r\n",
    "a fence that is a fraction": b"*3\r\n:1\r\n,1.5\r\n:1200000\r\n",
    "a fence beyond all numbers": b"*3\r\n:1\r\n:9223372036854775807\r\n:1200000\r\n",
    "a lease of years": b"*3\r\n:1\r\n:" + NOW + b"\r\n:900000000000000\r\n",
    "a lease of nothing": b"*3\r\n:1\r\n:" + NOW + b"\r\n:0\r\n",
    "a lease that is text": b"*3\r\n:1\r\n:" + NOW + b"\r\n$1\r\nx\r\n",
    "an unknown kind": b"*3\r\n:7\r\n:1\r\n:1\r\n",
    "busy with text": b"*3\r\n:0\r\n$1\r\nx\r\n$1\r\ny\r\n",
    "text": b"$3\r\nabc\r\n",
    "text without a word": b"$0\r\n\r\n",
    "text that is not quite a fence": b"$17\r\n" + NOW + b" \r\n",
    "a fence of zero": b"$1\r\n0\r\n",
    "a fence below zero, as text": b"$2\r\n-5\r\n",
    "a fence beyond all numbers, as text": b"$19\r\n9223372036854775807\r\n",
    "garbage": b"\x16\x03\x01 this is not what you think\r\n\r\n",
    "a web page": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "a nest": b"*1\r\n" * 60 + b":1\r\n",
}


@pytest.mark.parametrize("what", list(NONSENSE))
def test_an_answer_that_makes_no_sense_is_an_error_and_ends_the_connection(
    agent: Make, fake: Callable[..., FakeServer], what: str
) -> None:
    server = fake(NONSENSE[what])
    mine = agent(server.url, lease=1.2)
    with took() as time_of, pytest.raises(BackendError, match=r"no sense|protocol"):
        mine.do(lambda client: client.lock("a").acquire(timeout=0))
    assert time_of.seconds < 0.2 + 1.0, "a hang"
    until(lambda: server.closed == server.accepted)
    assert mine.client.statistics().held == 0


@pytest.mark.parametrize("answer", [b"*0\r\n", b"$1\r\nx\r\n", b"*1\r\n*0\r\n"])
@pytest.mark.parametrize("verb", ["release", "renew", "inspect", "names", "break_hold", "detach"])
def test_no_verb_believes_nonsense(
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


def test_a_fence_that_goes_back_is_not_believed(
    agent: Make, fake: Callable[..., FakeServer]
) -> None:
    busy = b"*3\r\n:0\r\n:1500000\r\n:" + NOW + b"\r\n"
    back = b"*3\r\n:1\r\n:1799999999999999\r\n:1200000\r\n"
    server = fake(busy, back)
    mine = agent(server.url, lease=6)
    with pytest.raises(BackendError, match="fence 1799999999999999 after it had told of 18"):
        mine.do(lambda client: client.lock("a").acquire(timeout=5))


def test_one_answer_too_many_is_not_taken_for_the_next_ones(
    agent: Make, fake: Callable[..., FakeServer]
) -> None:
    server = fake(GRANT + b":0\r\n", GRANT)
    mine = agent(server.url, lease=1.2)
    hold = mine.do(lambda client: client.lock("a").acquire(timeout=0))
    server.answers = [b":1\r\n"]
    mine.do(lambda client: hold.release())  # the old answer said that it was not held
    until(lambda: server.closed)


def endless(start: bytes, more: bytes) -> Callable[[Any], None]:
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
def test_an_answer_without_end_is_an_error_within_the_budget_and_without_filling_memory(
    agent: Make, fake: Callable[..., FakeServer], start: bytes, more: bytes
) -> None:
    server = fake(endless(start, more))
    mine = agent(server.url, lease=1.2)
    with took() as time_of, pytest.raises((BackendError, AcquireTimeout)):
        mine.do(lambda client: client.lock("a").acquire(timeout=0))
    assert time_of.seconds < 0.2 + 1.5
    until(lambda: server.closed == server.accepted)


def test_an_answer_that_trickles_is_over_with_the_budget(
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
    assert time_of.seconds < 0.2 + 0.7


def test_a_bell_that_is_forged_wakes_but_does_not_grant(
    agent: Make, redis_server: Any, name: str
) -> None:
    mine, other = agent(redis_server.url), agent(redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).try_acquire(timeout=0.5))
    until(lambda: other.client.statistics().waiting)
    (channel,) = until(lambda: redis_server.call("PUBSUB", "CHANNELS", "lf:wake:*"))
    (claim_id,) = other.client.core.ledger.waiting
    for said in (
        f"{claim_id} 1 30000000",
        f"{claim_id} x y",
        f"{claim_id} {hold.fence} 5000000",
        claim_id,
        "",
        b"\xff\xfe",
        f"{claim_id} 1 2 3 4",
    ):
        redis_server.call("PUBLISH", channel, said)
    assert waits.result(PATIENCE) is None
    assert hold.is_held
    mine.do(lambda client: hold.release())


def test_an_answer_and_a_bell_in_one_read_are_both_heard(
    redis_server: Any, network: Any, far: str, name: str, agents: Callable[..., Agent]
) -> None:
    """A thread hears its bells on the connection on which it asks: one may come right behind an
    answer, and no poll will tell of it any more."""
    mine, other = agents("blocking", redis_server.url), agents("blocking", far, lease=1.5)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: other.client.statistics().waiting)
    transport = other.client._backend._transport
    listening = [link for link in transport._links if link.pushed is not None]
    # The answer that the waiter reads next has its bell behind it.
    (ear,), heard, late = listening, threading.Event(), []
    feed = ear.reader.feed
    (claim_id,) = other.client.core.ledger.waiting

    class Reader:
        def __getattr__(self, word: str) -> Any:
            return getattr(reader, word)

        def feed(self, data: bytes) -> None:
            if pushed:
                late.append(not heard.is_set())
            elif data[:1] == b"*":
                pushed.append(True)
                bell = claim_id.encode()
                push = b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$%d\r\n%b\r\n" % (len(bell), bell)
                data += push
            feed(data)

    pushed: list[bool] = []
    reader, ear.reader = ear.reader, Reader()
    wakes = transport.wakeups.wake
    transport.wakeups.wake = lambda claim_id, grant: (heard.set(), wakes(claim_id, grant))
    transport.wakeups.wake_all()  # it asks again
    assert heard.wait(PATIENCE) and not any(late), "the bell stayed in the reader"
    mine.do(lambda client: hold.release())
    waits.result(PATIENCE)


def test_a_place_without_its_queue_is_taken_anew(
    redis_server: Any, name: str, agents: Callable[..., Agent]
) -> None:
    """One of a name's keys can be evicted alone: who waits must not wait for ever."""
    mine, other = agents("blocking", redis_server.url), agents("blocking", redis_server.url)
    hold = mine.do(lambda client: client.lock(name).acquire())
    waits = other.later(lambda client: client.lock(name).acquire(timeout=PATIENCE))
    until(lambda: mine.do(lambda client: client.inspect(name)).waiters)
    assert redis_server.call("DEL", f"{key_of(f'default:{name}')}:q") == 1
    mine.do(lambda client: hold.release())
    assert waits.result(PATIENCE).fence > hold.fence

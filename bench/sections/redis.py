"""Uncontended cycles on Redis: against a bare socket, and against other libraries' locks.

The limit is a blocking socket that sends two pre-encoded commands per cycle and reads the replies
without parsing them. It blocks for each reply; a lockfast thread that is the only user spins first,
so a spinning socket is measured too. "Plain scripts" are the least that a lock must do (SET NX PX;
compare and delete); "our scripts" are lockfast's own, with fences and queue. Every lease is 30 s.
Other libraries' locks are made for each cycle, as lockfast's are.
"""

from __future__ import annotations

import asyncio
import select

import redis.asyncio
import redis_lock

import lockfast
import lockfast.aio
from lockfast.stores.redis.connections import Spin
from lockfast.stores.redis.scripts import CLAIM, RELEASE

from ._line import Line, number, times
from ._redis import LEASE, Bare, Server, packed
from ._rounds import Rounds, Subject, cycles, gathered, interleaved, threads

OF_THE_SOCKET = 0.70
OF_REDIS_PY = 2.0
CONCURRENT_OF_REDIS_PY = 8.0
THREADS = 16
TASKS = 100
PLAIN_CLAIM = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
PLAIN_RELEASE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)
CLAIM_ID = "0123456789abcdef0123456789abcdef-1"


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.06) if quick else (15, 0.2)
    with Server() as server:
        return [
            *_one_thread(server, rounds, seconds),
            *_sixteen_threads(server, rounds, 2 * seconds),
            *_tasks(server, 1, rounds, seconds),
            *_tasks(server, TASKS, rounds, 2 * seconds),
        ]


# ---- one thread ---------------------------------------------------------------------------------


def _one_thread(server: Server, rounds: int, seconds: float) -> list[Line]:
    client, plain = lockfast.connect(server.url), server.client()
    subjects = {
        "lockfast": cycles(lambda: client.lock("orders:42")),
        "socket, plain scripts": _plain_scripts(server.port, "bare:1"),
        "spinning socket, plain scripts": _plain_scripts(server.port, "bare:0", spins=True),
        "socket, our scripts": _our_scripts(server.port),
        "redis-py Lock": cycles(lambda: plain.lock("theirs:1", timeout=LEASE)),
        "python-redis-lock": cycles(lambda: redis_lock.Lock(plain, "theirs:2", expire=LEASE)),
        "python-redis-lock, renewing": cycles(
            lambda: redis_lock.Lock(plain, "theirs:3", expire=LEASE, auto_renewal=True)
        ),
    }
    found = interleaved(subjects, rounds=rounds, seconds=seconds)
    client.close()
    plain.close()
    what = "1 thread: with client.lock(name)"
    return [
        _line(found, what, "socket, plain scripts", OF_THE_SOCKET),
        _line(found, what, "spinning socket, plain scripts"),
        _line(found, what, "socket, our scripts"),
        _line(found, what, "redis-py Lock", OF_REDIS_PY),
        _line(found, what, "python-redis-lock"),
        _line(found, what, "python-redis-lock, renewing"),
    ]


def _line(
    found: Rounds, what: str, other: str, least: float | None = None, concurrent: int = 1
) -> Line:
    """``concurrent`` cycles were counted as one, because they ran at the same time."""
    against = f"{other} {number(concurrent * found.per_second(other))}/s"
    ratio, rate = found.faster("lockfast", other), concurrent * found.per_second("lockfast")
    if least is None:
        return Line(what, rate, "cycles/s", against, f"{ratio:.2f}×")
    return times(what, rate, "cycles/s", against, ratio, least)


def _plain_scripts(port: int, key: str, spins: bool = False) -> Subject:
    shas = []
    bare = Bare(port)
    for source in (PLAIN_CLAIM, PLAIN_RELEASE):
        shas.append(bare.ask(packed("SCRIPT", "LOAD", source)).split()[1].decode())
    claim = packed("EVALSHA", shas[0], "1", key, CLAIM_ID, str(LEASE * 1000))
    return _two_commands(bare, claim, packed("EVALSHA", shas[1], "1", key, CLAIM_ID), spins)


def _our_scripts(port: int) -> Subject:
    bare = Bare(port)
    for script in (CLAIM, RELEASE):
        bare.ask(packed("SCRIPT", "LOAD", script.source))
    key, lease = "lf:{default:bare:2}", str(LEASE * 1_000_000)
    keys = ("3", key, f"{key}:q", f"{key}:w")
    shown = (CLAIM_ID, lease, "1", "1", f"{lease} 1 1 . host 12345 MainThread")
    claim = packed("EVALSHA", CLAIM.sha, *keys, *shown)
    return _two_commands(bare, claim, packed("EVALSHA", RELEASE.sha, *keys, CLAIM_ID))


def _two_commands(bare: Bare, claim: bytes, release: bytes, spins: bool = False) -> Subject:
    bare.ask(claim)
    assert bare.ask(release) == b":1\r\n", "a lock that does not work is no limit"
    send, receive = bare.socket.sendall, bare.socket.recv

    def cycle(count: int) -> None:
        for _ in range(count):
            send(claim)
            receive(4096)
            send(release)
            receive(4096)

    poller = select.poll()
    poller.register(bare.socket, select.POLLIN)
    spin = Spin(poller.poll).poll

    def spinning(count: int) -> None:
        for _ in range(count):
            send(claim)
            spin()
            receive(4096)
            send(release)
            spin()
            receive(4096)

    return spinning if spins else cycle


# ---- 16 threads ---------------------------------------------------------------------------------


def _sixteen_threads(server: Server, rounds: int, seconds: float) -> list[Line]:
    plain = server.client()
    with (
        lockfast.connect(server.url) as client,
        threads(THREADS, lambda index: cycles(lambda: client.lock(f"orders:{index}"))) as ours,
        threads(THREADS, lambda index: _plain_scripts(server.port, f"bare:{index}")) as bare,
        threads(
            THREADS, lambda index: cycles(lambda: plain.lock(f"a:{index}", timeout=LEASE))
        ) as theirs,
    ):
        subjects = {"lockfast": ours, "16 sockets, plain scripts": bare, "redis-py Lock": theirs}
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
    plain.close()
    what = f"{THREADS} threads, a name each: together"
    return [
        _line(found, what, "redis-py Lock", CONCURRENT_OF_REDIS_PY, THREADS),
        _line(found, what, "16 sockets, plain scripts", None, THREADS),
    ]


# ---- asyncio ------------------------------------------------------------------------------------


def _tasks(server: Server, tasks: int, rounds: int, seconds: float) -> list[Line]:
    with asyncio.Runner() as runner:
        ours = lockfast.aio.connect(server.url)
        theirs = redis.asyncio.Redis(host="127.0.0.1", port=server.port)
        subjects = {
            "lockfast": gathered(runner, tasks, lambda index: ours.lock(f"orders:{index}")),
            "redis.asyncio Lock": gathered(
                runner, tasks, lambda index: theirs.lock(f"b:{index}", timeout=LEASE)
            ),
        }
        found = interleaved(subjects, rounds=rounds, seconds=seconds)
        runner.run(ours.close())
        runner.run(theirs.aclose())
    if tasks == 1:
        return [_line(found, "1 task: async with aclient.lock(name)", "redis.asyncio Lock")]
    what = f"{tasks} tasks, a name each: together"
    return [_line(found, what, "redis.asyncio Lock", CONCURRENT_OF_REDIS_PY, tasks)]

"""Every other primitive against the plain lock: cycles, multi-locks, writers among readers.

A read-write lock and a semaphore follow the same law as a lock, so they should cost the same. The
multi-lock is measured against the same names locked one inside the other. With 64 readers and 4
writers the question is the order of service: a lock that admits readers while others read may
starve a writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import lockfast
from lockfast.cli.bench_contest import Acquire, percentile

from ._contests import Contest, Entrance
from ._line import Line, at_most, number, times
from ._redis import Server
from ._rounds import cycles, interleaved

WITHIN = 1.3
BATCH_FASTER = 5.0
SIZES = (2, 10, 100)
PROCESSES = 4
READERS = 16  # in each process, beside one writer
# A caller that asked so much later came later, however the requests travelled.
SURELY_LATER = 0.05


def measure(quick: bool) -> list[Line]:
    rounds, seconds = (4, 0.06) if quick else (15, 0.2)
    with Server() as server:
        return [
            *_cycles("memory", "memory://", rounds, seconds),
            *_cycles("Redis", server.url, rounds, seconds),
            *_batch_of_names(server.url, rounds, seconds),
            *_readers_and_writers(server.url, 1.0 if quick else 4.0),
        ]


# ---- one at a time ------------------------------------------------------------------------------


def _cycles(store: str, url: str, rounds: int, seconds: float) -> list[Line]:
    client = lockfast.connect(url)
    subjects = {
        "a plain lock": cycles(lambda: client.lock("plain")),
        "read": cycles(lambda: client.rwlock("shared").read()),
        "write": cycles(lambda: client.rwlock("shared").write()),
        "a permit of 5": cycles(lambda: client.semaphore("five", 5)),
    }
    found = interleaved(subjects, rounds=rounds, seconds=seconds)
    client.close()
    against = f"a plain lock {number(found.per_second('a plain lock'))}/s"
    return [
        times(
            f"{store}: {what}",
            found.per_second(what),
            "cycles/s",
            against,
            found.faster(what, "a plain lock"),
            1 / WITHIN,
        )
        for what in ("read", "write", "a permit of 5")
    ]


# ---- multi-locks --------------------------------------------------------------------------------


def _batch_of_names(url: str, rounds: int, seconds: float) -> list[Line]:
    lines = []
    with lockfast.connect(url) as client:
        for size in SIZES:
            names = [f"part:{number}" for number in range(size)]
            subjects = {
                "together": cycles(lambda names=names: client.multi_lock(*names)),  # type: ignore[misc]
                "one by one": cycles(lambda names=names: _nested(client, names)),  # type: ignore[misc]
            }
            found = interleaved(subjects, rounds=rounds, seconds=seconds)
            what, rate = f"multi-lock of {size} names", found.per_second("together")
            ratio = found.faster("together", "one by one")
            against = f"one after the other {number(found.per_second('one by one'))}/s"
            if size == max(SIZES):
                lines.append(times(what, rate, "cycles/s", against, ratio, BATCH_FASTER))
            else:
                lines.append(Line(what, rate, "cycles/s", against, f"{ratio:.2f}×"))
    return lines


@contextlib.contextmanager
def _nested(client: lockfast.Client, names: list[str]) -> Any:
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(client.lock(name))
        yield


# ---- writers among readers ----------------------------------------------------------------------


def _readers_and_writers(url: str, seconds: float) -> list[Line]:
    contest = Contest("rwlock", PROCESSES * (READERS + 1) - 1, PROCESSES)
    found = contest.run(_entrance, url, settle=0.0, seconds=seconds, work=0.002)
    visits = [
        (index == 0, asked, acquired)
        for worker in found.workers
        for index, noted in enumerate(worker.visits)
        for _, asked, acquired, _ in noted
    ]
    visits.sort(key=lambda visit: visit[2])
    waits: dict[bool, list[float]] = {True: [], False: []}
    overtaken = 0
    waiting: list[float] = []  # when writers asked that were granted later
    for writes, asked, acquired in reversed(visits):  # from the youngest grant to the oldest
        waits[writes].append((acquired - asked) * 1e3)
        if writes:
            waiting.append(asked)
        else:
            # Granted before these writers: had it asked later than one of them?
            waiting = [one for one in waiting if one > asked - 10.0]
            overtaken += any(asked > one + SURELY_LATER for one in waiting)
    writers, readers = percentile(waits[True], 0.5), percentile(waits[False], 0.5)
    most = percentile(waits[True], 0.99)
    title = f"{PROCESSES * READERS} readers, {PROCESSES} writers"
    against = f"readers {number(readers)} ms"
    return [
        at_most(0, f"{title}: readers that overtook a writer", overtaken, f"of {len(visits)}"),
        Line(f"{title}: a writer's wait, p50", writers, "ms", against, f"{writers / readers:.2f}×"),
        Line(f"{title}: a writer's wait, p99", most, "ms"),
    ]


@contextlib.contextmanager
def _entrance(subject: str, process: int, url: str) -> Entrance:
    """The first contender of each process writes, the others read."""
    with lockfast.connect(url) as client:

        def acquire_of(index: int) -> Acquire:
            lock = client.rwlock("contended")
            half = lock.read() if index else lock.write()

            def acquire() -> tuple[int, Callable[[], object]]:
                hold = half.acquire()
                return hold.fence, hold.release

            return acquire

        yield acquire_of

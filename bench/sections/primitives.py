"""Every other primitive against the plain lock: cycles, multi-locks, writers among readers.

A read-write lock and a semaphore follow the same law as a lock, so they should cost the same. The
multi-lock is measured against the same names locked one inside the other. With 64 readers and 4
writers the question is the order of service: a lock that admits readers while others read may
starve a writer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import lockfast
from lockfast.cli.bench_outcome import percentile

from ._line import Line, at_most, number, times
from ._processes import Ready, together, wait_until
from ._redis import Server
from ._rounds import Subject, interleaved

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
        "a plain lock": _cycle(lambda: client.lock("plain")),
        "read": _cycle(lambda: client.rwlock("shared").read()),
        "write": _cycle(lambda: client.rwlock("shared").write()),
        "a permit of 5": _cycle(lambda: client.semaphore("five", 5)),
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


def _cycle(made: Callable[[], Any]) -> Subject:
    def cycle(count: int) -> None:
        for _ in range(count):
            with made():
                pass

    return cycle


# ---- multi-locks --------------------------------------------------------------------------------


def _batch_of_names(url: str, rounds: int, seconds: float) -> list[Line]:
    lines = []
    with lockfast.connect(url) as client:
        for size in SIZES:
            names = [f"part:{number}" for number in range(size)]
            subjects = {
                "together": _cycle(lambda names=names: client.multi_lock(*names)),  # type: ignore[misc]
                "one by one": _cycle(lambda names=names: _nested(client, names)),  # type: ignore[misc]
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
    visits = [
        visit
        for noted in together(_contend, PROCESSES, url, seconds, lasts=seconds)
        for visit in noted
    ]
    visits.sort(key=lambda visit: visit[1])
    waits: dict[bool, list[float]] = {True: [], False: []}
    overtaken = 0
    waiting: list[tuple[bool, int, float, float]] = []
    for visit in reversed(visits):  # from the youngest grant to the oldest
        writes, _, asked, acquired = visit
        waits[writes].append((acquired - asked) * 1e3)
        if writes:
            waiting.append(visit)
        else:
            # Granted before these writers: had it asked later than one of them?
            waiting = [one for one in waiting if one[2] > asked - 10.0]
            overtaken += any(asked > one[2] + SURELY_LATER for one in waiting)
    writers, readers = percentile(waits[True], 0.5), percentile(waits[False], 0.5)
    most = percentile(waits[True], 0.99)
    title = f"{PROCESSES * READERS} readers, {PROCESSES} writers"
    against = f"readers {number(readers)} ms"
    return [
        at_most(0, f"{title}: readers that overtook a writer", overtaken, f"of {len(visits)}"),
        Line(f"{title}: a writer's wait, p50", writers, "ms", against, f"{writers / readers:.2f}×"),
        Line(f"{title}: a writer's wait, p99", most, "ms"),
    ]


def _contend(
    index: int, ready: Ready, url: str, seconds: float
) -> list[tuple[bool, int, float, float]]:
    """The visits of this process's threads: writes, fence, asked, acquired."""
    client = lockfast.connect(url)
    lock = client.rwlock("contended")
    visits: list[tuple[bool, int, float, float]] = []

    def work(writes: bool) -> None:
        half = lock.write() if writes else lock.read()
        wait_until(begin)
        while (asked := time.monotonic()) < begin + seconds:
            with half as hold:
                visits.append((writes, hold.fence, asked, time.monotonic()))
                time.sleep(0.002)

    threads = [threading.Thread(target=work, args=(number == 0,)) for number in range(READERS + 1)]
    begin = ready()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    return visits

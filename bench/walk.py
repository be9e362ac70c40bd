"""Count the functions that one acquire and release enters: ``python bench/walk.py [URL] [-v]``.

Three walks on Redis, sync, are traced; without a URL on a server of its own.

- uncontended: ``with client.lock("a"): pass``, with the connection open and the scripts loaded
- hand-over: a thread waits for a lock that another client holds; its acquire, from call to return,
  and the holder's release. The waiter's thread has waited before
- first hand-over: the same, but the waiter's thread has only acquired before, never waited

Counted are functions of lockfast, in every thread that takes part. C functions, other libraries and
generated code (a dataclass's ``__init__``) are not; nor are comprehensions, which Python 3.12
inlines. Each walk is taken several times, and the shortest counts: a slow reply or a tick of the
keeper adds functions that are not on the way.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import lockfast

WHEEL = f"{Path(lockfast.__file__).parent}/"
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
TIMES = 5
PATIENCE = 20.0
SETTLE = 0.05  # from being in the queue until the waiter sleeps


@dataclass(frozen=True, slots=True)
class Steps:
    """Distinct functions in the order of their first call, as ``core/law.py Law.grant``."""

    functions: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.split()[0] for step in self.functions))

    def __str__(self) -> str:
        return f"{len(self.files)} files, {len(self.functions)} functions"


@dataclass(frozen=True, slots=True)
class Walk:
    uncontended: Steps
    handover: Steps
    first_handover: Steps


def walk(url: str) -> Walk:
    """Trace the walks on this Redis server."""
    recorder = Recorder()
    with recorder.installed():
        uncontended = [_uncontended(url, recorder) for _ in range(TIMES)]
        handovers = [_handovers(url, recorder) for _ in range(TIMES)]
    first, later = zip(*handovers, strict=True)
    return Walk(_shortest(uncontended), _shortest(later), _shortest(first))


class Recorder:
    """A profile function that notes the functions entered between `begin` and `end`."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, None] | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Trace the threads that are started inside, and those that call `joined`."""
        before = threading.getprofile()
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(before)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Trace the calling thread too."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        codes, code = self._codes, frame.f_code
        if event == "call" and codes is not None and code.co_filename.startswith(WHEEL):
            codes[code] = None

    def begin(self) -> None:
        self._codes = {}

    def end(self) -> Steps:
        codes, self._codes = self._codes or {}, None
        steps = [f"{code.co_filename.removeprefix(WHEEL)} {code.co_qualname}" for code in codes]
        return Steps(tuple(dict.fromkeys(step for step in steps if not step.endswith(INLINED))))


def _shortest(walks: list[Steps] | tuple[Steps, ...]) -> Steps:
    return min(walks, key=lambda steps: len(steps.functions))


def _uncontended(url: str, recorder: Recorder) -> Steps:
    with lockfast.connect(url) as client:
        for _ in range(3):
            with client.lock("a"):
                pass
        with recorder.joined():
            recorder.begin()
            with client.lock("a"):
                pass
            return recorder.end()


def _handovers(url: str, recorder: Recorder) -> tuple[Steps, Steps]:
    """Trace the first hand-over to a thread, and a later one."""
    with lockfast.connect(url) as ours, lockfast.connect(url) as theirs, _Thread() as thread:

        def acquire() -> lockfast.Hold:
            return theirs.lock("a").acquire()

        thread.start(acquire)
        thread.result().release()
        first, *later = (_handover(ours, thread, acquire, recorder) for _ in range(3))
        return first, _shortest(later)


def _handover(
    ours: lockfast.Client, thread: _Thread, acquire: Callable[[], lockfast.Hold], recorder: Recorder
) -> Steps:
    hold = ours.lock("a").acquire()
    recorder.begin()
    thread.start(acquire)
    until = time.monotonic() + PATIENCE
    while not ours.inspect("a").waiters:  # in this thread, which is not traced yet
        if time.monotonic() > until:
            raise TimeoutError("no waiter arrived in the queue")
        time.sleep(0.01)
    time.sleep(SETTLE)
    with recorder.joined():
        hold.release()
    granted = thread.result()
    steps = recorder.end()
    granted.release()
    return steps


class _Thread:
    """Another thread, which runs one function after the other."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[Callable[[], lockfast.Hold] | None] = queue.Queue()
        self._results: queue.Queue[lockfast.Hold | Exception] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Thread:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._tasks.put(None)
        self._thread.join(PATIENCE)

    def start(self, task: Callable[[], lockfast.Hold]) -> None:
        self._tasks.put(task)

    def result(self) -> lockfast.Hold:
        result = self._results.get(timeout=PATIENCE)
        if isinstance(result, Exception):
            raise result
        return result

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self._results.put(task())
            except Exception as error:  # raised where the result is read
                self._results.put(error)


def main() -> int:
    parser = argparse.ArgumentParser(description="count the functions of an acquire and release")
    parser.add_argument("url", nargs="?", help="a Redis server (default: start one)")
    parser.add_argument("-v", "--verbose", action="store_true", help="list them in call order")
    options = parser.parse_args()
    if options.url:
        found = walk(options.url)
    else:
        from lab.servers.redis_server import RedisServer

        with RedisServer() as server:
            found = walk(server.url)
    for title, steps in (
        ("uncontended", found.uncontended),
        ("hand-over", found.handover),
        ("first hand-over", found.first_handover),
    ):
        print(f"{title + ':':<17}{steps}")
        if options.verbose:
            print(*(f"    {step}" for step in steps.functions), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

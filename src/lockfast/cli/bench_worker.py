"""One process of `lockfast bench`, with its contending threads. It ends when its pipe does.

    told  Task             connect, start the threads; each makes one cycle, so that it has its
                           connection. Answered by True
    told  (begin, end)     acquire and release until the end. Answered by Noted
    told  nothing more     stop at once, leave the queue, end: it cannot outlive the command

What goes wrong is answered by a `Trouble`. Moments are on CLOCK_MONOTONIC, which all processes of a
host share. The URL comes through the pipe, so its password is in nobody's list of processes.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from lockfast.cli.bench_messages import Noted, Task, Trouble, Visits
from lockfast.core.ports import Backend, Signal
from lockfast.errors import AcquireTimeout, LockfastError
from lockfast.sync import Client, connect

if TYPE_CHECKING:
    from lockfast.stores import Store

# How long a contender waits for its turn before it says that it did not come.
PATIENCE = 10.0
# How long the threads may take to leave when nobody wants to know any more.
LEAVING = 2.0
# How often is looked whether a contender is in trouble: while they start and end, and at work.
POLL, LOOK = 0.005, 0.1
# Each of these is one request to the store, or one transaction.
VERBS = {"claim", "claim_now", "claim_batch", "release", "release_now", "release_batch", "renew"}
VERBS |= {"leave", "transfer", "shrink", "resize", "inspect", "names", "break_hold"}

now = time.monotonic


class Gone(Exception):
    """Nobody wants to know any more."""


class Contest:
    """The contenders of this process, in one round."""

    def __init__(self, task: Task, client: Client) -> None:
        self._task = task
        self._client = client
        self._begin = threading.Event()
        self._begins = 0.0
        self._until = math.inf
        self._warm = 0
        self._mutex = threading.Lock()
        self._trouble: str | None = None
        self._visits = [Visits() for _ in range(task.contenders)]
        self._threads = [
            threading.Thread(target=self._contend, args=(visits,), daemon=True)
            for visits in self._visits
        ]

    def warm_up(self, pipe: Connection) -> None:
        for thread in self._threads:
            thread.start()
        while self._warm < len(self._threads):
            self._pause(pipe, POLL)

    def run(self, pipe: Connection, begin: float, end: float, count: Callable[[], int]) -> Noted:
        self._begins, self._until = begin, end
        self._begin.set()
        self._pause_until(pipe, begin + self._task.settle)
        requests, cpu = count(), time.process_time()
        self._pause_until(pipe, end)
        requests, cpu = count() - requests, time.process_time() - cpu
        for thread in self._threads:
            while thread.is_alive() and now() < end + 2 * PATIENCE:
                self._pause(pipe, POLL)
        self._pause(pipe, 0.0)
        return Noted(self._visits, requests, cpu)

    def leave(self) -> None:
        """Whoever still waits is served soon, as all others leave too."""
        self._until = 0.0
        self._begin.set()
        until = now() + LEAVING
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(until - now(), 0.0))

    def _pause_until(self, pipe: Connection, moment: float) -> None:
        while (left := moment - now()) > 0:
            self._pause(pipe, min(left, LOOK))

    def _pause(self, pipe: Connection, seconds: float) -> None:
        """Nothing is said meanwhile; if the pipe has something, it is its end."""
        if pipe.poll(seconds):
            raise Gone
        if self._trouble is not None:
            raise LockfastError(self._trouble)

    def _contend(self, visits: Visits) -> None:
        lock = self._client.lock(self._task.name, timeout=PATIENCE)
        try:
            lock.acquire().release()
            with self._mutex:
                self._warm += 1
            self._begin.wait()
            time.sleep(max(self._begins - now(), 0.0))
            while now() < self._until:
                try:
                    hold = lock.acquire()
                except AcquireTimeout:
                    visits.given_up += 1
                    continue
                visits.acquired.append(now())
                visits.fences.append(hold.fence)
                visits.released.append(now())
                hold.release()
        except Exception as error:  # of a thread: told where the round is answered
            self._trouble = said(error)


def round_of(pipe: Connection, task: Task) -> None:
    requests = itertools.count()
    counted = 0

    def count() -> int:
        """How many so far. Asking counts as well, which is taken off again."""
        nonlocal counted
        counted += 1
        return next(requests) - counted + 1

    with closing(connect(task.url, namespace=task.namespace)) as plain:
        store = CountedStore(plain.store, requests)
        with Client.on(store, lease=plain.lease, namespace=task.namespace) as client:
            contest = Contest(task, client)
            try:
                contest.warm_up(pipe)
                pipe.send(True)
                begin, end = pipe.recv()
                noted = contest.run(pipe, begin, end, count)
            finally:
                contest.leave()
    pipe.send(noted)


# ---- counting -------------------------------------------------------------------------------


class CountedStore:
    """A store whose blocking backend counts what it is asked."""

    def __init__(self, store: Store, requests: itertools.count[int]) -> None:
        self.url = store.url
        self.tasks = store.tasks
        self._store = store
        self._requests = requests

    def blocking(self, signal: Callable[[], Signal]) -> Backend:
        return cast(Backend, Counted(self._store.blocking(signal), self._requests))


class Counted:
    """A backend that passes everything on. A verb is wrapped once, so that counting costs a
    fraction of a microsecond; an answer of None says that nothing was asked, or will be again."""

    def __init__(self, backend: Backend, requests: itertools.count[int]) -> None:
        self._backend = backend
        self._requests = requests

    def __getattr__(self, word: str) -> Any:
        found = getattr(self._backend, word)
        if word in VERBS:
            found = _counted(found, self._requests)
        if word != "capabilities":  # it may change when the store was spoken to
            setattr(self, word, found)
        return found


def _counted(verb: Callable[..., Any], requests: itertools.count[int]) -> Callable[..., Any]:
    def ask(*said: Any) -> Any:
        answer = verb(*said)
        if answer is not None:
            next(requests)  # one step of the interpreter: threads cannot come between
        return answer

    return ask


# ---- the process ----------------------------------------------------------------------------


def said(error: BaseException) -> str:
    """In one line; ours say all in their message."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LockfastError) else f"{type(error).__name__}: {text}"


def main() -> None:
    # What there is to warn of, the command itself was told when it looked at the store.
    logging.disable(logging.CRITICAL)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    try:
        while True:
            task = pipe.recv()
            try:
                round_of(pipe, task)
            except (Gone, EOFError):
                return
            except Exception as error:  # the edge of a process: its parent tells it
                pipe.send(Trouble(said(error)))
    except (EOFError, OSError):
        pass  # nobody is there any more


if __name__ == "__main__":
    main()

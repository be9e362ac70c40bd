"""A worker process of `lockfast bench`, with its contending threads. Messages on its pipe:

    Task            connect and start the threads; each acquires and releases once, so that it has
                    its connection. Reply: True
    (begin, end)    acquire and release until the end. Reply: WorkerResult
    end of file     stop at once, leave the queue, exit: a worker cannot outlive the command

The reply after an error is a `WorkerFailure`. Times are on CLOCK_MONOTONIC, which all processes of
a host share. The URL comes through the pipe, so its password is not in the process list.
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

from lockfast.cli.bench_messages import Task, Visits, WorkerFailure, WorkerResult
from lockfast.core.ports import Backend, Signal
from lockfast.errors import AcquireTimeout, LockfastError
from lockfast.sync import Client, connect

if TYPE_CHECKING:
    from lockfast.stores import Store

PATIENCE = 10.0  # acquire timeout of a contender, which then counts it and tries again
LEAVING = 2.0  # limit for the threads to leave the queue after the command has closed the pipe
# Interval of checking for failed contenders: while threads start and end, and while they work.
POLL, WORK_POLL = 0.005, 0.1
# Each call of these is one request to the store, or one transaction.
VERBS = {"claim", "claim_now", "claim_batch", "release", "release_now", "release_batch", "renew"}
VERBS |= {"leave", "transfer", "shrink", "resize", "inspect", "names", "break_hold"}

now = time.monotonic


class Cancelled(Exception):
    """The command has closed the pipe."""


class Contest:
    """Contenders of this process in one round."""

    def __init__(self, task: Task, client: Client) -> None:
        self._task, self._client = task, client
        self._begin = threading.Event()
        self._begins, self._until = 0.0, math.inf
        self._warm = 0
        self._mutex = threading.Lock()
        self._failure: str | None = None
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

    def run(
        self, pipe: Connection, begin: float, end: float, count: Callable[[], int]
    ) -> WorkerResult:
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
        return WorkerResult(self._visits, requests, cpu)

    def leave(self) -> None:
        """Stop the threads. One that still waits is served soon, as all others leave as well."""
        self._until = 0.0
        self._begin.set()
        until = now() + LEAVING
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(until - now(), 0.0))

    def _pause_until(self, pipe: Connection, moment: float) -> None:
        while (left := moment - now()) > 0:
            self._pause(pipe, min(left, WORK_POLL))

    def _pause(self, pipe: Connection, seconds: float) -> None:
        """Wait. No message is due in this phase, so data on the pipe can only be end of file."""
        if pipe.poll(seconds):
            raise Cancelled
        if self._failure is not None:
            raise LockfastError(self._failure)

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
                    visits.timeouts += 1
                    continue
                visits.acquired.append(now())
                visits.fences.append(hold.fence)
                visits.released.append(now())
                hold.release()
        except Exception as error:  # in a thread: the main thread reports it
            self._failure = error_line(error)


def run_round(pipe: Connection, task: Task) -> None:
    requests = itertools.count()
    counted = 0

    def count() -> int:
        """Number of requests so far. Reading the counter advances it, which is subtracted."""
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
                result = contest.run(pipe, begin, end, count)
            finally:
                contest.leave()
    pipe.send(result)


class CountedStore:
    """A store whose blocking backend counts requests."""

    def __init__(self, store: Store, requests: itertools.count[int]) -> None:
        self.url, self.tasks = store.url, store.tasks
        self._store, self._requests = store, requests

    def blocking(self, signal: Callable[[], Signal]) -> Backend:
        return cast(Backend, Counted(self._store.blocking(signal), self._requests))


class Counted:
    """A backend proxy that counts requests. Each verb is wrapped once, so that counting costs a
    fraction of a microsecond. A verb that returns None has sent no request, or will be retried."""

    def __init__(self, backend: Backend, requests: itertools.count[int]) -> None:
        self._backend, self._requests = backend, requests

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)
        if name in VERBS:
            attribute = _counted(attribute, self._requests)
        if name != "capabilities":  # may change after the first contact with the store
            setattr(self, name, attribute)
        return attribute


def _counted(verb: Callable[..., Any], requests: itertools.count[int]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        reply = verb(*args)
        if reply is not None:
            next(requests)  # atomic: a single C call under the GIL
        return reply

    return call


def error_line(error: BaseException) -> str:
    """Format an error in one line; the messages of our own errors need no type name."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LockfastError) else f"{type(error).__name__}: {text}"


def main() -> None:
    # Warnings were shown already, when the command probed the store.
    logging.disable(logging.CRITICAL)
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    try:
        while True:
            task = pipe.recv()
            try:
                run_round(pipe, task)
            except (Cancelled, EOFError):
                return
            except Exception as error:  # the edge of a process: the parent reports it
                pipe.send(WorkerFailure(error_line(error)))
    except (EOFError, OSError):
        pass  # the command has ended


if __name__ == "__main__":
    main()

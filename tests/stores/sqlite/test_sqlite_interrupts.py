"""Exceptions and calls from signal handlers and finalizers, at any instant; and time-outs that hold
whatever other processes do."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from both_apis import APIS, took

Start = Callable[..., Any]
LATE = 0.1  # seconds that a call may outlast its time-out


def test_no_exception_of_a_signal_handler_vanishes_and_none_leaves_a_transaction_open(
    start: Start, url: str, path: Path
) -> None:
    """SQLite swallows exceptions that are raised in a function of Python that it calls."""
    process = start(
        """
import random, sqlite3
class Interrupt(BaseException): pass
fired = seen = blocked = 0
def handler(*_):
    global fired
    fired += 1
    raise Interrupt
signal.signal(signal.SIGALRM, handler)
client = lockfast.connect(url); lock = client.lock("n", timeout=30); random.seed(3)
other = sqlite3.connect(url[9:], isolation_level=None, timeout=1)
with lock: pass
for number in range(1500):
    before = fired
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))
        while fired == before:
            with lock: pass
    except Interrupt:
        seen += 1
    try:
        other.execute("BEGIN IMMEDIATE"); other.execute("ROLLBACK")
    except sqlite3.Error:
        blocked += 1
report(fired - seen, blocked)
""",
        url,
    )
    assert process.line() == "0 0"


def test_finalizers_that_release_during_garbage_collection_do_not_deadlock(
    start: Start, url: str
) -> None:
    process = start(
        """
import gc
signal.alarm(50)
class Holder:
    def __init__(self, client, name):
        self.hold = client.lock(name).acquire(timeout=30); self.cycle = self
    def __del__(self): self.hold.release()
unraisable = []
sys.unraisablehook = lambda args: unraisable.append(repr(args.exc_value))
client = lockfast.connect(url)
for number in range(1500):
    gc.set_threshold(2 + number % 37, 2, 2)  # it runs, in turn, in every statement that allocates
    Holder(client, f"n {number}")
gc.set_threshold(700, 10, 10); gc.collect()
report(len(unraisable), unraisable[:2], client.names())
""",
        url,
    )
    assert process.line() == "0 [] []"


@pytest.mark.parametrize("contended", [False, True])
def test_a_signal_handler_may_acquire_and_release_inside_a_step_of_its_own_thread(
    start: Start, url: str, contended: bool
) -> None:
    """The interrupted step begins again, so nothing is granted twice and no fence is repeated."""
    process = start(
        """
import random, itertools
counts = itertools.count(); fences = []; done = 0
client = lockfast.connect(url); stop = False; contended = rest[0] == "True"
def handler(*_):
    global done
    me = f"handler {next(counts)}"  # one may interrupt another
    for name in ("n", f"own {me}"):
        hold = client.lock(name, owner=me).try_acquire()
        if hold is not None: fences.append(hold.fence); hold.release(); done += 1
    client.names(); client.inspect("n")
signal.signal(signal.SIGALRM, handler)
def contend():
    while not stop:
        with client.lock("n", timeout=30) as hold: fences.append(hold.fence)
others = [threading.Thread(target=contend) for _ in range(2 if contended else 0)]
for thread in others: thread.start()
random.seed(5); until = time.monotonic() + 6
while time.monotonic() < until:
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 4e-4))
    with client.lock("n", timeout=30) as hold: fences.append(hold.fence)
signal.setitimer(signal.ITIMER_REAL, 0); stop = True
for thread in others: thread.join()
undone = client._core.store._file._undone
report(done > 500, undone > 3 or not contended, len(fences) - len(set(fences)), client.names())
""",
        url,
        str(contended),
    )
    assert process.line() == "True True 0 []"


# ---- time-outs -------------------------------------------------------------------------------


@contextlib.contextmanager
def somebody_inside(path: Path) -> Iterator[None]:
    """Be inside a transaction, as a process that was stopped there."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    with contextlib.closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("timeout", [0, 0.5])
@pytest.mark.parametrize("connected", [True, False])
def test_no_acquire_outlasts_its_timeout_while_another_process_is_inside_a_transaction(
    client: lockfast.Client, path: Path, url: str, api: str, timeout: float, connected: bool
) -> None:
    client.lock("n").acquire().release()
    other = APIS[api](url)
    if connected:
        other.do(lambda client: client.inspect("n"))
    began = time.monotonic()
    with somebody_inside(path), took() as time_of, pytest.raises(lockfast.LockfastError):
        other.later(lambda client: client.lock("n").acquire(timeout=timeout)).result(30)
    assert time.monotonic() - began >= timeout and time_of.unstalled < timeout + LATE
    other.close()


@pytest.mark.parametrize("inside", [True, False])
def test_signals_that_restart_waits_do_not_prolong_them(
    start: Start, client: lockfast.Client, path: Path, url: str, inside: bool
) -> None:
    waiter = start(
        """
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.1, 0.5)
client = lockfast.connect(url); client.lock("other").acquire().release()
report("connected"); read_line(); began = time.monotonic()
try: client.lock("n").acquire(timeout=1.7); report("acquired")
except lockfast.LockfastError: report(time.monotonic() - began)
""",
        url,
    )
    assert waiter.line() == "connected"
    with contextlib.ExitStack() as stack:
        stack.enter_context(somebody_inside(path) if inside else client.lock("n"))
        waiter.send("acquire")
        with took() as time_of:
            assert float(waiter.line()) >= 1.7
        assert time_of.unstalled < 1.7 + LATE

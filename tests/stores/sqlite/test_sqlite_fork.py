"""fork: the child holds nothing, keeps nothing open, and never hangs; the parent goes on.

Each scenario runs in a separate process, so that no thread of pytest exists when it forks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast

PATIENCE = 60.0
Start = Callable[..., Any]

# A child that hangs is ended by its alarm, which its exit status shows.
FORKS = """
def forked(work, limit=20):
    child = os.fork()
    if child == 0:
        signal.alarm(limit)
        code = 1
        try:
            code = int(work() or 0)
        except BaseException as error:
            report("child raised", repr(error))
        finally:
            os._exit(code)
    return child
def status(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_child_keeps_no_descriptor_of_the_store(start: Start, url: str) -> None:
    process = start(
        FORKS
        + """
client = lockfast.connect(url); hold = client.lock("n").acquire()
other = threading.Thread(target=lambda: client.lock("n").acquire(timeout=60).release())
other.start()
while not client.inspect("n").waiters: time.sleep(0.01)
def child():
    found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{fd}")]
    report([one for one in found if "locks.db" in one or "socket:" in one])
report(status(forked(child)))
hold.release(); other.join(); report("parent goes on")
""",
        url,
    )
    assert [process.line() for _ in range(3)] == ["[]", "0", "parent goes on"]


def test_the_death_of_a_parent_is_noticed_although_its_child_lives(
    start: Start, client: lockfast.Client, url: str
) -> None:
    parent = start(
        FORKS
        + """
client = lockfast.connect(url); hold = client.lock("n").acquire()
child = os.fork()
if child == 0:
    signal.alarm(60); report("child", os.getpid()); read_line(); os._exit(0)
signal.pause()
""",
        url,
    )
    assert parent.line().startswith("child")
    assert client.lock("n").try_acquire() is None
    parent.kill()
    # The child still has the pipes of its parent open, so it is alive.
    hold = client.lock("n").try_acquire()
    parent.send("end")
    assert hold is not None


def test_a_child_holds_nothing_and_its_exit_releases_nothing(start: Start, url: str) -> None:
    process = start(
        FORKS
        + """
client = lockfast.connect(url); lock = client.lock("n"); hold = lock.acquire()
def child():
    assert not hold.is_held and hold.lost and not lock.is_held
    assert client.lock("n").try_acquire() is None
    with client.lock("own"): pass
    client.close()
report(status(forked(child)), hold.is_held, hold.fence == client.inspect("n").holders[0].fence)
def exits():
    import atexit; atexit._run_exitfuncs()
report(status(forked(exits)), hold.is_held, hold.fence == client.inspect("n").holders[0].fence)
hold.release(); report("released")
""",
        url,
    )
    assert process.line() == "0 True True"
    assert process.line() == "0 True True"
    assert process.line() == "released"


def increment(client: lockfast.Client, counter: Path, times: int) -> None:
    for _ in range(times):
        with client.lock("counter", timeout=PATIENCE):
            number = int(counter.read_text())
            time.sleep(0)
            counter.write_text(str(number + 1))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("used_before", [True, False])
def test_multiprocessing_workers_can_use_the_client_they_inherited(
    url: str, tmp_path: Path, used_before: bool
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    with lockfast.connect(url) as client:
        if used_before:
            increment(client, counter, 1)
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=increment, args=(client, counter, 40)) for _ in range(6)]
        for worker in workers:
            worker.start()
        increment(client, counter, 40)
        for worker in workers:
            worker.join(PATIENCE)
        assert [worker.exitcode for worker in workers] == [0] * 6
        assert counter.read_text() == str(7 * 40 + used_before)


def test_a_child_forked_while_other_threads_are_inside_a_transaction_never_hangs(
    start: Start, url: str
) -> None:
    process = start(
        FORKS
        + """
client = lockfast.connect(url); stop = False
def busy(number):
    while not stop:
        with client.lock(f"n{number % 2}", timeout=60): pass
threads = [threading.Thread(target=busy, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
def child():
    with client.lock("n0", timeout=60): pass
    with lockfast.connect(url).lock("n1", timeout=60): pass
results = [status(forked(child)) for _ in range(100)]
stop = True
for thread in threads: thread.join(60)
alive = [thread.is_alive() for thread in threads].count(True)
report(results.count(0), [one for one in results if one], alive)
report(client.names())
""",
        url,
    )
    assert process.line() == "100 [] 0"
    assert process.line() == "[]"


def test_concurrent_forks_harm_neither_parent_nor_children(start: Start, url: str) -> None:
    process = start(
        FORKS
        + """
import sys
unraisable = []
sys.unraisablehook = lambda args: unraisable.append(repr(args.exc_value))
clients = [lockfast.connect(url) for _ in range(5)]; stop = False; results = []
for client in clients: client.lock("n").acquire(timeout=60).release()
def busy(client):
    while not stop:
        with client.lock("n", timeout=60): pass
def child():
    for client in clients:
        with client.lock("n", timeout=60): pass
    return len(unraisable)
def fork():
    for _ in range(20): results.append(status(forked(child, 30)))
busies = [threading.Thread(target=busy, args=(client,), daemon=True) for client in clients[:2]]
forking = [threading.Thread(target=fork, daemon=True) for _ in range(4)]
for thread in busies + forking: thread.start()
until = time.monotonic() + 40
for thread in forking: thread.join(max(until - time.monotonic(), 0))
stop = True
for thread in busies: thread.join(20)
report(results.count(0), [one for one in results if one][:3], unraisable[:1])
report([thread.is_alive() for thread in busies + forking].count(True)); os._exit(0)
""",
        url,
    )
    assert process.line(100) == "80 [] []"
    assert process.line() == "0"


def test_a_child_forked_while_another_thread_creates_the_default_client_never_hangs(
    start: Start, url: str
) -> None:
    process = start(
        FORKS
        + """
os.environ["LOCKFAST_URL"] = url
import importlib; sync = importlib.import_module("lockfast.sync.connect")
inside, go_on, connect = threading.Event(), threading.Event(), sync.connect
def slow(*args):
    inside.set(); go_on.wait(60); return connect(*args)
sync.connect = slow
thread = threading.Thread(target=sync.default_client); thread.start(); inside.wait(60)
def child():
    sync.connect = connect
    with lockfast.lock("n", timeout=60): pass
report(status(forked(child, 5))); go_on.set(); thread.join(60)
""",
        url,
    )
    assert process.line() == "0"


def test_a_subprocess_inherits_no_descriptor(
    start: Start, client: lockfast.Client, url: str
) -> None:
    """subprocess does not run Python's fork hooks: descriptors must be close-on-exec."""
    parent = start(
        """
import subprocess
client = lockfast.connect(url); hold = client.lock("n").acquire()
child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
report(child.pid); read_line()
""",
        url,
    )
    child = int(parent.line())
    parent.kill()
    hold = client.lock("n").try_acquire()
    with open(f"/proc/{child}/cmdline") as shown:
        assert shown.read().startswith("sleep")
    os.kill(child, signal.SIGKILL)
    assert hold is not None


def test_a_fork_in_c_without_a_hook_before_it_leaves_the_child_with_nothing(
    start: Start, url: str
) -> None:
    """uWSGI forks like this: Python's hooks run in the child alone."""
    process = start(
        FORKS
        + """
import ctypes
client = lockfast.connect(url); hold = client.lock("n").acquire()
child = ctypes.PyDLL(None).fork()
if child == 0:
    signal.alarm(20); code = 1
    try:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        assert not hold.is_held and client.lock("n").try_acquire() is None
        with client.lock("own"): code = 0
    finally:
        os._exit(code)
report(status(child), hold.is_held, hold.fence == client.inspect("n").holders[0].fence)
hold.release(); report("released")
""",
        url,
    )
    assert [process.line() for _ in range(2)] == ["0 True True", "released"]

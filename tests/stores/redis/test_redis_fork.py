"""fork and exit: a child holds and disturbs nothing; a process that ends releases its locks.

Each script runs in a process of its own, so that no thread of pytest is alive when it forks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_redis import PATIENCE, took, until

import lockfast
from lockfast.stores.redis.commands import key_of

SOURCE = Path(lockfast.__file__).parent.parent

PRELUDE = """
import asyncio, gc, os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
import lockfast
from lockfast import aio
url, name, *rest = sys.argv[1:]
def report(*values): print(*values, flush=True)
def forked(work, limit=15):
    child = os.fork()
    if child == 0:
        signal.alarm(limit)  # a child that hangs is ended with SIGALRM
        code = 1
        try:
            code = int(work() or 0)
        except BaseException as error:
            report("child raised", repr(error))
        finally:
            os._exit(code)
    return child
def status(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def addresses(client):
    # The addresses of the client's connections.
    return sorted(each.sock.getsockname() for each in client._store._channel._connections)
"""


def run_script(code: str, *arguments: str) -> list[str]:
    """Run a script to its end; return the lines that it reported."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def secured() -> Any:
    from lab.servers.redis_server import RedisServer

    with RedisServer(tls=True) as server:
        yield server


@pytest.fixture(params=["plain", "tls"])
def url(request: Any, redis_server: Any, secured: Any) -> str:
    if request.param == "plain":
        return str(redis_server.url)
    return f"{secured.url}?ssl_ca_certs={secured.ca_file}"


def test_a_child_holds_nothing_disturbs_nothing_and_can_lock(url: str, name: str) -> None:
    reported = run_script(
        """
client = lockfast.connect(url, lease=0.9); lock = client.lock(name); hold = lock.acquire()
while len(addresses(client)) < 2: time.sleep(0.01)  # until the keeper has connected, too
before = addresses(client)
def child():
    assert not hold.is_held and hold.lost and not lock.is_held
    assert client.lock(name).try_acquire() is None
    with client.lock(name + "-own"): pass
    other = lockfast.connect(url)
    own = other.lock(name + "-own", timeout=9)
    waits = threading.Thread(target=lambda: own.acquire().release())
    with client.lock(name + "-own"):
        waits.start(); time.sleep(0.1)
    waits.join(9); assert not waits.is_alive()
    try: hold.release()
    except lockfast.HoldLost: pass
    client.close(); gc.collect()
report(status(forked(child)), hold.is_held)
def exits():
    import atexit; gc.collect(); atexit._run_exitfuncs()
report(status(forked(exits)), hold.is_held)
renewals = client.statistics().renewals
while client.statistics().renewals < renewals + 2: time.sleep(0.01)
fences = [holder.fence for holder in client.inspect(name).holders]
report(fences == [hold.fence], before == addresses(client) and len(before) == 2)
hold.release(); report("released", client.statistics().renew_errors)
""",
        url,
        name,
    )
    assert reported == ["0 True", "0 True", "True True", "released 0"]


def test_a_fork_while_a_thread_waits_does_not_end_its_listening(
    redis_server: Any, name: str
) -> None:
    reported = run_script(
        """
client = lockfast.connect(url); hold = client.lock(name).acquire()
got = []
def wait():
    with client.lock(name, timeout=9): got.append(time.monotonic())
thread = threading.Thread(target=wait); thread.start()
while not client.statistics().waiting: time.sleep(0.01)
time.sleep(0.05)
def child():
    assert client.statistics().waiting == 0
    with client.lock(name + "-own"): pass
    assert client.lock(name).try_acquire(timeout=0.1) is None
    gc.collect()
report(status(forked(child)))
began = time.monotonic(); hold.release(); thread.join(9)
report(got[0] - began < 0.5, client.inspect(name).holders)
client.close()
""",
        redis_server.url,
        name,
    )
    assert reported == ["0", "True ()"]


def test_a_fork_of_a_running_loop_does_not_end_its_listening(redis_server: Any, name: str) -> None:
    reported = run_script(
        """
async def main():
    client = aio.connect(url, lease=1.5); hold = await client.lock(name).acquire()
    waits = asyncio.create_task(client.lock(name).acquire(timeout=9))
    while not client.statistics().waiting: await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    def child():
        assert hold.lost and not hold.is_held
        blocking = lockfast.connect(url)
        with blocking.lock(name + "-own"): pass
        async def again():
            async with client.lock(name + "-own", timeout=5): pass
            assert await client.lock(name).try_acquire(timeout=0.1) is None
        asyncio.run(again())
        gc.collect()
    report(status(forked(child)), hold.is_held)
    await asyncio.sleep(0.6)
    report(hold.is_held, client.statistics().renew_errors)
    began = time.monotonic(); await hold.release(); later = await waits
    report(time.monotonic() - began < 0.5)
    await later.release(); await client.close()
asyncio.run(main())
""",
        redis_server.url,
        name,
    )
    assert reported == ["0 True", "True 0", "True"]


def test_workers_that_inherit_a_client_exclude_each_other(
    redis_server: Any, name: str, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    reported = run_script(
        """
import pathlib; counter = pathlib.Path(rest[0])
client = lockfast.connect(url); client.lock(name).acquire().release()
def work():
    for _ in range(15):
        with client.lock(name, timeout=9):
            number = int(counter.read_text()); time.sleep(0.001)
            counter.write_text(str(number + 1))
children = [forked(work) for _ in range(3)]; work()
report([status(child) for child in children])
""",
        redis_server.url,
        name,
        str(counter),
    )
    assert reported == ["[0, 0, 0]"] and counter.read_text() == "60"


# ---- the end of a process -----------------------------------------------------------------------


ENDS = {
    "exit": "",
    "error": "raise SystemExit(3)",
    "SIGTERM": """
signal.signal(signal.SIGTERM, lambda *_: sys.exit()); report('ready'); time.sleep(30)
""",
}


@pytest.mark.parametrize("api", ["blocking", "asyncio"])
@pytest.mark.parametrize("end", list(ENDS))
def test_a_process_that_exits_releases_its_holds_and_leaves_the_queues(
    redis_server: Any, name: str, end: str, api: str
) -> None:
    blocking = """
client = lockfast.connect(url); hold = client.lock(name).acquire()
threading.Thread(target=lambda: client.lock(name).acquire(), daemon=True).start()
while not client.statistics().waiting: time.sleep(0.01)
"""
    tasks = """
client = aio.connect(url)
async def main(): return await client.lock(name).acquire()
hold = asyncio.run(main())
"""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PRELUDE + (blocking if api == "blocking" else tasks) + "report('held')\n" + ENDS[end],
            redis_server.url,
            name,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        if end == "SIGTERM":
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
        with took() as time_of:
            process.wait(PATIENCE)
        assert time_of.unstalled < 1.0 + 1.0, "the exit hung"
        key = key_of(f"default:{name}")
        left = redis_server.client().hgetall(key)
        assert set(left) <= {b".f"}, "still held"
        assert not redis_server.call("EXISTS", f"{key}:q")
        assert set(redis_server.client().hgetall(f"{key}:w")) <= {b".n"}, "still waiting"
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stdout.close()


def has_wake_address(redis_server: Any, name: str) -> bool:
    """Return whether the name has a waiter that gave its wake address."""
    waiters = redis_server.call("HGETALL", f"lf:{{default:{name}}}:w")
    rows = [str(row).split(" ") for row in waiters.values()]
    return any(len(row) > 6 and row[6] != "." for row in rows)


def test_a_killed_holder_is_noticed_after_one_lease_and_a_killed_waiter_at_once(
    redis_server: Any, name: str
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PRELUDE
            + """
client = lockfast.connect(url, lease=1.0); hold = client.lock(name).acquire()
threading.Thread(target=lambda: client.lock(name + "-2").acquire(), daemon=True).start()
report('held'); time.sleep(30)
""",
            redis_server.url,
            name,
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    try:
        with lockfast.connect(redis_server.url) as client:
            second = client.lock(f"{name}-2").acquire()
            assert process.stdout.readline() == b"held\n"
            until(lambda: has_wake_address(redis_server, f"{name}-2"))
            process.kill()
            process.wait(PATIENCE)
            began = time.monotonic()
            until(lambda: not redis_server.call("PUBSUB", "CHANNELS"))
            second.release()
            assert client.lock(f"{name}-2").try_acquire() is not None, (
                "granted to the killed waiter"
            )
            hold = client.lock(name).acquire(timeout=PATIENCE)
            assert hold.is_held and time.monotonic() - began < 1.25 + 0.5
    finally:
        process.kill()
        process.wait(PATIENCE)
        process.stdout.close()

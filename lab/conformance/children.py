"""Clients in child processes that a case can kill and pause, for stores that reach other processes.

A child, ``python -m lab.conformance API URL``, reads one JSON command per line from its standard
input and writes one JSON reply per line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

REPLY_WITHIN = 30.0


class Refused(AssertionError):
    """A command raised in the child; ``kind`` is the name of the error's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Child:
    """A process with one client and at most one hold."""

    def __init__(self, api: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.conformance", api, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self._replies: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, verb: str, **arguments: Any) -> None:
        """Send a command without waiting for its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._process.stdin.flush()

    def receive(self, within: float = REPLY_WITHIN) -> Any:
        """Return the next reply; blocks."""
        try:
            reply = json.loads(self._replies.get(timeout=within))
        except queue.Empty:
            raise AssertionError(f"child {self.pid} did not reply within {within} s") from None
        if "error" in reply:
            raise Refused(reply["error"], reply["text"])
        return reply["value"]

    def call(self, verb: str, **arguments: Any) -> Any:
        """Send a command and return its reply; blocks."""
        self.send(verb, **arguments)
        return self.receive()

    def kill(self) -> None:
        """Send SIGKILL: the child cannot clean up."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Let the program end normally, with its clean-up at exit; blocks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(REPLY_WITHIN)

    def pause(self) -> None:
        """Send SIGSTOP: a pause that the child cannot notice."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def dispose(self) -> None:
        """End the process, whatever its state, and close its pipes."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)


def child_environment() -> dict[str, str]:
    """The environment of a child: it imports the same modules as we do."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class _Commands:
    """The commands that a child executes, one method per verb."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._client = world.client()
        self._hold: Any = None

    async def acquire(self, name: str, **terms: Any) -> int:
        self._hold = await self._client.lock(name, **terms).acquire()
        return int(self._hold.fence)

    async def try_acquire(self, name: str, **terms: Any) -> int | None:
        hold = await self._client.lock(name, **terms).try_acquire()
        self._hold = hold or self._hold
        return None if hold is None else int(hold.fence)

    async def read(self, name: str, **terms: Any) -> int:
        self._hold = await self._client.rwlock(name, **terms).read().acquire()
        return int(self._hold.fence)

    async def write(self, name: str, **terms: Any) -> int:
        self._hold = await self._client.rwlock(name, **terms).write().acquire()
        return int(self._hold.fence)

    async def take(self, name: str, of: int, permits: int = 1, **terms: Any) -> int:
        self._hold = await self._client.semaphore(name, of, **terms).acquire(permits)
        return int(self._hold.fence)

    async def take_permit(self, name: str, of: int, **terms: Any) -> str:
        return str(await self._client.permits(name, of, **terms).acquire())

    async def give_permit(self, name: str, of: int, permit: str) -> None:
        await self._client.permits(name, of).release(permit)

    async def acquire_all(self, names: list[str], **terms: Any) -> dict[str, int]:
        self._hold = await self._client.multi_lock(*names, **terms).acquire()
        return dict(self._hold.fences)

    async def attach(self, name: str, text: str) -> int:
        self._hold = await self._client.attach(name, text)
        return int(self._hold.fence)

    async def detach(self) -> str:
        return str(await self._hold.detach())

    async def release(self) -> None:
        await self._hold.release()

    async def state(self) -> dict[str, Any]:
        hold = self._hold
        return {"is_held": hold.is_held, "lost": hold.lost, "fence": hold.fence}

    async def count_down(self, name: str, count: int) -> bool:
        return bool(await self._client.latch(name, count).count_down())

    async def wait(self, kind: str, name: str, size: int, timeout: float) -> bool:
        return bool(await getattr(self._client, kind)(name, size).wait(timeout))

    async def rounds(self, name: str, parties: int, rounds: int) -> list[tuple[float, float]]:
        """When this process arrived at the barrier and passed it, on the clock of this host."""
        barrier = self._client.barrier(name, parties)
        times = []
        for _ in range(rounds):
            arrived = time.monotonic()
            assert await barrier.wait(60)
            times.append((arrived, time.monotonic()))
        return times

    async def lead(self, name: str, timeout: float, **terms: Any) -> int:
        self._hold = await self._client.election(name, **terms).lead(timeout=timeout).acquire()
        return int(self._hold.fence)

    async def once(self, name: str, period: float, lease: float, work: float) -> int | None:
        """Our pid if this process ran the job, which takes ``work`` seconds."""

        def run() -> int:
            time.sleep(work)
            return os.getpid()

        client = self._world.client(lease=lease)
        ran: int | None = client.once_every(period, name=name)(run)()
        return ran


async def _serve(world: Any) -> None:
    commands = _Commands(world)
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            reply = {"value": await getattr(commands, arguments.pop("verb"))(**arguments)}
        except Exception as error:
            reply = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(reply), flush=True)


def main() -> None:
    from lab.conformance.worlds import WORLDS

    api, url = sys.argv[1:]
    world = WORLDS[api](url)
    world.start(lambda: _serve(world))

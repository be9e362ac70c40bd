"""Clients in other processes, for stores that reach so far; they can be killed and stopped.

A child reads one JSON command a line and answers with one. As a program it is
``python -m lab.conformance FACE URL``.
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

ANSWER_WITHIN = 30.0


class Refused(AssertionError):
    """The child's verb raised; ``kind`` is the name of the error's class."""

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
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, verb: str, **words: Any) -> None:
        """Ask for something, and do not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **words}) + "\n")
        self._process.stdin.flush()

    def heard(self, within: float = ANSWER_WITHIN) -> Any:
        """The next answer; blocks."""
        try:
            answer = json.loads(self._answers.get(timeout=within))
        except queue.Empty:
            raise AssertionError(f"child {self.pid} did not answer within {within} s") from None
        if "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer["value"]

    def ask(self, verb: str, **words: Any) -> Any:
        """Ask, and get the answer; blocks."""
        self.tell(verb, **words)
        return self.heard()

    def kill(self) -> None:
        """SIGKILL: it does nothing any more."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Let its program come to its end, with all that an end brings; blocks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(ANSWER_WITHIN)

    def stop(self) -> None:
        """SIGSTOP, as a pause that it cannot notice."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Whatever state it is in."""
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
            self._answers.put(line)


def child_environment() -> dict[str, str]:
    """So that a child finds what we found, wherever we found it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class _Served:
    """What a child does, verb by verb."""

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
        """When we came to the barrier, and when we passed it, on the clock of this host."""
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
        """Our pid if it was us who ran, for ``work`` seconds."""

        def run() -> int:
            time.sleep(work)
            return os.getpid()

        client = self._world.client(lease=lease)
        ran: int | None = client.once_every(period, name=name)(run)()
        return ran


async def _serve(world: Any) -> None:
    served = _Served(world)
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"value": await getattr(served, words.pop("verb"))(**words)}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


def main() -> None:
    from lab.conformance.worlds import WORLDS

    api, url = sys.argv[1:]
    world = WORLDS[api](url)
    world.start(lambda: _serve(world))

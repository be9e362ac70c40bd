"""Compare the CPU time of a cycle between two source trees: ``python bench/cpu.py OLD NEW``.

OLD and NEW are checkouts, or folders that contain ``lockfast``; ``git worktree add OLD COMMIT``
makes one. In every round each tree gets a new process (a process keeps its layout of memory, which
is worth a few per cent), and the two take turns in short slices, so that both meet the same
conditions. A ratio is taken within a round; shown are the median of the rounds and their spread.

Counted is the time of the process on the CPU, of all its threads and of the kernel on its behalf;
waiting for the server is not. Each process may use one core only, and then does not spin on its
socket: spinning would count how long the server takes. Only the public API is used, as the trees
may have nothing else in common. A missed target is exit code 1 with ``--check``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

CASES = {
    "redis": "Redis, sync: with client.lock(name)",
    "redis-100": "Redis, asyncio: 100 tasks, a name each",
    "sqlite": "SQLite, sync: with client.lock(name)",
    "memory": "memory, sync: with client.lock(name)",
}
TASKS = 100
SLICES = 24  # of each tree in a round
LIMIT = 1.05  # target: new CPU time, as a multiple of the old


def main() -> int:
    options = _options()
    from lab.servers.redis_server import RedisServer

    trees = [_source(folder) for folder in (options.old, options.new)]
    ratios: dict[str, list[float]] = {case: [] for case in options.case or CASES}
    micros: dict[str, list[float]] = {case: [] for case in ratios}
    with RedisServer() as server:
        for number in range(options.rounds):
            with contextlib.ExitStack() as stack:
                workers = [stack.enter_context(Worker(tree, server.url)) for tree in trees]
                for case in ratios:
                    old, new = _round(case, workers, options.seconds / SLICES, number)
                    ratios[case].append(new / old)
                    micros[case].append(old * 1e6)
            if sys.stderr.isatty():
                print(f"\rround {number + 1} of {options.rounds}", end="\r", file=sys.stderr)
    print(f"{'CPU per cycle':<42}{'old µs':>9}{'new/old':>9}{'quartiles':>14}{'all':>14}")
    for case, found in ratios.items():
        low, middle, high = quantiles(found, n=4, method="inclusive")
        print(
            f"{CASES[case]:<42}{median(micros[case]):>9.1f}{middle:>9.3f}"
            f"{f'{low:.3f}–{high:.3f}':>14}{f'{min(found):.3f}–{max(found):.3f}':>14}"
        )
    return 1 if options.check and any(median(found) > LIMIT for found in ratios.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="compare the CPU time of two source trees")
    parser.add_argument("old", metavar="OLD", help="folder of the old source")
    parser.add_argument("new", metavar="NEW", help="folder of the new source")
    parser.add_argument("--rounds", type=int, default=11, help="at least 2 (default: 11)")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each case in a round")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; repeatable")
    parser.add_argument("--check", action="store_true", help=f"exit 1 above {LIMIT:g}")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2")
    return options


def _source(folder: str) -> Path:
    path = Path(folder).resolve()
    for candidate in (path / "src", path):
        if (candidate / "lockfast" / "__init__.py").exists():
            return candidate
    raise SystemExit(f"{folder}: contains no lockfast")


def _round(case: str, workers: list[Worker], seconds: float, number: int) -> tuple[float, float]:
    """Measure one case: CPU seconds per cycle of both trees."""
    count = 20
    for worker in workers:
        worker.run(case, count)  # connects
    while (took := workers[0].run(case, count)) < seconds / 5:
        count *= 2
    count = max(round(count * seconds / took), 1)
    workers[1].run(case, count)
    spent: tuple[list[float], list[float]] = [], []
    for index in range(SLICES):
        for which in (0, 1) if (index + number) % 2 else (1, 0):
            spent[which].append(workers[which].run(case, count) / count)
    return _best(spent[0]), _best(spent[1])


def _best(times: list[float]) -> float:
    """The lower quartile: other work on the machine (shared caches, interrupts) can only add."""
    return sorted(times)[len(times) // 4]


class Worker:
    """A process that runs cycles with the lockfast of one tree."""

    def __init__(self, tree: Path, redis_url: str) -> None:
        self._tree = tree
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", redis_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )

    def __enter__(self) -> Worker:
        if not (found := self._reply()).startswith(f"{self._tree}{os.sep}"):
            raise SystemExit(f"{self._tree}: its lockfast is hidden by {found}")
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate()  # closes its input, and waits

    def run(self, case: str, count: int) -> float:
        """CPU seconds of so many cycles."""
        assert self._process.stdin is not None
        print(case, count, file=self._process.stdin, flush=True)
        return float(self._reply())

    def _reply(self) -> str:
        assert self._process.stdout is not None
        if not (reply := self._process.stdout.readline()):
            raise SystemExit(f"{self._tree}: its process has failed")
        return reply.strip()


# ---- in the process of a tree ---------------------------------------------------------------


def work(redis_url: str) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before the import, which asks
    import lockfast

    print(lockfast.__file__, flush=True)
    with contextlib.ExitStack() as stack:
        subjects: dict[str, Callable[[int], None]] = {}
        for line in sys.stdin:
            case, count = line.split()
            if case not in subjects:
                subjects[case] = stack.enter_context(_subject(case, redis_url))
            before = time.process_time()
            subjects[case](int(count))
            print(time.process_time() - before, flush=True)


@contextlib.contextmanager
def _subject(case: str, redis_url: str) -> Iterator[Callable[[int], None]]:
    import lockfast

    # The trees share a server, but their keys need not be the same.
    namespace = f"cpu-{os.getpid()}"
    if case == "redis-100":
        with asyncio.Runner() as runner:
            tasks = _Tasks(redis_url, namespace)
            try:
                yield lambda count: runner.run(tasks.cycles(count))
            finally:
                runner.run(tasks.client.close())
        return
    with tempfile.TemporaryDirectory(prefix="lockfast-cpu-") as folder:
        urls = {"redis": redis_url, "sqlite": f"sqlite://{folder}/locks.db", "memory": "memory://"}
        with lockfast.connect(urls[case], namespace=namespace) as client:

            def cycles(count: int) -> None:
                for _ in range(count):
                    with client.lock("orders:42"):
                        pass

            yield cycles


class _Tasks:
    def __init__(self, url: str, namespace: str) -> None:
        import lockfast.aio

        self.client = lockfast.aio.connect(url, namespace=namespace)

    async def cycles(self, count: int) -> None:
        """Run so many cycles, distributed over the tasks."""
        async with asyncio.TaskGroup() as group:
            for index in range(TASKS):
                share = len(range(index, count, TASKS))
                group.create_task(self._task(f"orders:{index}", share))

    async def _task(self, name: str, count: int) -> None:
        for _ in range(count):
            async with self.client.lock(name):
                pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        sys.exit(main())

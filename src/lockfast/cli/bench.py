"""`lockfast bench`: measure speed, fairness and cost of handing over one lock on each store.

    probe every store ── one cannot be reached ──► an error line each, exit; nothing is measured
      │
    start the worker processes, once (`bench_processes`)
      │
    round by round: every number of contenders, every store, in rotating order
      │
    end the workers, clean up, show the medians (`bench_report`)

All contenders compete for one random name in a namespace of the benchmark's own, with no work
inside, so nobody else's locks are touched. The stores alternate within a round, so that other load
on the machine affects them equally.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from lockfast.cli.bench_messages import Task
from lockfast.cli.bench_outcome import Outcome, medians, outcome
from lockfast.cli.bench_processes import WorkerPool
from lockfast.cli.bench_report import Report, Results, Store, format_seconds, needed
from lockfast.cli.bench_server import Server
from lockfast.cli.chart import MOST_STORES
from lockfast.cli.exit_codes import USAGE, fail, print_stderr
from lockfast.cli.screen import Screen
from lockfast.errors import ConfigurationError, LockfastError
from lockfast.sync import Client, connect

MOST_SIZES = 6
MOST_CONTENDERS = 500
MOST_PROCESSES = 64
SETTLE = 0.2  # start-up phase until all contenders are in the queue; not counted
PROBE_LIMIT = 5.0
BROKEN = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TITLES = {"memory": "memory", "sqlite": "SQLite", "redis": "Redis", "postgresql": "PostgreSQL"}
TITLES |= {"mysql": "MySQL", "mariadb": "MariaDB", "zookeeper": "ZooKeeper"}


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command. `check` rejects invalid ones before anything starts."""

    urls: Sequence[str]
    sizes: Sequence[int]
    seconds: float
    rounds: int
    processes: int
    svg: str | None
    json: str | None
    draw: bool

    def check(self) -> None:
        _within("--seconds", self.seconds, 0.1, 600)
        _within("--rounds", self.rounds, 1, 99)
        _within("--processes", self.processes, 1, MOST_PROCESSES)
        if len(self.urls) > MOST_STORES:
            raise ConfigurationError(f"{len(self.urls)} stores: at most {MOST_STORES} at once")
        if not 1 <= len(self.sizes) <= MOST_SIZES or len(set(self.sizes)) < len(self.sizes):
            raise ConfigurationError(f"--contenders: give 1 to {MOST_SIZES} different numbers")
        for size in self.sizes:
            _within("--contenders", size, 1, MOST_CONTENDERS)
        for option, path in (("--svg", self.svg), ("--json", self.json)):
            # Fail now, not after minutes of measuring.
            folder = os.path.dirname(os.path.abspath(path)) if path else "/"
            if path and (os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK)):
                raise ConfigurationError(f"{option} {path}: cannot be written")


def bench(plan: Plan) -> int:
    """Measure, print the results, and return the exit code. Takes over this process's signals."""
    plan.check()
    for signum in ENDING[1:]:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    namespace = f"bench-{secrets.token_hex(6)}"
    screen = Screen()
    try:
        with _urls(plan.urls) as urls:
            probed = [_probe(url, namespace) for url in urls]
            stores = _number_titles([store for store in probed if store])
            if len(stores) < len(urls):
                return USAGE
            runs = len(stores) * len(plan.sizes) * plan.rounds
            report = Report(screen, stores, plan.seconds, plan.rounds, plan.processes)
            report.begin(len(plan.sizes), needed(runs, plan.seconds + SETTLE))
            pool = WorkerPool()
            try:
                results = Bench(plan, stores, namespace, screen, pool).measure()
            finally:
                with _signals_ignored():
                    pool.end()
                    _sweep(stores, namespace)
        return _show(plan, report, results)
    finally:
        screen.close()


class Bench:
    def __init__(
        self, plan: Plan, stores: Sequence[Store], namespace: str, screen: Screen, pool: WorkerPool
    ) -> None:
        self._plan, self._stores, self._namespace = plan, stores, namespace
        self._screen, self._pool = screen, pool

    def measure(self) -> Results:
        """Measure all rounds; return the medians by number of contenders and store."""
        plan, stores = self._plan, self._stores
        self._pool.start(max(self._workers(store, max(plan.sizes)) for store in stores))
        outcomes: dict[tuple[int, Store], list[Outcome]] = {
            (size, store): [] for size in plan.sizes for store in stores
        }
        runs = [
            (size, stores[(number + index) % len(stores)])
            for number in range(plan.rounds)
            for size in plan.sizes
            for index in range(len(stores))
        ]
        for done, (size, store) in enumerate(runs):
            left = format_seconds(needed(len(runs) - done, plan.seconds + SETTLE))
            self._screen.live([f"  {store.title}, {_contenders(size)} … {left} to go"])
            outcomes[size, store].append(self._round(store, size))
        self._screen.live([])
        return {key: medians(rounds) for key, rounds in outcomes.items()}

    def _workers(self, store: Store, size: int) -> int:
        return min(1 if store.in_process else self._plan.processes, size)

    def _round(self, store: Store, size: int) -> Outcome:
        pool, workers = self._pool, self._workers(store, size)
        # One name for the whole run: some stores remember the last fence of each name.
        name = self._namespace
        shares = [len(range(worker, size, workers)) for worker in range(workers)]
        pool.prepare([Task(store.secret_url, name, name, share, SETTLE) for share in shares])
        server = Server(store.secret_url)
        begin, end = pool.begin(workers, SETTLE + self._plan.seconds)
        pool.watch(workers, begin + SETTLE)
        before = server.cpu()
        pool.watch(workers, end)
        after = server.cpu()
        cost = None if before is None or after is None else after - before
        return outcome(pool.results(workers, end), begin + SETTLE, end, cost)


@contextlib.contextmanager
def _urls(urls: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the URLs of the command line, or else a new SQLite file and memory."""
    if urls:
        yield urls
        return
    folder = tempfile.mkdtemp(prefix="lockfast-bench-")
    try:
        yield [f"sqlite://{folder}/locks.db", "memory://"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _probe(url: str, namespace: str) -> Store | None:
    """Acquire and release once; on failure print one line and return None."""
    where = ""
    try:
        with connect(url, namespace=namespace) as client:
            where = client.store.url
            client.inspect(namespace)  # fails at once if the server does not answer
            client.lock(namespace, timeout=PROBE_LIMIT).acquire().release()
            return _store(url, client)
    except LockfastError as error:
        message = str(error)
        print_stderr(message if where in message else f"{where}: {message}")
        return None


def _store(url: str, client: Client) -> Store:
    scheme, kind = url.partition("://")[0], client.capabilities.store
    title = TITLES.get(scheme if scheme in TITLES else kind, kind)
    return Store(title, client.store.url, url, client.capabilities.across == "process")


def _number_titles(stores: Sequence[Store]) -> list[Store]:
    """Number the titles of stores of the same kind."""
    titles = [store.title for store in stores]
    numbered = []
    for index, store in enumerate(stores):
        number = f" {titles[:index].count(store.title) + 1}"
        more = titles.count(store.title) > 1
        numbered.append(store.retitled(store.title + number) if more else store)
    return numbered


def _sweep(stores: Sequence[Store], namespace: str) -> None:
    """Break what is still held: the holds of a worker that had to be killed."""
    logging.disable(logging.WARNING)  # these breaks are of no interest to the user
    for store in stores:
        if not store.in_process:
            # If the store cannot be reached, the hold ends with its lease.
            with (
                contextlib.suppress(LockfastError),
                connect(store.secret_url, namespace=namespace) as client,
            ):
                for name in client.names():
                    _end_holds(client, name)
    logging.disable(logging.NOTSET)


def _end_holds(client: Client, name: str) -> None:
    """Break holds until none is left: each break grants the next waiter, which may be dead too."""
    for _ in range(MOST_CONTENDERS + 1):
        holders = client.inspect(name).holders
        if not holders:
            return
        for holder in holders:
            client.break_hold(name, holder.fence)


def _show(plan: Plan, report: Report, results: Results) -> int:
    report.table(results)
    if plan.draw:
        report.bars(results)
    for path, write in ((plan.json, report.json), (plan.svg, report.svg)):
        if path:
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(write(results))
            except OSError as error:
                return fail(f"{path}: {error.strerror}", USAGE)
    if any(result.overlaps for result in results.values()):
        return fail("two contenders held the lock at once: mutual exclusion is broken", BROKEN)
    return 0


def _contenders(size: int) -> str:
    return "1 contender" if size == 1 else f"{size} contenders"


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{option} {value:g}: must be between {low:g} and {high:g}")


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals during the bounded clean-up: a second Ctrl-C would leave something behind."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ENDING}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)

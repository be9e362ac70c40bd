"""`lockfast bench`: how fast, how fairly and at what cost one lock goes round on each store.

    look at every store ── one cannot be reached ──► a line each, exit; nothing is measured
      │
    start the processes, once (`bench_crew`)
      │
    round after round: every number of contenders, every store, in an order that turns
      │
    end the processes, look that nothing is left, show the medians (`bench_show`)

Everybody contends for one random name in a namespace of our own, with no work inside, so nobody
else's locks are touched. The stores take turns within a round, so that they meet the same weather:
what else the machine does.
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
from lockfast.cli.bench_outcome import Outcome, middle, outcome
from lockfast.cli.bench_processes import Crew
from lockfast.cli.bench_report import Report, Results, Store, needed, said_time
from lockfast.cli.bench_server import Server
from lockfast.cli.chart import MOST_STORES
from lockfast.cli.exit_codes import USAGE, refuse, say
from lockfast.cli.screen import Screen
from lockfast.errors import ConfigurationError, LockfastError
from lockfast.sync import Client, connect

MOST_SIZES = 6
MOST_CONTENDERS = 500
MOST_PROCESSES = 64
# Until everybody stands in the queue; not counted.
SETTLE = 0.2
# How long the look at a store may take.
LOOK = 5.0
BROKEN = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TITLES = {
    "memory": "memory",
    "sqlite": "SQLite",
    "redis": "Redis",
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "zookeeper": "ZooKeeper",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command was told; refused before anything happens if it cannot be meant."""

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
            raise ConfigurationError(f"--contenders: one to {MOST_SIZES} different numbers")
        for size in self.sizes:
            _within("--contenders", size, 1, MOST_CONTENDERS)
        for option, path in (("--svg", self.svg), ("--json", self.json)):
            # Minutes later would be late to find out.
            folder = os.path.dirname(os.path.abspath(path)) if path else "/"
            if path and (os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK)):
                raise ConfigurationError(f"{option} {path}: cannot be written")


def bench(plan: Plan) -> int:
    """Measure and show; the exit code. Takes over the signals of this process."""
    plan.check()
    for signum in ENDING[1:]:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _end)
    namespace = f"bench-{secrets.token_hex(6)}"
    screen = Screen()
    try:
        with _urls(plan.urls) as urls:
            seen = [_looked_at(url, namespace) for url in urls]
            stores = _told_apart([store for store in seen if store])
            if len(stores) < len(urls):
                return USAGE
            runs = len(stores) * len(plan.sizes) * plan.rounds
            report = Report(screen, stores, plan.seconds, plan.rounds, plan.processes)
            report.begin(len(plan.sizes), needed(runs, plan.seconds + SETTLE))
            crew = Crew()
            try:
                results = Bench(plan, stores, namespace, screen, crew).measure()
            finally:
                with _undisturbed():
                    crew.end()
                    _sweep(stores, namespace)
        return _show(plan, report, results)
    finally:
        screen.close()


class Bench:
    """The measurement itself."""

    def __init__(
        self, plan: Plan, stores: Sequence[Store], namespace: str, screen: Screen, crew: Crew
    ) -> None:
        self._plan = plan
        self._stores = stores
        self._namespace = namespace
        self._screen = screen
        self._crew = crew

    def measure(self) -> Results:
        """The median of the rounds, by the number of contenders and the store."""
        plan, stores = self._plan, self._stores
        self._crew.start(max(self._members(store, max(plan.sizes)) for store in stores))
        found: dict[tuple[int, Store], list[Outcome]] = {
            (size, store): [] for size in plan.sizes for store in stores
        }
        turns = [
            (size, stores[(turn + index) % len(stores)])
            for turn in range(plan.rounds)
            for size in plan.sizes
            for index in range(len(stores))
        ]
        for done, (size, store) in enumerate(turns):
            left = said_time(needed(len(turns) - done, plan.seconds + SETTLE))
            self._screen.live([f"  {store.title}, {_contenders(size)} … {left} to go"])
            found[size, store].append(self._round(store, size))
        self._screen.live([])
        return {key: middle(rounds) for key, rounds in found.items()}

    def _members(self, store: Store, size: int) -> int:
        """How many processes take part."""
        return min(1 if store.in_process else self._plan.processes, size)

    def _round(self, store: Store, size: int) -> Outcome:
        crew, members = self._crew, self._members(store, size)
        # One name for the whole run: some stores remember the last fence of each.
        name = self._namespace
        crew.prepare(
            [
                Task(store.secret_url, self._namespace, name, len(share), SETTLE)
                for share in (range(member, size, members) for member in range(members))
            ]
        )
        server = Server(store.secret_url)
        begin, end = crew.begin(members, SETTLE + self._plan.seconds)
        crew.watch(members, begin + SETTLE)
        before = server.cpu()
        crew.watch(members, end)
        after = server.cpu()
        noted = crew.results(members, end)
        cost = None if before is None or after is None else after - before
        return outcome(noted, begin + SETTLE, end, cost)


# ---- the stores -----------------------------------------------------------------------------


@contextlib.contextmanager
def _urls(given: Sequence[str]) -> Iterator[Sequence[str]]:
    """Those that were given; or else an embedded store in a folder of its own, and memory."""
    if given:
        yield given
        return
    folder = tempfile.mkdtemp(prefix="lockfast-bench-")
    try:
        yield [f"sqlite://{folder}/locks.db", "memory://"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _looked_at(url: str, namespace: str) -> Store | None:
    """One cycle on it; None if that does not work, which is told in one line."""
    where = ""
    try:
        with connect(url, namespace=namespace) as client:
            where = client.store.url
            client.inspect(namespace)  # where nobody answers, this says so at once
            client.lock(namespace, timeout=LOOK).acquire().release()
            return _seen(url, client)
    except LockfastError as error:
        said = str(error)
        say(said if where in said else f"{where}: {said}")
        return None


def _seen(url: str, client: Client) -> Store:
    scheme, kind = url.partition("://")[0], client.capabilities.store
    title = TITLES.get(scheme if scheme in TITLES else kind, kind)
    return Store(title, client.store.url, url, client.capabilities.across == "process")


def _told_apart(stores: Sequence[Store]) -> list[Store]:
    """Two of a kind have a number."""
    titles = [store.title for store in stores]
    return [
        store.called(f"{store.title} {titles[: index + 1].count(store.title)}")
        if titles.count(store.title) > 1
        else store
        for index, store in enumerate(stores)
    ]


def _sweep(stores: Sequence[Store], namespace: str) -> None:
    """Nothing is left, unless one of our processes had to be killed: then end what it held."""
    logging.disable(logging.WARNING)  # that it was broken is no news for anybody
    for store in stores:
        if not store.in_process:
            # Out of reach: it ends with its lease.
            with (
                contextlib.suppress(LockfastError),
                connect(store.secret_url, namespace=namespace) as client,
            ):
                for name in client.names():
                    _end_holds(client, name)
    logging.disable(logging.NOTSET)


def _end_holds(client: Client, name: str) -> None:
    """Until nobody has it: the next in the queue is given what was ended, and may be dead too."""
    for _ in range(MOST_CONTENDERS + 1):
        holders = client.inspect(name).holders
        if not holders:
            return
        for holder in holders:
            client.break_hold(name, holder.fence)


# ---- the end --------------------------------------------------------------------------------


def _show(plan: Plan, report: Report, results: Results) -> int:
    report.table(results)
    if plan.draw:
        report.bars(results)
    for path, write in ((plan.json, report.for_scripts), (plan.svg, report.svg)):
        if path:
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(write(results))
            except OSError as error:
                return refuse(f"{path}: {error.strerror}", USAGE)
    if any(found.overlaps for found in results.values()):
        return refuse("two contenders were inside at once: the lock is broken", BROKEN)
    return 0


def _contenders(size: int) -> str:
    return "1 contender" if size == 1 else f"{size} contenders"


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{option} {value:g}: between {low:g} and {high:g}")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What is bounded must not be cut short: a second Ctrl-C would leave something behind."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ENDING}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)

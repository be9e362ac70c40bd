"""`lockfast bench`: measure speed, fairness and cost of handing over one lock on each store.

    probe every store ── one cannot be reached ──► an error line each, exit; nothing is measured
      │
    round by round: every number of contenders, every store, in rotating order (`bench_contest`),
      │             in worker processes that are started once (`workers`)
      │
    end the workers, clean up, show the medians (`bench_report`)

All contenders compete for one random name in a namespace of the benchmark's own, with no work
inside, so nobody else's locks are touched. The stores alternate within a round, so that other load
on the machine affects them equally.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from lockfast.cli import Screen, duration
from lockfast.cli.bench_contest import Outcome, Terms, contend, medians, outcome
from lockfast.cli.bench_report import MOST_STORES, Report
from lockfast.cli.main import USAGE, end, fail, option, print_stderr, verb
from lockfast.cli.workers import WorkerPool
from lockfast.errors import ConfigurationError, LockfastError
from lockfast.sync import Client, connect

SETTLE = 0.2  # start-up phase until all contenders are in the queue; not counted
PROBE_LIMIT = 5.0

BROKEN = 1
MOST_SIZES, MOST_CONTENDERS, MOST_PROCESSES = 6, 500, 64
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TITLES = {"memory": "memory", "sqlite": "SQLite", "redis": "Redis", "postgresql": "PostgreSQL"}
TITLES |= {"mysql": "MySQL", "mariadb": "MariaDB", "zookeeper": "ZooKeeper"}

EPILOG = """\
All contenders acquire and release one random name in a namespace of the benchmark's own: other
locks are not touched, and nothing is left behind. The benchmark puts full load on the server: do
not run it against one in production.
Without a URL it measures SQLite in a new file, and memory (threads of one process).

examples:
  lockfast bench
  lockfast bench --compare redis://localhost:6379/0 sqlite:///var/tmp/bench.db
  lockfast bench --compare --svg chart.svg --json figures.json redis://:secret@localhost/0
  lockfast bench --contenders 1,200 --seconds 1 --rounds 1 redis://localhost:6379/0

exit codes:
  0    measured
  1    two contenders held the lock at once: mutual exclusion is broken
  2    wrong usage, or a store cannot be reached; nothing was measured
  69   a store became unreachable while it was measured
"""


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        problem = f"{text!r}: expected numbers and commas, as in 1,10,50"
        raise argparse.ArgumentTypeError(problem) from None


OPTIONS = (
    option("urls", nargs="*", metavar="URL", help="URL of a store, as for lockfast.connect()"),
    option("--compare", action="store_true", help="also draw bars that compare the stores"),
    option(
        "--contenders", type=_numbers, metavar="N,N,…", default=[1, 10, 50],
        help="numbers of contenders to measure (default: 1,10,50)",
    ),
    option(
        "--seconds", type=duration, metavar="TIME", default=3.0,
        help="length of a round in seconds (default: 3)",
    ),
    option(
        "--rounds", type=int, metavar="N", default=3,
        help="number of rounds; medians are shown (default: 3)",
    ),
    option(
        "--processes", type=int, metavar="N", default=4,
        help="processes that run the contenders, as threads (default: 4)",
    ),
    option("--svg", metavar="FILE", help="write a chart to FILE"),
    option("--json", metavar="FILE", help="write the figures to FILE, for scripts; - is stdout"),
)  # fmt: skip


@verb(
    "Measure hand-overs, fairness and cost of one lock on each store.",
    EPILOG,
    OPTIONS,
    usage="lockfast bench [--compare] [URL …] [--contenders N,N,…] [--seconds S]"
    "\n                      [--rounds N] [--processes N] [--svg FILE] [--json FILE]",
)
def bench(args: argparse.Namespace) -> int:
    rounds = (args.seconds, args.rounds, args.processes)
    plan = Plan(args.urls, args.contenders, *rounds, args.svg, args.json, args.compare)
    plan.check()
    for signum in ENDING[1:]:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, end)
    namespace = f"bench-{secrets.token_hex(6)}"
    quiet = io.StringIO() if plan.json == "-" else None
    with contextlib.closing(Screen(quiet)) as screen:
        with tempfile.TemporaryDirectory(
            prefix="lockfast-bench-", ignore_cleanup_errors=True
        ) as folder:
            urls = plan.urls or [f"sqlite://{folder}/locks.db", "memory://"]
            probed = [_probe(url, namespace) for url in urls]
            stores = _number_titles([store for store in probed if store])
            if len(stores) < len(urls):
                return USAGE
            report = Report(screen, plan, stores)
            report.begin(SETTLE)
            pool = WorkerPool()
            try:
                results = _measure(plan, stores, namespace, report, pool)
            finally:
                with _signals_ignored():
                    pool.end()
                    _sweep(stores, namespace)
        return _show(plan, report, results)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command. `check` rejects invalid ones before anything starts."""

    urls: Sequence[str]
    sizes: Sequence[int]
    seconds: float
    rounds: int
    processes: int
    svg: str | None = None
    json: str | None = None
    draw: bool = False

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
        for flag, path in (("--svg", self.svg), ("--json", self.json)):
            # Fail now, not after minutes of measuring.
            if path in (None, "-"):
                continue
            folder = os.path.dirname(os.path.abspath(path))
            if os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK):
                raise ConfigurationError(f"{flag} {path}: cannot be written")


@dataclass(frozen=True, slots=True)
class Store:
    """One store of the comparison."""

    title: str
    url: str  # without a password
    secret_url: str  # with the password: for connecting, never printed
    in_process: bool  # works within one process only


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{option} {value:g}: must be between {low:g} and {high:g}")


Results = Mapping[tuple[int, Store], Outcome]


def _measure(
    plan: Plan, stores: Sequence[Store], name: str, report: Report, pool: WorkerPool
) -> Results:
    """Measure all rounds; return the medians by number of contenders and store."""
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
        report.progress(store, size, len(runs) - done, SETTLE)
        workers = min(1 if store.in_process else plan.processes, size)
        outcomes[size, store].append(_round(store, name, size, workers, plan.seconds, pool))
    return {key: medians(rounds) for key, rounds in outcomes.items()}


def _round(
    store: Store, name: str, size: int, workers: int, seconds: float, pool: WorkerPool
) -> Outcome:
    # One name for the whole run: some stores remember the last fence of each name.
    shares = [len(range(worker, size, workers)) for worker in range(workers)]
    terms = [Terms(share, SETTLE, seconds) for share in shares]
    server = _listener(store.secret_url)
    spent: list[float | None] = []
    begin, results = pool.run(
        contend,
        [(store.secret_url, name, each) for each in terms],
        lasts=terms[0].lasts,
        moments=(SETTLE, SETTLE + seconds),
        observe=lambda: spent.append(_cpu(server)),
    )
    before, after = spent
    cost = None if before is None or after is None else after - before
    return outcome(results, begin + SETTLE, begin + SETTLE + seconds, cost)


# ---- the stores -----------------------------------------------------------------------------


def _probe(url: str, namespace: str) -> Store | None:
    """Acquire and release once; on failure print one line and return None."""
    where = ""
    try:
        with connect(url, namespace=namespace) as client:
            where = client._endpoint.url
            client.inspect(namespace)  # fails at once if the server does not answer
            client.lock(namespace, timeout=PROBE_LIMIT).acquire().release()
            scheme, found = url.partition("://")[0], client.capabilities
            title = TITLES.get(scheme if scheme in TITLES else found.store, found.store)
            return Store(title, where, url, found.across == "process")
    except LockfastError as error:
        message = str(error)
        print_stderr(message if where in message else f"{where}: {message}")
        return None


def _number_titles(stores: Sequence[Store]) -> list[Store]:
    """Number the titles of stores of the same kind."""
    titles = [store.title for store in stores]
    return [
        replace(store, title=f"{title} {titles[:index].count(title) + 1}")
        if titles.count(title := store.title) > 1
        else store
        for index, store in enumerate(stores)
    ]


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


# ---- CPU time of a server on this host ------------------------------------------------------

# The server is found by its listening port, among the processes whose descriptors we may read (our
# user's; as root all). If it is not found (another host, user, system), no figure beats a wrong
# one.
PROC = Path("/proc")
PORTS = {"redis": 6379, "rediss": 6379, "postgresql": 5432, "postgres": 5432}
PORTS |= {"mysql": 3306, "mariadb": 3306, "zookeeper": 2181}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LISTENS = "0A"
# Fields of /proc/PID/stat, user and system ticks: of the process itself, and of its children that
# have ended. Without the latter, the time of a forked connection handler would be lost at its end.
OWN, REAPED = (11, 12), (13, 14)


def _listener(url: str) -> int | None:
    """Lowest pid among the processes that have the listening socket of this URL open."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # a URL with several hosts
        return None
    if port is None or parts.hostname not in LOOPBACK:
        return None
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    found = [int(process.name) for process in PROC.glob("[0-9]*") if _has(process, sockets)]
    return min(found, default=None)


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _has(process: Path, sockets: set[str]) -> bool:
    with contextlib.suppress(OSError):  # not permitted, or the process has ended
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry) in sockets:
                    return True
    return False


def _cpu(pid: int | None) -> float | None:
    """CPU seconds of the server and its children so far; None if unknown."""
    if pid is None:
        return None
    try:
        ticks = _ticks(pid, OWN + REAPED)
        for path in (PROC / str(pid) / "task").glob("*/children"):  # some fork one per connection
            ticks += sum(_ticks(int(child), OWN) for child in path.read_text().split())
    except (OSError, ValueError, IndexError):  # a child has just ended
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int, which: tuple[int, ...]) -> int:
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[index]) for index in which)


# ---- the end --------------------------------------------------------------------------------


def _show(plan: Plan, report: Report, results: Results) -> int:
    report.table(results)
    if plan.draw:
        report.bars(results)
    for path, write in ((plan.json, report.json), (plan.svg, report.svg)):
        if path == "-":
            print(write(results), end="")
        elif path:
            try:
                Path(path).write_text(write(results), encoding="utf-8")
            except OSError as error:
                return fail(f"{path}: {error.strerror}", USAGE)
    if any(result.overlaps for result in results.values()):
        return fail("two contenders held the lock at once: mutual exclusion is broken", BROKEN)
    return 0


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore signals during the bounded clean-up: a second Ctrl-C would leave something behind."""
    before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in ENDING}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)

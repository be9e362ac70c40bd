"""Options and results of `lockfast bench`: a table and bars on the terminal, JSON, an SVG chart."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps

import lockfast
from lockfast.cli.bench_contest import Outcome
from lockfast.cli.chart import MOST_STORES, Bar, Chart
from lockfast.cli.screen import Screen
from lockfast.errors import ConfigurationError

MOST_SIZES = 6
MOST_CONTENDERS = 500
MOST_PROCESSES = 64
# Seconds per round besides measuring: connecting, starting together, collecting results.
OVERHEAD = 0.5
HEAD = (
    f"{'contenders':>10}  {'store':<14}{'hand-overs/s':>13}{'p50 µs':>10}{'p99 µs':>10}"
    f"{'Jain':>7}{'requests':>10}{'CPU µs':>10}{'server µs':>11}"
)
NOTES = (
    "hand-overs/s: from one contender to another; with 1 contender: release + acquire cycles",
    "p50, p99: from the call of release until the next contender holds the lock",
    "Jain: fairness index of the shares, 1 = equal · requests: to the store, per acquire",
    "CPU: of the workers, server: of the server if it runs on this host; both per acquire",
)


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
        for option, path in (("--svg", self.svg), ("--json", self.json)):
            # Fail now, not after minutes of measuring.
            folder = os.path.dirname(os.path.abspath(path)) if path else "/"
            if path and (os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK)):
                raise ConfigurationError(f"{option} {path}: cannot be written")


@dataclass(frozen=True, slots=True)
class Store:
    """One store of the comparison."""

    title: str
    url: str  # without a password
    secret_url: str  # with the password: for connecting, never printed
    in_process: bool  # works within one process only

    def retitled(self, title: str) -> Store:
        return replace(self, title=title)


Results = Mapping[tuple[int, Store], Outcome]


class Report:
    def __init__(self, screen: Screen, plan: Plan, stores: Sequence[Store]) -> None:
        self._screen, self._plan, self._stores = screen, plan, stores
        self._date, self._load = time.strftime("%Y-%m-%d"), _load()
        cores = os.cpu_count() or 1
        is_busy = self._load > cores  # before we added to it
        self._busy = f"(load {self._load:.1f} on {cores})" if is_busy else ""
        self._rounds = _plural(plan.rounds, "round")

    def begin(self, settle: float) -> None:
        """Print what will be measured, and how long it will take."""
        plan, line = self._plan, self._screen.line
        runs = len(self._stores) * len(plan.sizes) * plan.rounds
        sizes = _plural(len(plan.sizes), "number of contenders", "numbers of contenders")
        factors = [_plural(len(self._stores), "store"), sizes, self._rounds, f"{plan.seconds:g} s"]
        line(f"lockfast bench · {' × '.join(factors)}: about {self._left(runs, settle)}")
        for store in self._stores:
            line(f"  {store.title:<14}{store.url}")
        if self._busy:
            effect = "the figures will be low and vary between rounds"
            line(f"  this machine is busy {self._busy}: {effect}")

    def progress(self, store: Store, size: int, runs: int, settle: float) -> None:
        """Show the current round, and how long this and the later ones will take."""
        what = f"{store.title}, {_plural(size, 'contender')}"
        self._screen.live([f"  {what} … {self._left(runs, settle)} to go"])

    def _left(self, runs: int, settle: float) -> str:
        seconds = math.ceil(runs * (self._plan.seconds + settle + OVERHEAD))
        minutes, rest = divmod(seconds, 60)
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"

    def table(self, results: Results) -> None:
        line, paint = self._screen.line, self._screen.paint
        self._screen.live([])
        line()
        line(paint("bold", HEAD))
        for size in _sizes(results):
            for index, store in enumerate(self._stores):
                found = results[size, store]
                line(
                    f"{size if index == 0 else '':>10}  {store.title:<14}"
                    f"{_count(found.handovers):>13}{_count(found.p50):>10}{_count(found.p99):>10}"
                    f"{_fine(found.fairness):>7}{_fine(found.requests):>10}"
                    f"{_count(found.cpu):>10}{_count(found.server_cpu):>11}"
                )
        line()
        for note in NOTES:
            line(paint("dim", f"  {note}"))
        for (size, store), found in results.items():
            if found.timeouts:
                where = paint("red", f"  {store.title}, {size} contenders: ")
                line(f"{where}{_plural(round(found.timeouts), 'acquire')} timed out")

    def bars(self, results: Results) -> None:
        """Draw each store against the fastest one, by number of contenders."""
        line, screen = self._screen.line, self._screen
        for size in _sizes(results):
            most = max(results[size, store].handovers for store in self._stores) or 1.0
            line()
            line(f"{size:>10}  {'hand-overs/s' if size > 1 else 'cycles/s'}")
            for store in self._stores:
                rate = results[size, store].handovers
                bar = screen.paint("yellow", screen.bar(rate / most, 36))
                line(f"{'':>10}  {store.title:<14}{bar} {rate / most:5.2f}×{_count(rate):>10}")

    def json(self, results: Results) -> str:
        figures = {
            "lockfast": lockfast.__version__,
            "date": self._date,
            "machine": _machine(),
            "load": round(self._load, 2),
            "seconds": self._plan.seconds,
            "rounds": self._plan.rounds,
            "processes": self._plan.processes,
            "stores": [{"store": store.title, "url": store.url} for store in self._stores],
            "results": [
                {"store": store.title, "contenders": size, **found.as_json()}
                for (size, store), found in results.items()
            ],
        }
        return dumps(figures, indent=2, ensure_ascii=False) + "\n"

    def svg(self, results: Results) -> str:
        groups = []
        for size in _sizes(results):
            found = [results[size, store] for store in self._stores]
            bars = [Bar(index, one.handovers, one.p50, one.p99) for index, one in enumerate(found)]
            groups.append(("1, uncontended" if size == 1 else f"{size} contenders", bars))
        processes = _plural(self._plan.processes, "process", "processes")
        caption = (
            "All contenders acquire and release one name, with no work inside; medians of "
            f"{self._rounds} of {self._plan.seconds:g} s, alternating.",
            f"Contenders are threads in up to {processes} "
            "(memory: in one). With 1 contender: its release + acquire cycles.",
            f"lockfast {lockfast.__version__} · {_machine()} · {self._date}"
            + (f" · a busy machine {self._busy}" if self._busy else ""),
        )
        titles = [store.title for store in self._stores]
        return Chart("One lock, many contenders", titles, groups, caption).svg()


def _sizes(results: Results) -> list[int]:
    return sorted({size for size, _ in results})


def _machine() -> str:
    """Describe the machine, without its host name. Figures mean little without this."""
    cores = _plural(os.cpu_count() or 1, "core")
    return f"{cores}, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _load() -> float:
    """Load average of the last minute; 0 where the system does not report it."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{option} {value:g}: must be between {low:g} and {high:g}")


def _plural(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def _count(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _fine(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"

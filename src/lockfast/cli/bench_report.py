"""Results of `lockfast bench`: a table and bars on the terminal, JSON, and an SVG chart."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps

import lockfast
from lockfast.cli.bench_outcome import Outcome
from lockfast.cli.chart import Bar, Chart
from lockfast.cli.screen import Screen

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
    def __init__(
        self, screen: Screen, stores: Sequence[Store], seconds: float, rounds: int, processes: int
    ) -> None:
        self._screen, self._stores = screen, stores
        self._seconds, self._rounds, self._processes = seconds, rounds, processes
        self._date, self._load = time.strftime("%Y-%m-%d"), load()

    def begin(self, sizes: int, seconds: float) -> None:
        """Print what will be measured, and how long it will take."""
        factors = [
            _plural(len(self._stores), "store", "stores"),
            _plural(sizes, "number of contenders", "numbers of contenders"),
            _plural(self._rounds, "round", "rounds"),
            f"{self._seconds:g} s",
        ]
        line = self._screen.line
        line(f"lockfast bench · {' × '.join(factors)}: about {format_seconds(seconds)}")
        for store in self._stores:
            line(f"  {store.title:<14}{store.url}")
        if self._busy:
            effect = "the figures will be low and vary between rounds"
            line(f"  this machine is busy {self._busy}: {effect}")

    @property
    def _busy(self) -> str:
        """Load and cores, if the load exceeded the number of cores before the start; else empty."""
        cores = os.cpu_count() or 1
        return f"(load {self._load:.1f} on {cores})" if self._load > cores else ""

    def table(self, results: Results) -> None:
        line, paint = self._screen.line, self._screen.paint
        line()
        line(paint("bold", HEAD))
        for size in sizes_of(results):
            for index, store in enumerate(self._stores):
                found = results[size, store]
                row = f"{size if index == 0 else '':>10}  {store.title:<14}"
                row += (
                    f"{_count(found.handovers):>13}{_count(found.p50):>10}{_count(found.p99):>10}"
                )
                row += f"{_fine(found.fairness):>7}{_fine(found.requests):>10}"
                line(f"{row}{_count(found.cpu):>10}{_count(found.server_cpu):>11}")
        line()
        for note in NOTES:
            line(paint("dim", f"  {note}"))
        for (size, store), found in results.items():
            if found.timeouts:
                where = paint("red", f"  {store.title}, {size} contenders: ")
                line(f"{where}{_plural(round(found.timeouts), 'acquire', 'acquires')} timed out")

    def bars(self, results: Results) -> None:
        """Draw each store against the fastest one, by number of contenders."""
        line, screen = self._screen.line, self._screen
        for size in sizes_of(results):
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
            "machine": machine(),
            "load": round(self._load, 2),
            "seconds": self._seconds,
            "rounds": self._rounds,
            "processes": self._processes,
            "stores": [{"store": store.title, "url": store.url} for store in self._stores],
            "results": [
                {"store": store.title, "contenders": size, **found.as_json()}
                for (size, store), found in results.items()
            ],
        }
        return dumps(figures, indent=2, ensure_ascii=False) + "\n"

    def svg(self, results: Results) -> str:
        groups = []
        for size in sizes_of(results):
            found = [results[size, store] for store in self._stores]
            bars = [Bar(index, one.handovers, one.p50, one.p99) for index, one in enumerate(found)]
            groups.append(("1, uncontended" if size == 1 else f"{size} contenders", bars))
        caption = (
            "All contenders acquire and release one name, with no work inside; medians of "
            f"{_plural(self._rounds, 'round', 'rounds')} of {self._seconds:g} s, alternating.",
            f"Contenders are threads in up to {_plural(self._processes, 'process', 'processes')} "
            "(memory: in one). With 1 contender: its release + acquire cycles.",
            f"lockfast {lockfast.__version__} · {machine()} · {self._date}"
            + (f" · a busy machine {self._busy}" if self._busy else ""),
        )
        titles = [store.title for store in self._stores]
        return Chart("One lock, many contenders", titles, groups, caption).svg()


def sizes_of(results: Results) -> list[int]:
    return sorted({size for size, _ in results})


def machine() -> str:
    """Describe the machine, without its host name. Figures mean little without this."""
    cores = _plural(os.cpu_count() or 1, "core", "cores")
    return f"{cores}, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def load() -> float:
    """Load average of the last minute; 0 where the system does not report it."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def needed(runs: int, seconds: float) -> float:
    return runs * (seconds + OVERHEAD)


def format_seconds(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _plural(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def _count(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _fine(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"

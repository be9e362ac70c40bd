"""Results of `lockfast bench`: a table and bars on the terminal, JSON, an SVG chart."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import lockfast
from lockfast.cli import Screen

if TYPE_CHECKING:
    from lockfast.cli.bench import Plan, Results, Store

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


def _plural(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"


def _count(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _fine(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


# ---- the chart -------------------------------------------------------------------------------

# Two panels: hand-overs per second (linear, so that lengths compare), and release → next holder
# (logarithmic, as it spans decades; the full bar is the median, the pale one behind it the 99th
# percentile). One color per store, a number on every bar. The file contains its background and a
# light and a dark color scheme, so that it is readable anywhere.

WIDTH = 880
LEFT, RIGHT = 64, 24
PANEL = 210  # height of the tallest bar
GROUP_GAP, GAP = 34, 3
WIDEST_BAR = 64
ROOM_FOR_NUMBER = 42  # on narrower bars numbers are written vertically
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

# Distinguishable with most kinds of color vision, and dark enough for white text. Light, dark.
COLORS = (
    ("#2463b4", "#3b7dd8"), ("#b8471b", "#d4602f"), ("#24755a", "#2f9272"), ("#8a4a9e", "#a463ba"),
    ("#86660c", "#a07c17"), ("#a8325a", "#c94b76"), ("#3f6c8a", "#5486a6"), ("#5c5c5c", "#7d7d7d"),
)  # fmt: skip
MOST_STORES = len(COLORS)


@dataclass(frozen=True, slots=True)
class Bar:
    """One store in one group; NaN where there is no figure."""

    store: int
    rate: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Contents of a chart: groups, each with a title and a bar per store."""

    title: str
    stores: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Bar]]]
    caption: Sequence[str]

    def svg(self) -> str:
        """Draw the whole file."""
        body = [text(LEFT, 36, self.title, "title"), *self._legend(62)]
        body += [*self._rates(92.0), *self._latencies(PANEL + 184.0)]
        y = 2 * PANEL + 246.0
        for line in self.caption:
            body.append(text(LEFT, y, line, "small"))
            y += 16
        height = round(y + 8)
        size = f'width="{WIDTH - 1}" height="{height - 1}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{xml_quoted(self.title)}">\n'
            f"<style>{style(len(self.stores))}</style>\n"
            f'<rect class="ground" x="0.5" y="0.5" {size} rx="8"/>'
        )
        return "\n".join([head, *body, "</svg>\n"])

    def _legend(self, y: float) -> list[str]:
        drawn, x = [], float(LEFT)
        for index, store in enumerate(self.stores):
            drawn.append(rect(x, y - 10, 11, 11, f"s{index}"))
            drawn.append(text(x + 17, y, store, "legend"))
            x += 17 + 7.4 * len(store) + 22
        return drawn

    def _rates(self, top: float) -> list[str]:
        most = max((bar.rate for _, bars in self.groups for bar in bars), default=0.0)
        step = nice_step(most)
        ceiling = max(math.ceil(most / step), 1) * step
        base = top + 20 + PANEL
        room = PANEL if self._is_roomy else PANEL - 32  # vertical numbers need space

        def at(value: float) -> float:
            return base - room * value / ceiling

        ticks = [index * step for index in range(round(ceiling / step) + 1)]
        drawn = [text(LEFT, top, "hand-overs per second", "panel")]
        drawn += grid([(at(tick), short(tick)) for tick in ticks])
        for x, width, bar in self._bars(base, drawn):
            if bar.rate > 0:
                drawn.append(rect(x, at(bar.rate), width, base - at(bar.rate), f"s{bar.store}"))
                drawn.append(number(x, at(bar.rate), width, short(bar.rate)))
        return drawn

    def _latencies(self, top: float) -> list[str]:
        known = [bar for _, bars in self.groups for bar in bars if bar.p50 > 0]
        # Half of the least value, so that even the shortest bar has room for its number.
        low = math.floor(math.log10(min((bar.p50 for bar in known), default=10.0) / 2))
        high = math.ceil(math.log10(max((bar.p99 for bar in known), default=100.0)))
        base = top + 20 + PANEL
        room = PANEL if self._is_roomy else PANEL - 90

        def at(micros: float) -> float:
            return base - room * (math.log10(micros) - low) / (high - low)

        drawn = [
            text(LEFT, top, "release → next holder: median (pale: 99th percentile)", "panel"),
            text(WIDTH - RIGHT, top, "logarithmic", "small end"),
            *grid([(at(10.0**power), duration(10.0**power)) for power in range(low, high + 1)]),
        ]
        for x, width, bar in self._bars(base, drawn):
            if bar.p50 > 0:
                tall, full = at(max(bar.p99, bar.p50)), at(bar.p50)
                drawn.append(rect(x, tall, width, base - tall, f"s{bar.store} pale"))
                drawn.append(rect(x, full, width, base - full, f"s{bar.store}"))
                p50, p99 = duration(bar.p50), duration(bar.p99)
                if self._is_roomy:
                    drawn.append(number(x, tall, width, p99))
                    drawn.append(text(x + width / 2, full + 13, p50, "inside middle"))
                else:
                    drawn.append(number(x, tall, width, f"{p50}, {p99}"))
        return drawn

    def _bars(self, base: float, drawn: list[str]) -> list[tuple[float, float, Bar]]:
        """Position and width of each bar. Adds the titles of the groups to ``drawn``."""
        room, width = self._room()
        positions = []
        for index, (title, bars) in enumerate(self.groups):
            middle = LEFT + room * (index + 0.5)
            drawn.append(text(middle, base + 20, title, "group middle"))
            first = middle - width * len(bars) / 2
            for position, bar in enumerate(bars):
                positions.append((first + position * width + GAP / 2, width - GAP, bar))
        return positions

    def _room(self) -> tuple[float, float]:
        """Width of a group, and of a bar including its gap."""
        room = (WIDTH - LEFT - RIGHT) / max(len(self.groups), 1)
        return room, min((room - GROUP_GAP) / max(len(self.stores), 1), WIDEST_BAR)

    @property
    def _is_roomy(self) -> bool:
        """True if numbers fit horizontally above the bars."""
        return self._room()[1] - GAP >= ROOM_FOR_NUMBER


def style(stores: int) -> str:
    """Style sheet: the light color scheme, and the dark one as a media query."""

    def scheme(which: int, ground: str, edge: str, ink: str, soft: str, line: str) -> str:
        rules = [f".ground{{fill:{ground};stroke:{edge}}}text{{fill:{ink}}}"]
        rules += [f".small,.tick{{fill:{soft}}}.grid{{stroke:{line}}}"]
        rules += [f".s{index}{{fill:{COLORS[index][which]}}}" for index in range(stores)]
        return "".join([*rules, ".inside{fill:#ffffff}"])

    return (
        f"text{{font-family:{FONT};font-size:12px}}"
        ".title{font-size:17px;font-weight:600}.panel,.legend{font-size:13px}"
        ".panel,.group{font-weight:600}.small,.tick,.number,.inside{font-size:11px}"
        ".middle{text-anchor:middle}.end{text-anchor:end}.pale{opacity:0.4}"
        + scheme(0, "#ffffff", "#d5d9de", "#1f2328", "#59636e", "#e4e7eb")
        + "@media (prefers-color-scheme: dark){"
        + scheme(1, "#14181d", "#333a42", "#e6e9ed", "#9aa4af", "#2a3037")
        + "}"
    )


def text(x: float, y: float, content: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(content)}</text>'


def number(x: float, y: float, width: float, content: str) -> str:
    """Write a number above a bar; vertically if the bar is narrow."""
    middle = x + width / 2
    if width >= ROOM_FOR_NUMBER:
        return text(middle, y - 4, content, "number middle")
    turned = f"translate({middle + 4:.1f} {y - 4:.1f}) rotate(-90)"
    return f'<text transform="{turned}" class="number">{escape(content)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    size = f'width="{width:.1f}" height="{max(height, 1):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} class="{kind}"/>'


def grid(lines: Sequence[tuple[float, str]]) -> list[str]:
    drawn = []
    for y, label in lines:
        ends = f'x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"'
        drawn.append(f'<line {ends} class="grid"/>')
        drawn.append(text(LEFT - 8, y + 4, label, "tick end"))
    return drawn


def xml_quoted(content: str) -> str:
    return escape(content, {'"': "&quot;"})


def nice_step(most: float) -> float:
    """Grid step for about five lines: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit * 5 >= most * 0.999)


def short(value: float) -> str:
    """Format with at most three digits: 950, 9.5k, 12k."""
    if value < 999.5:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 9950 and value % 1000 else f"{value / 1e3:.0f}k"


def duration(micros: float) -> str:
    """Format µs with few digits: 45 µs, 1.2 ms, 0.5 s; NaN is a dash."""
    if math.isnan(micros):
        return "–"
    for unit, size in (("µs", 1.0), ("ms", 1e3), ("s", 1e6)):
        if (value := micros / size) < 999.5 or unit == "s":
            whole = value >= 9.95 or abs(value - round(value)) < 0.05
            return f"{value:.0f} {unit}" if whole else f"{value:.1f} {unit}"
    raise AssertionError(micros)

"""Measure all stores and write docs/comparison.md: ``python bench/compare.py``, 3 to 4 minutes.

It starts its own servers, runs ``lockfast bench --compare`` on them, and writes the chart
(docs/comparison.svg) and, between two markers, the figures of docs/comparison.md. Measure on a
quiet machine. ``--seconds 0.2 --rounds 1`` is a quick try; ``--json FILE`` keeps the figures,
``--docs DIR`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lab.servers.mariadb_server import MariaDBServer
from lab.servers.postgres_server import PostgresServer
from lab.servers.redis_server import RedisServer
from lab.servers.zookeeper_server import ZooKeeperServer

ROOT = Path(__file__).resolve().parent.parent

BEGIN, END = "<!-- figures: written by bench/compare.py -->", "<!-- end of figures -->"
# Title, the key in the figures, and how it is written.
COLUMNS = (
    ("hand-overs/s", "handovers", "{:,.0f}"),
    ("p50 µs", "p50", "{:,.0f}"),
    ("p99 µs", "p99", "{:,.0f}"),
    ("fairness", "fairness", "{:.2f}"),
    ("requests", "requests", "{:.2f}"),
    ("CPU µs", "cpu", "{:,.0f}"),
    ("server µs", "server_cpu", "{:,.0f}"),
)


def main() -> int:
    options = _options()
    folder = Path(options.docs)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lf")))
        figures = Path(options.json or scratch / "figures.json")
        servers = [
            stack.enter_context(kind())
            for kind in (RedisServer, PostgresServer, MariaDBServer, ZooKeeperServer)
        ]
        urls = [f"sqlite://{scratch}/bench.db", *(server.url for server in servers)]
        urls = [url.replace("mysql:", "mariadb:") for url in urls]
        lengths = ["--seconds", f"{options.seconds:g}", "--rounds", f"{options.rounds}"]
        files = ["--svg", f"{folder}/comparison.svg", "--json", f"{figures}"]
        command = [sys.executable, "-m", "lockfast", "bench", "--compare", *lengths, *files, *urls]
        ended = subprocess.run(command)
        if ended.returncode:
            return ended.returncode
        found = json.loads(figures.read_text(encoding="utf-8"))
    page = folder / "comparison.md"
    page.write_text(_with(page.read_text(encoding="utf-8"), found, options), encoding="utf-8")
    print(f"\nwritten: {page} and its chart")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measure all stores, and write the page of it")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="keep the figures there")
    parser.add_argument("--docs", metavar="DIR", default=str(ROOT / "docs"))
    return parser.parse_args()


def _with(page: str, found: dict[str, Any], options: argparse.Namespace) -> str:
    """The page, with these figures in the place of the old ones."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"the page lacks the markers {BEGIN} and {END}")
    return "\n".join((f"{before}{BEGIN}", *_figures(found, options), f"{END}{after}"))


def _figures(found: dict[str, Any], options: argparse.Namespace) -> list[str]:
    load = found["load"]
    busy = f" The machine was busy (load {load:.1f} when it began): take the ratios, not the "
    lines = [
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, {datetime.date.today()}; medians of {options.rounds} rounds "
        f"of {options.seconds:g} s, contenders in up to four processes."
        + (f"{busy}figures." if load > (os.cpu_count() or 1) else ""),
        "",
        f"| contenders | store | {' | '.join(column[0] for column in COLUMNS)} |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for result in sorted(found["results"], key=lambda one: one["contenders"]):
        cells = [
            "–" if result[key] is None else form.format(result[key]) for _, key, form in COLUMNS
        ]
        lines.append(f"| {result['contenders']} | {result['store']} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())

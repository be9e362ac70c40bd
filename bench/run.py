"""All benchmarks in one run: ``python bench/run.py [section…] [--quick] [--json FILE]``.

A missed target does not fail the run, since the machine may be busy; with ``--check`` it is exit
code 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import sqlite3
import sys
import time
import traceback

from sections._line import Line, number, table
from sections._processes import pool

SECTIONS = (
    "core", "sqlite", "handover", "idle", "keeper",
    "redis", "redis_contended", "redis_idle", "redis_keeper", "redis_names", "redis_sentinel",
    "redis_cluster", "redlock", "primitives",
    "zookeeper", "zookeeper_contended", "sql", "sql_wakeups",
)  # fmt: skip


def main() -> int:
    options = _options()
    machine = _machine()
    print(f"lockfast benchmarks on {machine}{' (quick)' if options.quick else ''}", flush=True)
    found: dict[str, list[Line]] = {}
    failed = []
    for name in options.section or SECTIONS:
        section = importlib.import_module(f"sections.{name}")
        began = time.monotonic()
        try:
            found[name] = section.measure(options.quick)
        except Exception:  # the other sections are still worth measuring
            failed.append(name)
            traceback.print_exc()
            continue
        finally:
            pool.end()  # or they would wait beside the sections that need none
        title = f"{name}: {(section.__doc__ or '').strip().splitlines()[0]}"
        print(f"\n{table(title, found[name])}\n({time.monotonic() - began:.1f} s)", flush=True)
    lines = [line for section_lines in found.values() for line in section_lines]
    missed = [line for line in lines if line.met is False]
    targets = sum(line.met is not None for line in lines)
    print(f"\n{targets - len(missed)} of {targets} targets met")
    for line in missed:
        ratio = f" ({line.ratio})" if line.ratio else ""
        print(f"  ✗ {line.what}: {number(line.value)} {line.unit}{ratio}, target {line.target}")
    if options.json:
        _write(options.json, machine, options.quick, found)
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
        return 2
    return 1 if missed and options.check else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="lockfast's benchmarks, as ratios in one run")
    parser.add_argument("section", nargs="*", help=f"which (default: all): {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    for name in options.section:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}: there are {', '.join(SECTIONS)}")
    return options


def _machine() -> str:
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores (load {load:.1f}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def _write(path: str, machine: str, quick: bool, found: dict[str, list[Line]]) -> None:
    sections = {name: [dataclasses.asdict(line) for line in lines] for name, lines in found.items()}
    with open(path, "w", encoding="utf-8") as file:
        shown = {"machine": machine, "quick": quick, "sections": sections}
        json.dump(shown, file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())

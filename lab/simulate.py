"""``make simulate``: run seeds, print a summary, and show each failing seed so that it replays.

python -m lab.simulate --seeds 3000 --first 1 --store redis
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lab.simulation.bugs import BUGS
from lab.simulation.kinds import kinds_of
from lab.simulation.lua_bugs import LUA_BUGS
from lab.simulation.network import MemoryServer, Server
from lab.simulation.replica_bugs import REPLICA_BUGS
from lab.simulation.scenario import Report, run_seed

if TYPE_CHECKING:
    from lab.simulation.quorum_run import QuorumReport

STORES = ("memory", "redis", "replicas", "forgetful", "redlock")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3000, help="number of seeds")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--store", choices=STORES, default="memory")
    bugs = sorted([*BUGS, *LUA_BUGS, *REPLICA_BUGS])
    parser.add_argument(
        "--bug", choices=bugs, help="plant this bug, and search for a seed that finds it"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print all violations of a failing seed"
    )
    options = parser.parse_args(argv)
    if options.bug:
        return hunt(options.bug, options.first, options.seeds)
    began = time.perf_counter()
    failed = acquired = lost = handovers = 0
    for report in reports_of(options.store, range(options.first, options.first + options.seeds)):
        acquired += report.acquired
        lost += report.lost
        handovers += report.handovers
        if report.violations:
            failed += 1
            shown = report.violations if options.verbose else report.violations[:2]
            print(f"seed {report.seed}:", *shown, sep="\n    ")
    took = time.perf_counter() - began
    print(
        f"{options.seeds} seeds of 30 virtual seconds, {failed} failed; {acquired} holds, "
        f"{handovers} waits, {lost} losses; {options.seeds / took * 60:.0f} seeds per minute"
    )
    return 1 if failed else 0


def reports_of(store: str, seeds: range) -> Iterator[Report | QuorumReport]:
    """Yield the report of each seed. A quorum has a scenario of its own."""
    if store == "redlock":
        from lab.simulation.quorum_run import run_quorum_seed

        yield from map(run_quorum_seed, seeds)
        return
    server = server_of(store)
    for seed in seeds:
        if server.has(kinds_of(seed)):
            yield run_seed(seed, server)


def server_of(store: str) -> type[Server]:
    """Return the class of the simulated server. Redis needs hiredis and Lua (lupa on PyPI)."""
    if store == "memory":
        return MemoryServer
    from lab.simulation.redis import RedisServer
    from lab.simulation.replicas import Forgetful, Replicated

    return {"redis": RedisServer, "replicas": Replicated, "forgetful": Forgetful}[store]


def hunt(bug: str, first: int, seeds: int) -> int:
    """Plant a bug and search for a seed that finds it; return 1 if none does."""
    plant, kind, known = (BUGS | LUA_BUGS | REPLICA_BUGS)[bug]
    store = server_of(known or ("redis" if bug in LUA_BUGS else "memory"))
    with plant():
        for seed in range(first, first + seeds):
            if kind not in kinds_of(seed) or not store.has(kinds_of(seed)):
                continue
            violations = run_seed(seed, store).violations
            if violations:
                print(f"{bug}: found by seed {seed}: {violations[0]}")
                return 0
    print(f"{bug}: NOT found in {seeds} seeds: the witness is blind to it")
    return 1


if __name__ == "__main__":
    sys.exit(main())

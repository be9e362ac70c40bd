"""10,000 held leases on Redis that one keeper renews: threads, CPU, and the latency of others.

The latency is that of another process's PING on a bare socket. On a machine with few cores it also
reflects other processes, so it is measured before anything is held too, and the server reports the
time of its own steps (INFO commandstats).
"""

from __future__ import annotations

import threading
import time

import lockfast
from lockfast.cli.bench_contest import percentile

from ._line import Line, at_most, number
from ._processes import Ready, together, wait_until
from ._redis import Bare, Server, packed

LEASES = 10_000
CPU = 0.05  # seconds for 10,000 renewals
PING = 5.0  # ms
PROBE_EVERY = 0.001


def measure(quick: bool) -> list[Line]:
    lease = 3.0 if quick else 6.0  # renewed after a third of it
    seconds = 1.5 if quick else 2 * lease
    with Server() as server, lockfast.connect(server.url) as client:
        quiet = together(_probe, 1, server.port, seconds, lasts=seconds)[0]
        threads = threading.active_count()
        for index in range(LEASES):
            client.lock(f"orders:{index}", lease=lease, renew=True).acquire()
        threads = threading.active_count() - threads
        # The CPU first, without the bustle of starting another process.
        idle = _cpu_of_a_pause(0.2) / 0.2
        before, steps = client.statistics(), _steps(server)
        spent = _cpu_of_a_pause(seconds) - idle * seconds
        after, steps_after = client.statistics(), _steps(server)
        pings = together(_probe, 1, server.port, seconds, lasts=seconds)[0]
        lost = client.statistics().lost
    renewed = after.renewals - before.renewals
    scripts = steps_after[0] - steps[0]
    step = (steps_after[1] - steps[1]) / max(scripts, 1) / 1000
    per_batch = max(spent, 0.0) / max(renewed, 1) * 10_000
    each = f"{number(renewed / max(scripts, 1))} in a script, {number(renewed)} in all"
    calm = f"{number(max(quiet))} ms with nothing held"
    return [
        at_most(1, f"threads for {LEASES:,} leases", threads, "threads"),
        at_most(CPU, "CPU for 10,000 renewals", per_batch, "s", each),
        at_most(0, "lost meanwhile", lost, "leases"),
        Line("another's PING meanwhile, p50", percentile(pings, 0.50), "ms"),
        Line("another's PING meanwhile, p99", percentile(pings, 0.99), "ms"),
        at_most(PING, "another's PING meanwhile, longest", max(pings), "ms", calm),
        Line("a step of renewals at the server, mean", step, "ms"),
    ]


def _steps(server: Server) -> tuple[int, int]:
    """How many scripts it ran until now, and how many µs they took."""
    shown = server.info("commandstats")["cmdstat_evalsha"]
    return int(shown["calls"]), int(shown["usec"])


def _cpu_of_a_pause(seconds: float) -> float:
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


def _probe(index: int, ready: Ready, port: int, seconds: float) -> list[float]:
    """How long each PING took, in ms."""
    bare, ping = Bare(port), packed("PING")
    bare.ask(ping)
    begin = ready()
    wait_until(begin)
    took = []
    while (asked := time.monotonic()) < begin + seconds:
        bare.socket.sendall(ping)
        bare.socket.recv(64)
        took.append((time.monotonic() - asked) * 1e3)
        time.sleep(PROBE_EVERY)
    bare.close()
    return took

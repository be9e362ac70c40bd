"""10,000 held leases that one keeper renews: threads, CPU, and the latency of other clients."""

from __future__ import annotations

import tempfile
import threading
import time

import lockfast
from lockfast.cli.bench_contest import percentile

from ._line import Line, at_most
from ._processes import Ready, together, wait_until

LEASES = 10_000
CPU = 0.05  # seconds for 10,000 renewals
PROBE_EVERY = 0.002


def measure(quick: bool) -> list[Line]:
    lines = _one_store("memory", "memory://bench-keeper", quick)
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as folder:
        return lines + _one_store("sqlite", f"sqlite://{folder}/locks.db", quick)


def _one_store(store: str, url: str, quick: bool) -> list[Line]:
    lease = 3.0 if quick else 6.0  # renewed after a third of it
    seconds = 0.75 * lease if quick else lease
    threads = threading.active_count()
    idle = _cpu_of_a_pause(0.5) / 0.5
    with lockfast.connect(url) as client:
        for number in range(LEASES):
            client.lock(f"orders:{number}", lease=lease, renew=True).acquire()
        threads = threading.active_count() - threads
        before = client.statistics()
        spent = _cpu_of_a_pause(seconds) - idle * seconds
        after = client.statistics()
        renewed = after.renewals - before.renewals
        claims = _claims_meanwhile(store, url, 0.5 * lease)
        lost = client.statistics().lost
    # Its renewals and its looking at 10,000 holds; what a pause costs anyway is taken off.
    per_batch = max(spent, 0.0) / max(renewed, 1) * 10_000
    return [
        at_most(1, f"{store}: threads for {LEASES:,} leases", threads, "threads"),
        at_most(CPU, f"{store}: CPU for 10,000 renewals", per_batch, "s", f"{renewed:,} renewed"),
        at_most(0, f"{store}: lost meanwhile", lost, "leases"),
        Line(f"{store}: another's claim meanwhile, p50", percentile(claims, 0.50), "µs"),
        Line(f"{store}: another's claim meanwhile, p99", percentile(claims, 0.99), "µs"),
        Line(f"{store}: another's claim meanwhile, longest", max(claims), "µs"),
    ]


def _cpu_of_a_pause(seconds: float) -> float:
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


def _claims_meanwhile(store: str, url: str, seconds: float) -> list[float]:
    """How long claims of another client take, in µs: in another process if the store reaches it."""
    if store == "memory":
        return _probe(0, time.monotonic, url, seconds)
    return together(_probe, 1, url, seconds, lasts=seconds)[0]


def _probe(index: int, ready: Ready, url: str, seconds: float) -> list[float]:
    with lockfast.connect(url) as client:
        lock = client.lock("another's")
        lock.acquire().release()
        begin = ready()
        wait_until(begin)
        took = []
        while (asked := time.monotonic()) < begin + seconds:
            hold = lock.acquire(timeout=5)
            took.append((time.monotonic() - asked) * 1e6)
            hold.release()
            time.sleep(PROBE_EVERY)
        return took

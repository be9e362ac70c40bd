"""Health checks of a store: is it fit for locks?

    contact ── cannot be reached ──► one check, and no more
      │
    the store's own checks (its `health.py`): eviction, persistence, replicas, time-outs, …
      │
    acquire, renew, inspect, list, hand over, break, release: a missing permission shows up here
      │
    latency; whether fences grow; the server's clock against ours

The doctor uses a random name of its own, as a user's program would. It touches no other lock and
leaves nothing behind, except tables that the first use of the store would create.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from lockfast import clock
from lockfast.cli.admin import log_silenced
from lockfast.cli.render import moment
from lockfast.errors import AcquireTimeout, BackendError, LockfastError
from lockfast.stores.health_checks import (
    HealthCheck,
    Level,
    SupportsHealthChecks,
    bad,
    note,
    ok,
    warn,
)
from lockfast.sync import Client, Hold

NAMESPACE = "lockfast-doctor"
CYCLES, MEASURING_LIMIT = 50, 3.0
PATIENCE, LEASE = 5.0, 10.0
# Limits of the median and of the 99th percentile. An outlier must not fail a CI run, so the second
# yields only a note.
SLOW_P50, SLOW_P99 = 0.1, 0.05
MAX_SKEW = 1.0
# What an operator can do about a permanent error of the store.
MISSING = "the error message names what is missing"


def examine(client: Client) -> Iterator[HealthCheck]:
    """Run all checks, in the order above."""
    with log_silenced():  # the checks report what would be logged
        name = f"doctor-{secrets.token_hex(8)}"
        try:
            client.inspect(name)
        except BackendError as error:
            yield _not_reached(error)
            if error.transient:
                yield from _store_checks(client)  # may show the reason, if the server answers
                return
        else:
            yield ok("contact", f"{client.store.url} answers")
        yield from _store_checks(client)
        yield from _verbs(client, name)


def _not_reached(error: BackendError) -> HealthCheck:
    down = "check that the server runs and can be reached from this host"
    do = down if error.transient else MISSING
    return replace(bad("contact", str(error), do), facts={"transient": error.transient})


def _store_checks(client: Client) -> Iterator[HealthCheck]:
    if not isinstance(client.store, SupportsHealthChecks):
        yield note("store", "this kind of store has no health checks of its own")
        return
    try:
        yield from client.store.health_checks()
    except BackendError:
        pass  # reported by the contact check, or by the verbs that follow


def _verbs(client: Client, name: str) -> Iterator[HealthCheck]:
    try:
        hold = client.lock(name, lease=LEASE, owner="doctor").acquire(timeout=PATIENCE)
    except LockfastError as error:
        yield bad("rights", f"a lock cannot be acquired: {error}", MISSING)
        return
    fences = [hold.fence]
    done = 0
    for what, step in (
        ("renewed", lambda: hold.renew()),
        ("inspected", lambda: client.inspect(name)),
        ("listed", lambda: client.names(name)),
        ("waited for", lambda: fences.append(_hand_over(client, name, hold))),
        ("broken", lambda: fences.append(_break(client, name))),
    ):
        health_check = _attempt(what, step)
        if health_check is not None:
            yield health_check
        else:
            done += 1
    _attempt("released", lambda: hold.release() if hold.is_held else None)
    if done == 5:
        yield ok("rights", "a lock can be acquired, renewed, inspected, listed, waited for, broken")
    if fences != sorted(set(fences)):
        found = f"fences do not grow from hold to hold: {', '.join(map(str, fences))}"
        do = "do not use this store for locks, and report a bug in lockfast"
        yield bad("fence", found, do)
    yield from _latency(client, name)
    if client.capabilities.across == "network":
        yield from _clock(client, name)


def _attempt(what: str, step: Callable[[], object]) -> HealthCheck | None:
    try:
        step()
    except LockfastError as error:
        return bad("rights", f"a lock cannot be {what}: {error}", MISSING)
    return None


def _hand_over(client: Client, name: str, hold: Hold) -> int:
    """Release while a waiter waits; it is granted by a wake-up, or by the fallback poll."""
    refused: list[LockfastError] = []

    def release() -> None:
        try:
            hold.release()
        except LockfastError as error:
            refused.append(error)

    soon = threading.Timer(0.05, release)
    soon.start()
    try:
        with client.lock(name, lease=LEASE, owner="heir").acquire(timeout=PATIENCE) as heir:
            fence = heir.fence
    except AcquireTimeout as error:
        if not refused:
            raise BackendError(f"no hand-over within {PATIENCE:g} s: {error}") from error
    finally:
        soon.join()
    if refused:  # also if the waiter got the lock: it polls now and then without a wake-up
        raise refused[0]
    return fence


def _break(client: Client, name: str) -> int:
    doomed = client.lock(name, lease=LEASE, owner="doomed").acquire(timeout=PATIENCE)
    try:
        broken = client.break_hold(name, doomed.fence)
    finally:
        with contextlib.suppress(LockfastError):  # the expected HoldLost
            doomed.release()
    if not broken:
        raise BackendError("the store did not break the hold, although its fence was current")
    with client.lock(name, lease=LEASE, owner="next").acquire(timeout=PATIENCE) as after:
        return after.fence


def _latency(client: Client, name: str) -> Iterator[HealthCheck]:
    taken: list[float] = []
    until = clock.now() + MEASURING_LIMIT
    try:
        while len(taken) < CYCLES and clock.now() < until:
            began = time.perf_counter()
            client.lock(name, lease=LEASE, owner="timed").acquire(timeout=PATIENCE).release()
            taken.append(time.perf_counter() - began)
    except LockfastError as error:
        yield bad("latency", str(error), "run the check again")
        return
    yield judged_latency(taken)


def judged_latency(taken: list[float]) -> HealthCheck:
    """Judge the durations of acquire-and-release cycles."""
    taken = sorted(taken)
    p50, p99 = taken[len(taken) // 2], taken[min(len(taken) * 99 // 100, len(taken) - 1)]
    text = f"acquire and release: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms"
    text += f" ({len(taken)} cycles)"
    if p50 >= SLOW_P50:
        health_check = warn("latency", text, "find out what is slow: the network, or the server")
    elif p99 >= SLOW_P99:
        health_check = note("latency", text)
    else:
        health_check = ok("latency", text)
    facts = {"p50_ms": round(p50 * 1e3, 3), "p99_ms": round(p99 * 1e3, 3), "count": len(taken)}
    return replace(health_check, facts=facts)


def _clock(client: Client, name: str) -> Iterator[HealthCheck]:
    samples = []
    try:
        for _ in range(5):
            began = clock.wall()
            server = client.inspect(name).now
            ended = clock.wall()
            samples.append((ended - began, server - (began + ended) / 2))
    except LockfastError as error:
        yield bad("clock", str(error), "run the check again")
        return
    spent, skew = min(samples)
    yield judged_clock(skew, spent / 2)


def judged_clock(skew: float, error: float) -> HealthCheck:
    order = "ahead of" if skew > 0 else "behind"
    text = f"the server's clock is {abs(skew):.3f} s {order} this host's"
    health_check = ok("clock", f"{text} (± {error * 1e3:.1f} ms)")
    if abs(skew) - error >= MAX_SKEW:
        health_check = warn(
            "clock",
            f"{text}. Leases run on the server's clock alone, but after a failover to a server "
            "with another clock they end early or late, and once_every periods begin at its time",
            "synchronize both clocks with NTP",
        )
    return replace(health_check, facts={"skew_seconds": round(skew, 4)})


def document(client: Client, health_checks: list[HealthCheck]) -> dict[str, object]:
    """Format the result as JSON; docs/operators.md lists the fields."""
    can = client.capabilities
    return {
        "store": client.store.url,
        "kind": can.store,
        "reaches": can.across,
        "at": moment(clock.wall()),
        "verdict": worst(health_checks).name.lower(),
        "checks": [
            {
                "level": one.level.name.lower(),
                "about": one.about,
                "found": one.found,
                "do": one.do,
                "facts": dict(one.facts),
            }
            for one in health_checks
        ],
    }


def worst(health_checks: list[HealthCheck]) -> Level:
    return max((health_check.level for health_check in health_checks), default=Level.OK)


def is_unreachable(health_checks: list[HealthCheck]) -> bool:
    """True if the store could not be reached, so that nothing could be judged."""
    return any(health_check.facts.get("transient") is True for health_check in health_checks)

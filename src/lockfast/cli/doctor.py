"""The doctor: is this store fit for locks? First contact, the store's own examination (see each
store's `health.py`), and then every verb once, on a name of our own, as a user's program would.

    reach it ── away ──► one finding, and no more
      │
    what it says of itself ── eviction, persistence, replicas, time-outs, …
      │
    acquire, renew, look, list, hand over, break, release ── a right that is missing is found here
      │
    how long that takes; whether fences grow; its clock against ours

Nothing of anybody else's is touched, and nothing is left behind, but tables that a first use would
make.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from lockfast import clock
from lockfast.cli.admin import quiet
from lockfast.cli.render import moment
from lockfast.errors import AcquireTimeout, BackendError, LockfastError
from lockfast.stores.health_checks import Examined, HealthCheck, Level, bad, note, ok, warn
from lockfast.sync import Client, Hold

NAMESPACE = "lockfast-doctor"
CYCLES = 50
LONGEST = 3.0  # of the measuring
PATIENCE = 5.0
LEASE = 10.0
# What a lock costs as a rule, and now and then. A hiccup is no reason to fail somebody's CI.
SLOW, FELT = 0.1, 0.05
SKEW = 1.0


def examine(client: Client) -> Iterator[HealthCheck]:
    """All that is found, in this order."""
    with quiet():  # what would be logged is found here too
        name = f"doctor-{secrets.token_hex(8)}"
        try:
            client.inspect(name)
        except BackendError as error:
            yield _away(error)
            if error.transient:
                yield from _of_its_own(client)  # it may tell why, if it answers at all
                return
        else:
            yield ok("contact", f"{client.store.url} answers")
        yield from _of_its_own(client)
        yield from _verbs(client, name)


def _away(error: BackendError) -> HealthCheck:
    do = "see that it runs, and that it can be reached from here"
    if not error.transient:
        do = "what it said tells what is missing"
    return replace(bad("contact", str(error), do), facts={"transient": error.transient})


def _of_its_own(client: Client) -> Iterator[HealthCheck]:
    if not isinstance(client.store, Examined):
        yield note("store", "there is no examination of this kind of store")
        return
    try:
        yield from client.store.health_checks()
    except BackendError:
        pass  # it was told at first contact, or will be by what is tried next


# ---- every verb once -------------------------------------------------------------------------


def _verbs(client: Client, name: str) -> Iterator[HealthCheck]:
    try:
        hold = client.lock(name, lease=LEASE, owner="doctor").acquire(timeout=PATIENCE)
    except LockfastError as error:
        yield bad("rights", f"no lock can be taken: {error}", "what it said tells what is missing")
        return
    fences = [hold.fence]
    done = 0
    for what, step in (
        ("renewed", lambda: hold.renew()),
        ("looked at", lambda: client.inspect(name)),
        ("listed", lambda: client.names(name)),
        ("waited for", lambda: fences.append(_handed_over(client, name, hold))),
        ("broken", lambda: fences.append(_broken(client, name))),
    ):
        health_check = _tried(what, step)
        if health_check is not None:
            yield health_check
        else:
            done += 1
    _tried("released", lambda: hold.release() if hold.is_held else None)
    if done == 5:
        yield ok("rights", "a lock can be taken, renewed, seen, listed, waited for and broken")
    if fences != sorted(set(fences)):
        yield bad(
            "fence",
            f"a later hold had no greater fence: {', '.join(map(str, fences))}",
            "do not use it for locks: report it",
        )
    yield from _latency(client, name)
    if client.capabilities.across == "network":
        yield from _clock(client, name)


def _tried(what: str, step: Callable[[], object]) -> HealthCheck | None:
    try:
        step()
    except LockfastError as error:
        return bad(
            "rights", f"a lock cannot be {what}: {error}", "what it said tells what is missing"
        )
    return None


def _handed_over(client: Client, name: str, hold: Hold) -> int:
    """Somebody waits, and is given it: the bells work, or at least the second way does."""
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
            raise BackendError(f"not handed over within {PATIENCE:g} s: {error}") from error
    finally:
        soon.join()
    if refused:  # also if the heir got it: who waits asks now and then, if nobody rings
        raise refused[0]
    return fence


def _broken(client: Client, name: str) -> int:
    doomed = client.lock(name, lease=LEASE, owner="doomed").acquire(timeout=PATIENCE)
    try:
        broken = client.break_hold(name, doomed.fence)
    finally:
        with contextlib.suppress(LockfastError):  # that it is lost is what was wanted
            doomed.release()
    if not broken:
        raise BackendError("it was refused, though nobody else holds it")
    with client.lock(name, lease=LEASE, owner="next").acquire(timeout=PATIENCE) as after:
        return after.fence


# ---- how fast, and by what clock -------------------------------------------------------------


def _latency(client: Client, name: str) -> Iterator[HealthCheck]:
    taken: list[float] = []
    until = clock.now() + LONGEST
    try:
        while len(taken) < CYCLES and clock.now() < until:
            began = time.perf_counter()
            client.lock(name, lease=LEASE, owner="timed").acquire(timeout=PATIENCE).release()
            taken.append(time.perf_counter() - began)
    except LockfastError as error:
        yield bad("latency", str(error), "look again")
        return
    yield judged_latency(taken)


def judged_latency(taken: list[float]) -> HealthCheck:
    """Of cycles of acquire and release."""
    taken = sorted(taken)
    middle, late = taken[len(taken) // 2], taken[min(len(taken) * 99 // 100, len(taken) - 1)]
    found = (
        f"acquire and release: p50 {middle * 1e3:.2f} ms, p99 {late * 1e3:.2f} ms "
        f"({len(taken)} times)"
    )
    if middle >= SLOW:
        health_check = warn("latency", found, "find out what is slow: the way to it, or the server")
    elif late >= FELT:
        health_check = note("latency", found)
    else:
        health_check = ok("latency", found)
    facts = {"p50_ms": round(middle * 1e3, 3), "p99_ms": round(late * 1e3, 3), "count": len(taken)}
    return replace(health_check, facts=facts)


def _clock(client: Client, name: str) -> Iterator[HealthCheck]:
    looks = []
    try:
        for _ in range(5):
            began = clock.wall()
            there = client.inspect(name).now
            ended = clock.wall()
            looks.append((ended - began, there - (began + ended) / 2))
    except LockfastError as error:
        yield bad("clock", str(error), "look again")
        return
    spent, skew = min(looks)
    yield judged_clock(skew, spent / 2)


def judged_clock(skew: float, error: float) -> HealthCheck:
    found = f"its clock is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} ours"
    health_check = ok("clock", f"{found} (± {error * 1e3:.1f} ms)")
    if abs(skew) - error >= SKEW:
        health_check = warn(
            "clock",
            f"{found}: leases are counted on its clock alone, but a server that takes over with "
            "another clock ends them early or late, and periods begin at its time",
            "let NTP set both",
        )
    return replace(health_check, facts={"skew_seconds": round(skew, 4)})


# ---- the verdict -----------------------------------------------------------------------------


def document(client: Client, health_checks: list[HealthCheck]) -> dict[str, object]:
    """For scripts; docs/operators.md lists the fields."""
    can = client.capabilities
    return {
        "store": client.store.url,
        "kind": can.store,
        "reaches": can.across,
        "at": moment(clock.wall()),
        "verdict": worst(health_checks).name.lower(),
        "checks": [
            {
                "level": health_check.level.name.lower(),
                "about": health_check.about,
                "found": health_check.found,
                "do": health_check.do,
                "facts": dict(health_check.facts),
            }
            for health_check in health_checks
        ],
    }


def worst(health_checks: list[HealthCheck]) -> Level:
    return max((health_check.level for health_check in health_checks), default=Level.OK)


def is_away(health_checks: list[HealthCheck]) -> bool:
    """Nothing could be judged, since it was not reached."""
    return any(health_check.facts.get("transient") is True for health_check in health_checks)

"""`lockfast doctor [URL]`: check whether a store is fit for locks, and what to do about it;
`lockfast schema URL`: print the tables of a SQL store.

    contact ── cannot be reached ──► one check, and no more
      │
    the store's own checks (its `health.py`): eviction, persistence, replicas, time-outs, …
      │
    acquire, renew, inspect, list, hand over, break, release: a missing permission shows up here
      │
    latency; whether fences grow; the server's clock against ours

The doctor uses a random name of its own, as a user's program would. It touches no other lock and
leaves nothing behind, except tables that the first use of the store would create.

The schema is for deployments where migrations create tables, with another user than the
application's. The server is not contacted: the script contains the very statements that the first
use would run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from lockfast import clock
from lockfast.cli import has_colors, painted, printable, room
from lockfast.cli.admin import log_silenced, moment
from lockfast.cli.main import JSON, NO, UNREACHABLE, exits, option, store, switch, verb
from lockfast.errors import AcquireTimeout, BackendError, ConfigurationError, LockfastError
from lockfast.stores import DEFAULT_URL_VARIABLE
from lockfast.stores.health_checks import HealthCheck, Level, bad, ok
from lockfast.sync import Client, Hold, connect

NAMESPACE = "lockfast-doctor"
CYCLES, MEASURING_LIMIT = 50, 3.0
PATIENCE, LEASE = 5.0, 10.0
# Limits of the median and of the 99th percentile. An outlier must not fail a CI run, so the second
# yields only a note.
SLOW_P50, SLOW_P99 = 0.1, 0.05
MAX_SKEW = 1.0
# What an operator can do about a permanent error of the store.
MISSING = "the error message names what is missing"

COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.BAD: "red"}
FIT = "fit for locks: no check is bad; with --strict no warning either"
BAD = "  1    a check is bad; with --strict also a warning\n"
EPILOG = f"""\
ok    nothing to do
note  good to know
warn  locks may be lost, or work badly, in a foreseeable case: a restart, a failover, a full disk
bad   locks are not safe on this store, or do not work

The doctor connects, reads the server's version and settings, tries every operation on a lock of
its own, and measures latency. It touches no other locks. Settings that the user may not read (INFO,
CONFIG) are noted and not judged: use an administrator's URL to check the server, and the
application's URL to check its permissions.

examples:
  lockfast doctor
  lockfast doctor redis://localhost:6379/0
  lockfast doctor --strict --json postgresql://app@db/app     for CI: fail on warnings too

{exits(FIT, BAD)}"""


@verb(
    "Check whether a store is fit for locks, and say what to do.",
    EPILOG,
    [
        option("store", nargs="?", metavar="URL", help="URL of the store (default: --url)"),
        switch("--strict", help="exit with 1 on warnings too"),
        JSON,
        *store(NAMESPACE),
    ],
)
def doctor(args: argparse.Namespace) -> int:
    with connect(args.store or args.url, namespace=args.namespace or NAMESPACE) as client:
        checks: list[HealthCheck] = []
        for check in examine(client):
            checks.append(check)
            if not args.json:
                print("\n".join(_lines(check)), flush=True)
        worst = max((check.level for check in checks), default=Level.OK)
        # Nothing can be judged if the store could not be reached.
        unreachable = any(check.facts.get("transient") is True for check in checks)
        if args.json:
            print(json.dumps(_document(client, checks, worst), indent=2))
        else:
            away = "not checked: the store cannot be reached"
            print(f"\n{away if unreachable else _summary(checks, worst)}")
    if unreachable:
        return UNREACHABLE
    return NO if worst >= (Level.WARN if args.strict else Level.BAD) else 0


def _lines(check: HealthCheck) -> list[str]:
    head = f"{check.level.name.lower():<6}{check.about:<13}"
    width = (room() or 80) - len(head) - 1
    wrap = partial(textwrap.wrap, width=width, break_on_hyphens=False)
    text = wrap(printable(check.found))
    if check.do:
        text += wrap(printable(f"-> {check.do}"), subsequent_indent="   ")
    first, *rest = text
    level = painted(COLORS[check.level], head[:6]) if has_colors(sys.stdout) else head[:6]
    return [level + head[6:] + first, *(" " * len(head) + line for line in rest)]


def _summary(checks: list[HealthCheck], worst: Level) -> str:
    counts = []
    for level, noun in ((Level.BAD, "problem"), (Level.WARN, "warning")):
        if count := sum(check.level is level for check in checks):
            counts.append(f"{count} {noun}{'s' if count > 1 else ''}")
    found = ", ".join(counts)
    if worst is Level.BAD:
        return f"not fit for locks: {found}"
    return f"fit for locks, with {found}" if found else "fit for locks"


def _document(client: Client, checks: list[HealthCheck], worst: Level) -> dict[str, object]:
    """Format the result as JSON; docs/operators.md lists the fields."""
    return {
        "store": client._endpoint.url,
        "kind": client.capabilities.store,
        "reaches": client.capabilities.across,
        "at": moment(clock.wall()),
        "verdict": worst.name.lower(),
        "checks": [{**asdict(check), "level": check.level.name.lower()} for check in checks],
    }


def examine(client: Client) -> Iterator[HealthCheck]:
    """Run all checks, in the order above."""
    with log_silenced():  # the checks report what would be logged
        name = f"doctor-{secrets.token_hex(8)}"
        try:
            client.inspect(name)
        except BackendError as error:
            down = "check that the server runs and can be reached from this host"
            do = down if error.transient else MISSING
            facts = {"transient": error.transient}
            yield HealthCheck(Level.BAD, "contact", str(error), do, facts)
            if error.transient:
                yield from _store_checks(client)  # may show the reason, if the server answers
                return
        else:
            yield ok("contact", f"{client._endpoint.url} answers")
        yield from _store_checks(client)
        yield from _verbs(client, name)


def _store_checks(client: Client) -> Iterator[HealthCheck]:
    try:
        yield from client._endpoint.health_checks()
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
        try:
            step()
            done += 1
        except LockfastError as error:
            yield bad("rights", f"a lock cannot be {what}: {error}", MISSING)
    if hold.is_held:
        with contextlib.suppress(LockfastError):  # reported by a step, or by the latency check
            hold.release()
    if done == 5:
        yield ok("rights", "a lock can be acquired, renewed, inspected, listed, waited for, broken")
    if fences != sorted(set(fences)):
        found = f"fences do not grow from hold to hold: {', '.join(map(str, fences))}"
        do = "do not use this store for locks, and report a bug in lockfast"
        yield bad("fence", found, do)
    yield _measured("latency", lambda: _latency(client, name))
    if client.capabilities.across == "network":
        yield _measured("clock", lambda: _clock(client, name))


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


def _measured(about: str, measure: Callable[[], HealthCheck]) -> HealthCheck:
    try:
        return measure()
    except LockfastError as error:
        return bad(about, str(error), "run the check again")


def _latency(client: Client, name: str) -> HealthCheck:
    taken: list[float] = []
    until = clock.now() + MEASURING_LIMIT
    while len(taken) < CYCLES and clock.now() < until:
        began = time.perf_counter()
        client.lock(name, lease=LEASE, owner="timed").acquire(timeout=PATIENCE).release()
        taken.append(time.perf_counter() - began)
    return judged_latency(taken)


def judged_latency(taken: list[float]) -> HealthCheck:
    """Judge the durations of acquire-and-release cycles."""
    taken = sorted(taken)
    p50, p99 = taken[len(taken) // 2], taken[min(len(taken) * 99 // 100, len(taken) - 1)]
    text = f"acquire and release: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms"
    text += f" ({len(taken)} cycles)"
    facts = {"p50_ms": round(p50 * 1e3, 3), "p99_ms": round(p99 * 1e3, 3), "count": len(taken)}
    if p50 >= SLOW_P50:
        do = "find out what is slow: the network, or the server"
        return HealthCheck(Level.WARN, "latency", text, do, facts)
    return HealthCheck(Level.NOTE if p99 >= SLOW_P99 else Level.OK, "latency", text, "", facts)


def _clock(client: Client, name: str) -> HealthCheck:
    samples = []
    for _ in range(5):
        began = clock.wall()
        server = client.inspect(name).now
        ended = clock.wall()
        samples.append((ended - began, server - (began + ended) / 2))
    spent, skew = min(samples)
    return judged_clock(skew, spent / 2)


def judged_clock(skew: float, error: float) -> HealthCheck:
    order = "ahead of" if skew > 0 else "behind"
    text = f"the server's clock is {abs(skew):.3f} s {order} this host's"
    facts = {"skew_seconds": round(skew, 4)}
    if abs(skew) - error < MAX_SKEW:
        return HealthCheck(Level.OK, "clock", f"{text} (± {error * 1e3:.1f} ms)", "", facts)
    text += (
        ". Leases run on the server's clock alone, but after a failover to a server "
        "with another clock they end early or late, and once_every periods begin at its time"
    )
    return HealthCheck(Level.WARN, "clock", text, "synchronize both clocks with NTP", facts)


# ---- lockfast schema -------------------------------------------------------------------------

SCHEMA_EPILOG = f"""\
Only the scheme of the URL matters: postgresql:// is enough. The server is not contacted.

examples:
  lockfast schema postgresql://db/app > migrations/0042_lockfast.sql
  lockfast schema postgresql:// | psql --set ON_ERROR_STOP=1 postgresql://admin@db/app
  lockfast schema mysql:// | mariadb --host db --user admin --password app

{exits("the script was printed")}"""

TABLES = ["lockfast_names", "lockfast_rows", "lockfast_transactions"]
HEAD = """\
-- The tables of lockfast, for {server}. Its first use creates them, if permitted.
-- Existing tables are left as they are.
--
--   lockfast_names         a row for each name that is in use, with its first holder
--   lockfast_rows          further holders of a name, and its waiters
--   lockfast_transactions  the rows that transaction locks lock
--
-- A user that does not own the tables needs:
{grants}
"""
GRANT = "--   GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO app;"


@verb(
    "Print the tables that a SQL store needs, as a SQL script. Connects to nothing.",
    SCHEMA_EPILOG,
    [option("store", nargs="?", metavar="URL", help="URL of the store (default: $LOCKFAST_URL)")],
)
def schema(args: argparse.Namespace) -> int:
    from lockfast.stores.sql.mysql import schema as mysql
    from lockfast.stores.sql.postgres import schema as postgres

    url = args.store or os.environ.get(DEFAULT_URL_VARIABLE) or ""
    match re.split(r"[^a-z+]", url, maxsplit=1)[0]:
        case "postgresql" | "postgres":
            server, grants = "PostgreSQL 12 or later", [", ".join(TABLES)]
            tables = postgres.TABLES
        case "mysql" | "mariadb":
            server, grants = "MariaDB 10.6 or later, or MySQL 8", TABLES
            tables = "".join(f"{table.rstrip()};\n" for table in mysql.TABLES)
        case "":
            raise ConfigurationError("no URL: use lockfast schema postgresql://… (or mysql://…)")
        case other:
            needing = "postgresql://, mysql:// and mariadb:// do"
            raise ConfigurationError(f"{other}:// needs no tables; {needing}")
    print(HEAD.format(server=server, grants="\n".join(map(GRANT.format, grants))) + tables, end="")
    return 0

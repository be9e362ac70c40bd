"""Health checks of sentinels: can they find the master, and replace it? Each one is queried."""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad, ok, warn
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.errors import ServerError
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.sentinel import SentinelAddress

BUDGET = 2.0
ENOUGH = 3


def health_checks(address: SentinelAddress) -> Iterator[HealthCheck]:
    sentinels = address.sentinels
    away: list[str] = []
    unable = ""
    for sentinel in sentinels:
        try:
            connection = Connection(sentinel, BUDGET)
        except BackendError:
            away.append(sentinel.endpoint)
            continue
        try:
            reply = connection.ask(packed("SENTINEL", "CKQUORUM", address.service), BUDGET)
        except BackendError:
            away.append(sentinel.endpoint)
            continue
        finally:
            connection.close()
        if isinstance(reply, ServerError) and "NOQUORUM" in str(reply):
            unable = str(reply)
    fine = True
    if away:
        fine = False
        yield warn(
            "sentinels",
            f"{', '.join(sorted(away))} cannot be reached from here",
            "restore it, or remove it from the URL: clients that query it first lose time",
        )
    if unable:
        fine = False
        yield bad(
            "sentinels",
            f"they cannot replace a failed master: {unable}",
            "restore as many as the quorum and the majority need",
        )
    if len(sentinels) < ENOUGH:
        fine = False
        yield warn(
            "sentinels",
            f"only {len(sentinels)}: when a host fails, too few are left to elect a master",
            "run three, on three hosts",
        )
    if fine:
        yield ok("sentinels", f"{len(sentinels)} reply, and can replace a failed master")

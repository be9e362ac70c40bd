"""Are these sentinels fit to find a master, and to replace it? Each is asked for itself."""

from __future__ import annotations

from collections.abc import Iterator

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad, ok, warn
from lockfast.stores.redis.connections import Link
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
            link = Link(sentinel, BUDGET)
        except BackendError:
            away.append(sentinel.endpoint)
            continue
        try:
            reply = link.ask(packed("SENTINEL", "CKQUORUM", address.service), BUDGET)
        except BackendError:
            away.append(sentinel.endpoint)
            continue
        finally:
            link.close()
        if isinstance(reply, ServerError) and "NOQUORUM" in str(reply):
            unable = str(reply)
    fine = True
    if away:
        fine = False
        yield warn(
            "sentinels",
            f"{', '.join(sorted(away))} cannot be reached from here",
            "bring it back, or take it out of the URL: who asks it first loses time",
        )
    if unable:
        fine = False
        yield bad(
            "sentinels",
            f"they cannot replace a master that dies: {unable}",
            "bring back as many as the quorum and the majority need",
        )
    if len(sentinels) < ENOUGH:
        fine = False
        yield warn(
            "sentinels",
            f"{len(sentinels)} in all: when a host dies too few are left to decide",
            "run three, on three hosts",
        )
    if fine:
        yield ok("sentinels", f"{len(sentinels)} answer, and can replace a master")

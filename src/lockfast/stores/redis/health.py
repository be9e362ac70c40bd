"""Is this Redis fit for locks? What it says of itself in INFO and CONFIG, judged.

`judged` takes one server's words: who examines several asks each and calls it for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockfast.stores.health_checks import (
    HealthCheck,
    Level,
    bad,
    note,
    ok,
    room_for_connections,
    version_of,
    warn,
)
from lockfast.stores.redis.connections import Link, Where
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.wakeup_messages import channel_of

BUDGET = 5.0
LEAST_VERSION = (6, 2)
FULL = 0.9
SETTINGS = ("min-replicas-to-write", "save", "appendfsync", "maxclients")

Facts = Mapping[str, str]


def gathered(nodes: Mapping[str, Iterator[HealthCheck]], called: str) -> Iterator[HealthCheck]:
    """Of several servers, ``called`` masters, say: what was found on more than one is told once,
    and what is fine need not be told of each."""
    endpoints: dict[tuple[Level, str, str, str], list[str]] = {}
    for endpoint, found in nodes.items():
        for one in found:
            if one.level is not Level.OK:
                endpoints.setdefault((one.level, one.about, one.found, one.do), []).append(endpoint)
    yield ok(called, f"{len(nodes)}: {', '.join(nodes)}")
    for (level, about, said, do), found_at in endpoints.items():
        where = f"all {called}" if len(found_at) == len(nodes) else ", ".join(found_at)
        yield HealthCheck(level, about, f"{where}: {said}", do)


def health_checks(address: Where, counted: int | str | None = None) -> Iterator[HealthCheck]:
    """Of the server at this address. ``counted``: how many replicas a claim is said to need."""
    link = Link(address, BUDGET)
    try:
        yield from examined(link, counted=counted)
    finally:
        link.close()


def examined(
    link: Link, *, counted: int | str | None = None, clustered: bool = False
) -> Iterator[HealthCheck]:
    """Of the server at the other end, which may be meant as a node of a cluster."""
    yield from _wakeups(link)
    info = _text(link.ask(packed("INFO"), BUDGET))
    if info is None:
        yield note(
            "rights",
            "INFO is not allowed to this user: version, eviction, persistence and replicas cannot "
            "be judged",
            "let an administrator's URL be examined, or allow +info",
        )
        return
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    settings = {
        name: said
        for name in SETTINGS
        if (said := _setting(link.ask(packed("CONFIG", "GET", name), BUDGET))) is not None
    }
    yield from judged(facts, settings, counted=counted, clustered=clustered)


def _wakeups(link: Link) -> Iterator[HealthCheck]:
    """A script that may not ring has done its work by then, so a release without this right looks
    as if the lock had been lost: it is asked for by itself."""
    reply = link.ask(packed("PUBLISH", channel_of("doctor"), ""), BUDGET)
    if isinstance(reply, ServerError) and str(reply).startswith("NOPERM"):
        yield bad(
            "rights",
            f"who waits cannot be rung: {explained(reply, 'it')}",
            "allow +publish and &lf:wake:* to this user",
        )


def judged(
    info: Facts, settings: Facts, *, counted: int | str | None = None, clustered: bool = False
) -> Iterator[HealthCheck]:
    """What the server says of itself. A setting that may not be asked for is missing."""
    yield _version(info)
    yield from _role(info, clustered)
    yield _eviction(info)
    yield from _persistence(info, settings)
    yield _replicas(info, settings, counted)
    most = int(settings.get("maxclients") or info.get("maxclients") or 0)
    yield room_for_connections(int(info.get("connected_clients", 0)), most, "maxclients")


def _version(info: Facts) -> HealthCheck:
    if "valkey_version" in info:
        return ok("version", f"Valkey {info['valkey_version']}")
    version = info.get("redis_version", "")
    if version_of(version) < LEAST_VERSION:
        return bad(
            "version", f"Redis {version or 'of no known version'}", "update it: 6.2 or later"
        )
    return ok("version", f"Redis {version}")


def _role(info: Facts, clustered: bool) -> Iterator[HealthCheck]:
    if info.get("role") == "slave":
        yield bad(
            "role",
            f"a replica of {info.get('master_host')}:{info.get('master_port')}, which takes no "
            "locks",
            "give the master's address",
        )
    if info.get("cluster_enabled") == "1" and not clustered:
        yield bad(
            "role",
            "a node of a cluster, asked as if it were alone: it refuses the names of other nodes",
            "give a URL of the cluster: redis+cluster://host:port",
        )
    if info.get("loading") == "1":
        yield warn("role", "it is loading its data, and refuses until it has", "wait")


def _eviction(info: Facts) -> HealthCheck:
    policy = info.get("maxmemory_policy", "noeviction")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not most:
        hint = f" (maxmemory-policy {policy} would evict locks if it had)"
        return ok("eviction", f"maxmemory has no limit{'' if policy == 'noeviction' else hint}")
    if policy != "noeviction":
        done = int(info.get("evicted_keys", 0))
        so_far = f"; it did so {done} times" if done else ""
        return bad(
            "eviction",
            f"if its memory is full it evicts keys, locks too (maxmemory-policy {policy}){so_far}",
            "set maxmemory-policy noeviction, or keep locks on a server of their own",
        )
    if used > most * FULL:
        return warn(
            "eviction",
            f"{used / most:.0%} of maxmemory is used; when it is full no lock can be taken",
            "raise maxmemory, or keep locks on a server of their own",
        )
    return ok("eviction", f"noeviction, {used / most:.0%} of maxmemory is used")


def _persistence(info: Facts, settings: Facts) -> Iterator[HealthCheck]:
    for word, what in (("aof_last_write_status", "AOF"), ("rdb_last_bgsave_status", "RDB")):
        if info.get(word) == "err":
            yield bad(
                "persistence",
                f"its last write to disk ({what}) failed: it may refuse to write (MISCONF)",
                "look at its log and its disk",
            )
    forgets = "the fence still grows, so what checks fences stays safe"
    if info.get("aof_enabled") == "1":
        pace = settings.get("appendfsync", "everysec")
        if pace == "always":
            yield ok("persistence", "AOF, appendfsync always")
        else:
            yield note(
                "persistence",
                f"AOF, appendfsync {pace}: a crash of its host forgets the locks of the last "
                f"{'second' if pace == 'everysec' else 'half minute or so'}; {forgets}",
                "appendfsync always, if that is too much",
            )
    elif settings.get("save", "?") == "":
        yield warn(
            "persistence",
            f"nothing is written to disk: a restart forgets who holds what; {forgets}",
            "set appendonly yes, or let everything that matters check fences",
        )
    else:
        yield warn(
            "persistence",
            "no AOF, at most a dump now and then: a restart forgets the locks since the last one; "
            f"{forgets}",
            "set appendonly yes, or let everything that matters check fences",
        )


def _replicas(info: Facts, settings: Facts, counted: int | str | None) -> HealthCheck:
    count = int(info.get("connected_slaves", 0))
    least = int(settings.get("min-replicas-to-write", 0))
    if least > int(info.get("min_slaves_good_slaves", count)):
        return bad(
            "replicas",
            f"{count} replicas, and min-replicas-to-write is {least}: it refuses to write",
            "bring the replicas back, or lower min-replicas-to-write",
        )
    if not count:
        return note(
            "replicas", "none: while this server is away nobody can take a lock", "add a replica"
        )
    if counted is not None:
        return ok("replicas", f"{count}, and a claim counts when they have it (replicas={counted})")
    if not least:
        return warn(
            "replicas",
            f"{count}, and it does not wait for any (min-replicas-to-write 0): one that takes over "
            "may not know the last locks",
            "say replicas= in the URL, and let everything that matters check fences",
        )
    return ok("replicas", f"{count}, min-replicas-to-write {least}")


def _text(reply: Any) -> str | None:
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    return reply if isinstance(reply, str) else None


def _setting(reply: Any) -> str | None:
    """The value in an answer to CONFIG GET, which is a map, or a list on older servers."""
    if isinstance(reply, ServerError):
        return None
    values = list(reply.values()) if isinstance(reply, dict) else list(reply or ())[1::2]
    return _text(values[0]) if values else None

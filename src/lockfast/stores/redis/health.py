"""Health checks of a Redis server: is it fit for locks, judging by INFO and CONFIG?

`judged` takes the facts of one server; stores of several servers call it for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockfast.errors import BackendError
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
from lockfast.stores.redis.commands import channel_of
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.redis_py import ServerAddress
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.sentinel import SentinelAddress

BUDGET = 5.0
SENTINEL_BUDGET = 2.0
ENOUGH_SENTINELS = 3
LEAST_VERSION = (6, 2)
FULL = 0.9
SETTINGS = ("min-replicas-to-write", "save", "appendfsync", "maxclients")

Facts = Mapping[str, str]


def gathered(nodes: Mapping[str, Iterator[HealthCheck]], called: str) -> Iterator[HealthCheck]:
    """Merge the checks of several servers, ``called`` "masters", say: a problem that several of
    them share is reported once, and what is fine is not reported per server."""
    endpoints: dict[tuple[Level, str, str, str], list[str]] = {}
    for endpoint, found in nodes.items():
        for one in found:
            if one.level is not Level.OK:
                endpoints.setdefault((one.level, one.about, one.found, one.do), []).append(endpoint)
    yield ok(called, f"{len(nodes)}: {', '.join(nodes)}")
    for (level, about, problem, do), found_at in endpoints.items():
        where = f"all {called}" if len(found_at) == len(nodes) else ", ".join(found_at)
        yield HealthCheck(level, about, f"{where}: {problem}", do)


def health_checks(
    address: ServerAddress, counted: int | str | None = None
) -> Iterator[HealthCheck]:
    """Check the server at an address. ``counted`` is the value of ``replicas=``."""
    connection = Connection(address, BUDGET)
    try:
        yield from examined(connection, counted=counted)
    finally:
        connection.close()


def examined(
    connection: Connection, *, counted: int | str | None = None, clustered: bool = False
) -> Iterator[HealthCheck]:
    """Check the server of a connection, as a node of a cluster if ``clustered``."""
    yield from _wakeups(connection)
    info = _text(connection.ask(packed("INFO"), BUDGET))
    if info is None:
        yield note(
            "rights",
            "this user has no right to INFO: version, eviction, persistence and replicas cannot "
            "be checked",
            "use an administrator's URL, or allow +info",
        )
        return
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    settings = {
        name: value
        for name in SETTINGS
        if (value := _setting(connection.ask(packed("CONFIG", "GET", name), BUDGET))) is not None
    }
    yield from judged(facts, settings, counted=counted, clustered=clustered)


def _wakeups(connection: Connection) -> Iterator[HealthCheck]:
    """Check the right to publish. A script without it fails after its other commands, so a release
    would look as if the lock had been lost."""
    reply = connection.ask(packed("PUBLISH", channel_of("doctor"), ""), BUDGET)
    if isinstance(reply, ServerError) and str(reply).startswith("NOPERM"):
        yield bad(
            "rights",
            f"waiters cannot be woken: {explained(reply, 'the server')}",
            "allow +publish and &lf:wake:* to this user",
        )


def judged(
    info: Facts, settings: Facts, *, counted: int | str | None = None, clustered: bool = False
) -> Iterator[HealthCheck]:
    """Judge a server's facts. A setting without the right to read it is missing."""
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
        return bad("version", f"Redis {version or 'of unknown version'}", "upgrade to 6.2 or later")
    return ok("version", f"Redis {version}")


def _role(info: Facts, clustered: bool) -> Iterator[HealthCheck]:
    if info.get("role") == "slave":
        yield bad(
            "role",
            f"a replica of {info.get('master_host')}:{info.get('master_port')}, which cannot take "
            "locks",
            "connect to the master",
        )
    if info.get("cluster_enabled") == "1" and not clustered:
        yield bad(
            "role",
            "a node of a cluster, used as a single server: it refuses the names of other nodes",
            "use a URL of the cluster: redis+cluster://host:port",
        )
    if info.get("loading") == "1":
        yield warn(
            "role", "the server is loading its data, and refuses commands until then", "wait"
        )


def _eviction(info: Facts) -> HealthCheck:
    policy = info.get("maxmemory_policy", "noeviction")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not most:
        hint = f" (with a limit, maxmemory-policy {policy} would evict locks)"
        return ok("eviction", f"maxmemory has no limit{'' if policy == 'noeviction' else hint}")
    if policy != "noeviction":
        done = int(info.get("evicted_keys", 0))
        evicted = f"; {done} keys were evicted so far" if done else ""
        return bad(
            "eviction",
            f"a full memory evicts keys, locks too (maxmemory-policy {policy}){evicted}",
            "set maxmemory-policy noeviction, or keep locks on a server of their own",
        )
    if used > most * FULL:
        return warn(
            "eviction",
            f"{used / most:.0%} of maxmemory is used; at 100% no lock can be taken",
            "raise maxmemory, or keep locks on a server of their own",
        )
    return ok("eviction", f"noeviction, {used / most:.0%} of maxmemory is used")


def _persistence(info: Facts, settings: Facts) -> Iterator[HealthCheck]:
    for field, kind in (("aof_last_write_status", "AOF"), ("rdb_last_bgsave_status", "RDB")):
        if info.get(field) == "err":
            yield bad(
                "persistence",
                f"the last write to disk ({kind}) failed: the server may refuse writes (MISCONF)",
                "look at the server's log and its disk",
            )
    fences_grow = "fences still grow, so resources that check fences stay safe"
    if info.get("aof_enabled") == "1":
        pace = settings.get("appendfsync", "everysec")
        if pace == "always":
            yield ok("persistence", "AOF, appendfsync always")
        else:
            yield note(
                "persistence",
                f"AOF, appendfsync {pace}: a crash of the host loses the locks of the last "
                f"{'second' if pace == 'everysec' else 'half minute or so'}; {fences_grow}",
                "set appendfsync always, if that is too much",
            )
    elif settings.get("save", "?") == "":
        yield warn(
            "persistence",
            f"nothing is written to disk: a restart loses all locks; {fences_grow}",
            "set appendonly yes, or check fences in every resource that matters",
        )
    else:
        yield warn(
            "persistence",
            "no AOF, only RDB snapshots: a restart loses the locks since the last one; "
            f"{fences_grow}",
            "set appendonly yes, or check fences in every resource that matters",
        )


def _replicas(info: Facts, settings: Facts, counted: int | str | None) -> HealthCheck:
    count = int(info.get("connected_slaves", 0))
    least = int(settings.get("min-replicas-to-write", 0))
    if least > int(info.get("min_slaves_good_slaves", count)):
        return bad(
            "replicas",
            f"{count} replicas, and min-replicas-to-write is {least}: the server refuses writes",
            "restore the replicas, or lower min-replicas-to-write",
        )
    if not count:
        return note(
            "replicas", "none: while this server is down no lock can be taken", "add a replica"
        )
    if counted is not None:
        return ok(
            "replicas", f"{count}, and claims wait for their acknowledgement (replicas={counted})"
        )
    if not least:
        return warn(
            "replicas",
            f"{count}, and claims wait for none (min-replicas-to-write 0): one that takes over may "
            "lack the last locks",
            "set replicas= in the URL, and check fences in every resource that matters",
        )
    return ok("replicas", f"{count}, min-replicas-to-write {least}")


def _text(reply: Any) -> str | None:
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    return reply if isinstance(reply, str) else None


def _setting(reply: Any) -> str | None:
    """The value in a reply to CONFIG GET, which is a map, or a list from older servers."""
    if isinstance(reply, ServerError):
        return None
    values = list(reply.values()) if isinstance(reply, dict) else list(reply or ())[1::2]
    return _text(values[0]) if values else None


def sentinel_checks(address: SentinelAddress) -> Iterator[HealthCheck]:
    """Check the sentinels: can they find the master, and replace it? Each one is queried."""
    sentinels = address.sentinels
    away: list[str] = []
    unable = ""
    for sentinel in sentinels:
        try:
            connection = Connection(sentinel, SENTINEL_BUDGET)
        except BackendError:
            away.append(sentinel.endpoint)
            continue
        try:
            reply = connection.ask(packed("SENTINEL", "CKQUORUM", address.service), SENTINEL_BUDGET)
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
    if len(sentinels) < ENOUGH_SENTINELS:
        fine = False
        yield warn(
            "sentinels",
            f"only {len(sentinels)}: when a host fails, too few are left to elect a master",
            "run three, on three hosts",
        )
    if fine:
        yield ok("sentinels", f"{len(sentinels)} reply, and can replace a failed master")

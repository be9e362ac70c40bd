"""Helpers for cluster tests: which node serves a name, and the counters of the nodes."""

from __future__ import annotations

import itertools
from typing import Any

from lockfast.stores.redis_cluster.slots import slot_of

_number = itertools.count()
# The rights that docs/redis.md lists for one server, without those for wake-ups.
RIGHTS_OF_ONE = (
    "~lf:* &lf:wake:* -@all +evalsha +eval +scan +time +exists"
    " +hget +hset +hsetnx +hgetall +hdel +hlen +hincrby +pexpire +pttl"
    " +zadd +zrem +zscore +zrange +zrangebyscore"
)


def slot(name: str) -> int:
    """Return the slot of a name in the default namespace."""
    return slot_of(f"default:{name}")


def elsewhere(cluster: Any, node: Any) -> Any:
    """Return another master."""
    return next(other for other in cluster.masters if other is not node)


def names_at(cluster: Any, node: Any, count: int, prefix: str = "n") -> list[str]:
    """Make up names that a node serves."""
    found: list[str] = []
    while len(found) < count:
        name = f"{prefix}-{next(_number)}"
        if cluster.owner(slot(name)) is node:
            found.append(name)
    return found


def errors(cluster: Any, code: str) -> int:
    """Count the replies of the masters with this error code."""
    known = [node.call("INFO", "errorstats") for node in cluster.masters]
    return sum(stats.get(f"errorstat_{code}", {}).get("count", 0) for stats in known)


def stopped_scripts(cluster: Any) -> int:
    """Count the scripts that stopped with an error half-way, without those that the server did not
    have. Both counters are read at once, since clients may be active."""
    count = 0
    for node in cluster.masters:
        stats = node.call("INFO", "commandstats", "errorstats")
        for command in ("cmdstat_evalsha", "cmdstat_eval"):
            count += stats.get(command, {}).get("failed_calls", 0)
        count -= stats.get("errorstat_NOSCRIPT", {}).get("count", 0)
    return int(count)


def calls(node: Any, command: str) -> int:
    known = node.call("INFO", "commandstats").get(f"cmdstat_{command}", {})
    return int(known.get("calls", 0))

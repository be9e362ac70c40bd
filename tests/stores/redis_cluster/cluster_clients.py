"""Where names are in a cluster, and what its nodes counted."""

from __future__ import annotations

import itertools
from typing import Any

from lockfast.stores.redis_cluster.slots import slot_of

_number = itertools.count()
# What docs/redis.md lists for one server, without what its bells need.
RIGHTS_OF_ONE = (
    "~lf:* &lf:wake:* -@all +evalsha +eval +scan +time +exists"
    " +hget +hset +hsetnx +hgetall +hdel +hlen +hincrby +pexpire +pttl"
    " +zadd +zrem +zscore +zrange +zrangebyscore"
)


def slot(name: str) -> int:
    """Of a name in the default namespace."""
    return slot_of(f"default:{name}")


def elsewhere(cluster: Any, node: Any) -> Any:
    """Another master."""
    return next(other for other in cluster.masters if other is not node)


def names_at(cluster: Any, node: Any, count: int, prefix: str = "n") -> list[str]:
    """New names that a node serves."""
    found: list[str] = []
    while len(found) < count:
        name = f"{prefix}-{next(_number)}"
        if cluster.owner(slot(name)) is node:
            found.append(name)
    return found


def errors(cluster: Any, word: str) -> int:
    """How often the masters answered with this error."""
    known = [node.call("INFO", "errorstats") for node in cluster.masters]
    return sum(stats.get(f"errorstat_{word}", {}).get("count", 0) for stats in known)


def stopped_scripts(cluster: Any) -> int:
    """How many ended in an error, in the middle of what they do; not those that were unknown. Both
    are read at one moment: somebody may be asking."""
    count = 0
    for node in cluster.masters:
        stats = node.call("INFO", "commandstats", "errorstats")
        for word in ("cmdstat_evalsha", "cmdstat_eval"):
            count += stats.get(word, {}).get("failed_calls", 0)
        count -= stats.get("errorstat_NOSCRIPT", {}).get("count", 0)
    return int(count)


def calls(node: Any, command: str) -> int:
    known = node.call("INFO", "commandstats").get(f"cmdstat_{command}", {})
    return int(known.get("calls", 0))

"""The checking half of fencing: helpers that let a resource refuse whoever was overtaken.

A lock cannot stop a holder that was paused for longer than its lease from writing when it wakes
up. What is written to can: it remembers the highest fence that it has seen, and refuses lower ones
with `StaleFence`. Each guard checks and writes in one step of the resource, so that nobody comes
between. They take a hold, or its fence as an int.

- `FenceColumn`: rows that carry their own fence.
- `SqlGuard`: anything else that is written in a transaction; `FenceTable` is the same for drivers
  that it does not know, and for asyncio.
- `RedisGuard`: a key of Redis.
- `FileGuard`: a file.
"""

from lockfast.guards.files import FileGuard
from lockfast.guards.redis import RedisGuard
from lockfast.guards.sql import FenceColumn, FenceTable, SqlGuard

__all__ = ["FenceColumn", "FenceTable", "FileGuard", "RedisGuard", "SqlGuard"]

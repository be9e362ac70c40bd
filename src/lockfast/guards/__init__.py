"""Guards: the resource's half of fencing, which refuses the writes of stale holders.

A lock cannot stop a holder that was paused for longer than its lease from writing when it resumes.
The resource can: it remembers the highest fence that it has seen, and refuses lower ones with
`StaleFence`. Each guard checks and writes in one atomic step of the resource, so that no other
writer comes between. Guards take a hold, or its fence as an int.

- `FenceColumn`: for rows that carry their own fence.
- `SqlGuard`: for anything else that is written in a transaction. `FenceTable` gives the same
  statements for other drivers and for asyncio.
- `RedisGuard`: for a Redis key.
- `FileGuard`: for a file.
"""

from lockfast.guards.files import FileGuard
from lockfast.guards.redis import RedisGuard
from lockfast.guards.sql import FenceColumn, FenceTable, SqlGuard

__all__ = ["FenceColumn", "FenceTable", "FileGuard", "RedisGuard", "SqlGuard"]

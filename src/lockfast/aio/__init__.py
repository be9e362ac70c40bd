"""The async API, for asyncio: the names of `lockfast.sync`, awaited.

``async with`` cancels its body when the hold is lost, as `asyncio.timeout` does, and raises
`HoldLost`; ``on_lost="flag"`` opts out.
"""

from lockfast.aio.client import Client
from lockfast.aio.connect import connect, default_client, lock, locked
from lockfast.aio.election import Election, Leadership
from lockfast.aio.hold import Hold
from lockfast.aio.latches import Barrier, Latch
from lockfast.aio.lock import Lock, ReadWriteLock
from lockfast.aio.multi import MultiHold, MultiLock
from lockfast.aio.permits import Permits, Semaphore

__all__ = [
    "Barrier", "Client", "Election", "Hold", "Latch", "Leadership", "Lock", "MultiHold",
    "MultiLock", "Permits", "ReadWriteLock", "Semaphore", "connect", "default_client", "lock",
    "locked",
]  # fmt: skip

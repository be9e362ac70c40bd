"""The async API, for asyncio: the names of `lockfast.sync`, awaited.

``async with`` cancels its body when the hold is lost, as `asyncio.timeout` does, and raises
`HoldLost`; ``on_lost="flag"`` opts out.
"""

from lockfast.aio.client import Client
from lockfast.aio.connect import connect, default_client, lock, locked
from lockfast.aio.counting import Barrier, Latch, Permits, Semaphore
from lockfast.aio.election import Election, Leadership
from lockfast.aio.hold import Hold, MultiHold
from lockfast.aio.lock import Lock, MultiLock, ReadWriteLock
from lockfast.aio.options import (
    LockedOptions,
    LockOptions,
    MultiLockOptions,
    ReadWriteLockOptions,
    SemaphoreOptions,
)

__all__ = [
    "Barrier", "Client", "Election", "Hold", "Latch", "Leadership", "Lock", "LockOptions",
    "LockedOptions", "MultiHold", "MultiLock", "MultiLockOptions", "Permits", "ReadWriteLock",
    "ReadWriteLockOptions", "Semaphore", "SemaphoreOptions", "connect", "default_client", "lock",
    "locked",
]  # fmt: skip

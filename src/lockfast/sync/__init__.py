# Generated from lockfast/aio/__init__.py by tools/generate_sync.py: change that file instead.
"""The sync API: clients, locks and holds for threads and processes."""

from lockfast.sync.client import Client
from lockfast.sync.connect import connect, default_client, lock, locked
from lockfast.sync.counting import Barrier, Latch, Permits, Semaphore
from lockfast.sync.election import Election, Leadership
from lockfast.sync.hold import Hold, MultiHold
from lockfast.sync.lock import Lock, MultiLock, ReadWriteLock
from lockfast.sync.options import (
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

"""The sync API: clients, locks and holds for threads and processes."""

from lockfast.sync.client import Client
from lockfast.sync.connect import connect, default_client, lock, locked
from lockfast.sync.election import Election, Leadership
from lockfast.sync.hold import Hold
from lockfast.sync.latches import Barrier, Latch
from lockfast.sync.lock import Lock, ReadWriteLock
from lockfast.sync.multi import MultiHold, MultiLock
from lockfast.sync.permits import Permits, Semaphore

__all__ = [
    "Barrier", "Client", "Election", "Hold", "Latch", "Leadership", "Lock", "MultiHold",
    "MultiLock", "Permits", "ReadWriteLock", "Semaphore", "connect", "default_client", "lock",
    "locked",
]  # fmt: skip

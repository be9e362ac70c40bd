"""The blocking face: what a user of threads and processes touches. One line per verb."""

from holdfast.sync.client import Client
from holdfast.sync.door import connect, default_client, lock, locked
from holdfast.sync.election import Election, Leadership
from holdfast.sync.gates import Barrier, Latch
from holdfast.sync.hold import Hold
from holdfast.sync.lock import Lock, ReadWriteLock
from holdfast.sync.multi import MultiHold, MultiLock
from holdfast.sync.permits import Permits, Semaphore

__all__ = [
    "Barrier",
    "Client",
    "Election",
    "Hold",
    "Latch",
    "Leadership",
    "Lock",
    "MultiHold",
    "MultiLock",
    "Permits",
    "ReadWriteLock",
    "Semaphore",
    "connect",
    "default_client",
    "lock",
    "locked",
]

"""lockfast: one thing at a time, across threads, processes and machines.

    with lockfast.lock("nightly-report"):
        build_report()

`connect` returns a client for a store; `lockfast.aio` offers the same API for asyncio.
"""

from lockfast import aio
from lockfast.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    HoldLost,
    LockfastError,
    NotHeld,
    NotReplicated,
    QuorumError,
    StaleFence,
    StaleSnapshot,
    Unsupported,
    WouldDeadlock,
)
from lockfast.model import Capabilities, Holder, Leader, Snapshot, Statistics, Waiter, Who
from lockfast.sync import (
    Barrier,
    Client,
    Election,
    Hold,
    Latch,
    Lock,
    LockedOptions,
    LockOptions,
    MultiHold,
    MultiLock,
    MultiLockOptions,
    Permits,
    ReadWriteLock,
    ReadWriteLockOptions,
    Semaphore,
    SemaphoreOptions,
    connect,
    default_client,
    lock,
    locked,
)

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "BackendError",
    "Barrier",
    "Capabilities",
    "Client",
    "ConfigurationError",
    "Election",
    "Hold",
    "HoldLost",
    "Holder",
    "Latch",
    "Leader",
    "Lock",
    "LockOptions",
    "LockedOptions",
    "LockfastError",
    "MultiHold",
    "MultiLock",
    "MultiLockOptions",
    "NotHeld",
    "NotReplicated",
    "Permits",
    "QuorumError",
    "ReadWriteLock",
    "ReadWriteLockOptions",
    "Semaphore",
    "SemaphoreOptions",
    "Snapshot",
    "StaleFence",
    "StaleSnapshot",
    "Statistics",
    "Unsupported",
    "Waiter",
    "Who",
    "WouldDeadlock",
    "aio",
    "connect",
    "default_client",
    "lock",
    "locked",
]

"""holdfast: one thing at a time, across threads, processes and machines.

    with holdfast.lock("nightly-report"):
        build_report()

`connect` makes a client of a store, `holdfast.aio` is the same for asyncio.
"""

from holdfast import aio
from holdfast.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    HoldfastError,
    HoldLost,
    NotHeld,
    NotReplicated,
    QuorumError,
    StaleFence,
    StaleSnapshot,
    Unsupported,
    WouldDeadlock,
)
from holdfast.model import Capabilities, Holder, Leader, Snapshot, Statistics, Waiter, Who
from holdfast.sync import (
    Barrier,
    Client,
    Election,
    Hold,
    Latch,
    Lock,
    MultiHold,
    MultiLock,
    Permits,
    ReadWriteLock,
    Semaphore,
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
    "HoldfastError",
    "Latch",
    "Leader",
    "Lock",
    "MultiHold",
    "MultiLock",
    "NotHeld",
    "NotReplicated",
    "Permits",
    "QuorumError",
    "ReadWriteLock",
    "Semaphore",
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

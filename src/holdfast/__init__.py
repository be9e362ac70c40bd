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
    Unsupported,
)
from holdfast.model import Capabilities, Holder, Snapshot, Statistics, Waiter, Who
from holdfast.sync import Client, Hold, Lock, connect, default_client, lock, locked

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "BackendError",
    "Capabilities",
    "Client",
    "ConfigurationError",
    "Hold",
    "HoldLost",
    "Holder",
    "HoldfastError",
    "Lock",
    "NotHeld",
    "NotReplicated",
    "QuorumError",
    "Snapshot",
    "Statistics",
    "Unsupported",
    "Waiter",
    "Who",
    "aio",
    "connect",
    "default_client",
    "lock",
    "locked",
]

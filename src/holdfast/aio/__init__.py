"""The asyncio face: the same names as `holdfast.sync`, awaited. One line per verb.

``async with`` cancels its body when the hold is lost, as `asyncio.timeout` would, and raises
`HoldLost`; ``on_lost="flag"`` opts out.
"""

from holdfast.aio.client import Client
from holdfast.aio.door import connect, default_client, lock, locked
from holdfast.aio.election import Election, Leadership
from holdfast.aio.gates import Barrier, Latch
from holdfast.aio.hold import Hold
from holdfast.aio.lock import Lock, ReadWriteLock
from holdfast.aio.multi import MultiHold, MultiLock
from holdfast.aio.permits import Permits, Semaphore

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

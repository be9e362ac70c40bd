"""Options of locks: the keyword arguments of `Client.lock`, `Client.locked` and the like."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, TypedDict

from lockfast.aio.hold import Hold, MultiHold
from lockfast.inputs import Seconds

OnLost = Callable[[Hold], object] | Literal["flag"] | None
OnMultiLost = Callable[[MultiHold], object] | Literal["flag"] | None
OnAnyLost = Literal["flag"] | Callable[[Any], object] | None


class Options(TypedDict, total=False):
    """Options of everything that is held.

    - ``timeout``: seconds to wait when acquiring; None waits without limit.
    - ``lease``: by default 30 s, renewed while held. A lease that you pass ends the hold, unless
      you also pass ``renew=True``.
    - ``max_hold``: seconds after which the hold ends, however often it was renewed.
    - ``fair``: serve waiters in arrival order; False lets this lock overtake them.
    - ``label``: text shown to operators.
    - ``warn_after``: seconds after which a hold is logged once, with its holder's stack; by default
      that of `connect`.
    """

    timeout: Seconds | None
    lease: Seconds | None
    renew: bool | None
    max_hold: Seconds | None
    fair: bool
    label: str
    warn_after: Seconds | None


class SemaphoreOptions(Options, total=False):
    """Options of `Client.semaphore`: those of `Options`, and

    - ``on_lost``: function called once with the hold, on a thread of its own, if it is lost; or
      ``"flag"``, to only set ``hold.lost`` and not cancel the body of ``async with``.
    """

    on_lost: OnLost


class ReadWriteLockOptions(SemaphoreOptions, total=False):
    """Options of `Client.rwlock`: those of `SemaphoreOptions`, and

    - ``owner``: identity that may re-enter; by default the current task.
    """

    owner: Hashable


class LockOptions(ReadWriteLockOptions, total=False):
    """Options of `Client.lock`: those of `ReadWriteLockOptions`, and

    - ``layout``: ``"simple"`` (Redis) or ``"kazoo"`` (ZooKeeper): the lock format of other
      libraries, to exclude their locks too.
    """

    layout: str | None


class MultiLockOptions(Options, total=False):
    """Options of `Client.multi_lock`: those of `Options`, and

    - ``owner``: identity that may re-enter; by default the current task.
    - ``on_lost``: as of `LockOptions`, called once for all names.
    """

    owner: Hashable
    on_lost: OnMultiLost


class LockedOptions(Options, total=False):
    """Options of `Client.locked`: those of `Options`, and

    - ``prefix``: text before each name, followed by a colon.
    - ``kind``: ``"read"`` or ``"write"`` takes that half of a read-write lock.
    - ``semaphore``: number of calls that may run at once.
    - ``on_lost``: as of `LockOptions`.
    """

    prefix: str | None
    kind: Literal["lock", "read", "write"]
    semaphore: int | None
    on_lost: OnAnyLost

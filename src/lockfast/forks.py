"""What must happen around a fork, for everything that has a thread, a file or a hold.

Before it, everybody comes to rest (no mutex held, no file half written); after it the parent goes
on and the child forgets what was the parent's. A child must not rely on the rest: who forks in C
may have told nobody before. Remembered weakly: this keeps nothing alive.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_remembered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting: list[Forkable] = []
_one_fork_at_a_time = threading.Lock()


def remember(thing: Forkable) -> None:
    """From now on tell it of forks, as long as it lives."""
    _remembered.add(thing)


def _before() -> None:
    _one_fork_at_a_time.acquire()
    for thing in list(_remembered):
        _resting.append(thing)
        thing.before_fork()


def _after_in_parent() -> None:
    while _resting:
        _resting.pop().after_fork_in_parent()
    _one_fork_at_a_time.release()


def _after_in_child() -> None:
    """All that is remembered, whether it rested or not: a server in C that forks (uWSGI, say) tells
    only the child."""
    global _one_fork_at_a_time
    _resting.clear()
    _one_fork_at_a_time = threading.Lock()
    for thing in list(_remembered):
        thing.after_fork_in_child()


class ForkSafeMutex:
    """A mutex of a module, around state that is whole at every instant: a child, in which the
    thread that was inside does not exist, gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        remember(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """No need to wait for who is inside."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()


# Where there is no fork there is nothing to do.
with contextlib.suppress(AttributeError):
    os.register_at_fork(
        before=_before,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )

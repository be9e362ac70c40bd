"""Fork handlers for every object that has a thread, a file or a hold.

Before a fork, all registered objects quiesce (no mutex held, no file half written); after it, the
parent continues and the child discards what belongs to the parent. The child's handler must not
rely on the quiescence: a program that forks in C may run the child's handlers only. References are
weak, so registration keeps nothing alive.
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


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_quiesced: list[Forkable] = []
_fork_mutex = threading.Lock()


def register(thing: Forkable) -> None:
    """Call the handlers of ``thing`` around every fork, as long as it lives."""
    _registered.add(thing)


def _before() -> None:
    _fork_mutex.acquire()
    for thing in list(_registered):
        _quiesced.append(thing)
        thing.before_fork()


def _after_in_parent() -> None:
    try:
        while _quiesced:
            _quiesced.pop().after_fork_in_parent()
    finally:
        _fork_mutex.release()


def _after_in_child() -> None:
    """Call all objects, quiesced or not: a C server that forks (uWSGI) runs only these handlers."""
    global _fork_mutex
    _quiesced.clear()
    _fork_mutex = threading.Lock()
    for thing in list(_registered):
        thing.after_fork_in_child()


class ForkSafeMutex:
    """A module's mutex around state that is consistent at every instant: ``with mutex.lock:``. A
    forked child, where the thread that held it does not exist, gets a new one.

    Entered directly, because only for a lock made in C nothing can come between acquiring it and
    the block: an interrupt inside an ``__enter__`` of ours would leave it locked.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may need what the mutex protects, too
        register(self)

    def before_fork(self) -> None:
        """Nothing to do: the state is consistent, whoever holds the mutex."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()


# Platforms without fork have no handlers to register.
with contextlib.suppress(AttributeError):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )

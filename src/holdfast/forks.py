"""What must happen around a fork, for everything that has a thread, a file or a hold.

Before it, everybody comes to rest (no mutex held, no file half written); after it the parent goes
on and the child forgets what was the parent's. Remembered weakly: this keeps nothing alive.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_remembered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting: list[Forkable] = []


def remember(thing: Forkable) -> None:
    """From now on tell it of forks, as long as it lives."""
    _remembered.add(thing)


def _before() -> None:
    for thing in list(_remembered):
        _resting.append(thing)
        thing.before_fork()


def _after_in_parent() -> None:
    while _resting:
        _resting.pop().after_fork_in_parent()


def _after_in_child() -> None:
    while _resting:
        _resting.pop().after_fork_in_child()


# Where there is no fork there is nothing to do.
with contextlib.suppress(AttributeError):
    os.register_at_fork(
        before=_before,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )

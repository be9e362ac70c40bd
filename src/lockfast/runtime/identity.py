"""Who is asking: the current task if one runs here, else the current thread.

A thread is known by an object of its own, not by its number: numbers are used again when a thread
ends, and the next thread would inherit the holds of a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading

from lockfast.model import Who


class ThreadOwner:
    """Stands for one thread, for as long as it lives or holds something."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    def __init__(self) -> None:
        self.owner = ThreadOwner()
        self.thread = threading.current_thread()


_local = _Local()


def current_owner() -> object:
    loop = asyncio._get_running_loop()
    if loop is not None:
        task = asyncio.current_task(loop)
        if task is not None:
            return task
    return _local.owner


def current_asker(label: str) -> tuple[object, str]:
    """The owner, and the same for people, as `Who.encoded` writes it, remembered: it is hot."""
    if asyncio._get_running_loop() is not None:
        return task_asker(label)
    return _local.owner, _encoded(_local.thread.name, label)


def task_asker(label: str) -> tuple[object, str]:
    """The same, where a loop is known to run."""
    task = asyncio.current_task()
    if task is not None:
        return task, _encoded(task.get_name(), label)
    return _local.owner, _encoded(_local.thread.name, label)


@functools.lru_cache(maxsize=1024)
def _encoded(thread: str, label: str) -> str:
    return Who(socket.gethostname(), os.getpid(), thread, label).encoded()


with contextlib.suppress(AttributeError):  # where there is no fork, a process stays the same
    os.register_at_fork(after_in_child=_encoded.cache_clear)

"""Identity of the caller: the current task if one is running, else the current thread.

A thread is identified by an object of its own, not by its number: numbers are reused when a thread
ends, and a new thread would inherit the holds of a dead one.
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
    """The owner object of one thread, kept for as long as the thread lives or holds something."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    """The owner object and the thread object of the current thread."""

    def __init__(self) -> None:
        self.owner = ThreadOwner()
        self.thread = threading.current_thread()


local = _Local()


def current_owner() -> object:
    loop = asyncio._get_running_loop()
    if loop is not None:
        task = asyncio.current_task(loop)
        if task is not None:
            return task
    return local.owner


def task_identity(label: str) -> tuple[object, str]:
    """The owner object and the description of the current task."""
    task = asyncio.current_task()
    if task is not None:
        return task, encoded(task.get_name(), label)
    return local.owner, encoded(local.thread.name, label)


@functools.lru_cache(maxsize=1024)
def encoded(thread: str, label: str) -> str:
    """The description of an owner in this process, as `Who.encoded` writes it."""
    return Who(socket.gethostname(), os.getpid(), thread, label).encoded()


with contextlib.suppress(AttributeError):  # platforms without fork: the pid never changes
    os.register_at_fork(after_in_child=encoded.cache_clear)

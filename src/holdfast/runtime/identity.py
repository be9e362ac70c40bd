"""Who is asking: the current task if one runs here, else the current thread.

A thread is known by an object of its own, not by its number: numbers are used again when a thread
ends, and the next thread would inherit the holds of a dead one.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
from urllib.parse import quote


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


def current_who(label: str) -> str:
    """As `Who.encoded` writes it, put together from cached parts: it is on the fast path."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    name = task.get_name() if task is not None else _local.thread.name
    place = _place(os.getpid())
    return f"{place} {_quoted(name)} {_quoted(label)}" if label else f"{place} {_quoted(name)}"


@functools.lru_cache(maxsize=4)
def _place(pid: int) -> str:
    return f"{quote(socket.gethostname())} {pid}"


@functools.lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return quote(text)

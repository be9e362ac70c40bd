"""Threads that wait for a lock while nothing happens, and what their process spends meanwhile."""

from __future__ import annotations

import threading
import time

import lockfast

from ._processes import Ready, wait_until


def wait_idly(
    index: int,
    ready: Ready,
    url: str,
    name: str,
    threads: list[int],  # of each process; 0: it holds the lock
    settle: float,
    seconds: float,
    arrive: float = 0.0,  # seconds in which they come, one after the other, before ``settle``
) -> float:
    """Wait for the lock, or hold it; return the CPU seconds that this process spent."""
    with lockfast.connect(url) as client:
        if not threads[index]:
            client.lock(name).acquire()
        begin = ready()
        end = begin + arrive + settle + seconds

        def wait(number: int) -> None:
            wait_until(begin + arrive * number / threads[index])
            client.lock(name).try_acquire(timeout=end + 0.3 - time.monotonic())

        waiters = [
            threading.Thread(target=wait, args=(number,), daemon=True)
            for number in range(threads[index])
        ]
        for thread in waiters:
            thread.start()
        wait_until(end - seconds)
        before = time.process_time()
        wait_until(end)
        spent = time.process_time() - before
        for thread in waiters:
            thread.join(5.0)
        return spent

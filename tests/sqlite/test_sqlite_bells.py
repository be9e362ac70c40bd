"""How processes on one host ring each other's bells."""

from __future__ import annotations

import socket
import threading
import time

from holdfast.backends.sqlite.neighbours import Neighbours


def test_threads_that_ring_for_the_first_time_together_open_one_socket(tmp_path, monkeypatch):
    made = []

    class Slow(socket.socket):
        def __init__(self, *said):
            made.append(self)
            time.sleep(0.02)  # a thread may be paused anywhere
            super().__init__(*said)

    monkeypatch.setattr(socket, "socket", Slow)
    neighbours = Neighbours(tmp_path)
    threads = [
        threading.Thread(target=neighbours.ring, args=("elsewhere", "id", None)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    neighbours.close()
    assert len(made) == 1, "one that nobody closes stays open"

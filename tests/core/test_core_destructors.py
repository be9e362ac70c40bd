"""Locks that are used where no statement expects it: in destructors and by threads of one owner."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import lockfast
from lockfast.core import law
from lockfast.errors import BackendError
from lockfast.stores.memory import Memory

LIMIT = 60.0


def test_a_release_in_a_destructor_during_garbage_collection_does_not_deadlock() -> None:
    class Holder:
        """Part of a reference cycle, so that only the garbage collector ends it."""

        def __init__(self, client: lockfast.Client, name: str) -> None:
            self.hold = client.lock(name).acquire()
            self.me = self

        def __del__(self) -> None:
            self.hold.release()

    def work() -> None:
        with lockfast.connect("memory://") as client:
            for number in range(3000):
                # So that it runs, in turn, in every statement of ours that allocates.
                gc.set_threshold(2 + number % 37, 2, 2)
                Holder(client, f"n{number}")
            gc.collect()
            left.extend(client.names())

    left: list[str] = []
    before = gc.get_threshold()
    try:
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(LIMIT)
        assert not worker.is_alive(), "a destructor waits for the thread it interrupted"
    finally:
        gc.set_threshold(*before)
    assert left == []


def test_a_release_inside_a_step_of_the_same_name_is_done_at_its_end() -> None:
    now = [100.0]
    memory = Memory(lambda: now[0], lambda: now[0])
    store = memory.blocking(threading.Event)  # type: ignore[arg-type]
    claim = lockfast.model.Claim("n", "1", "who", 30.0)
    store.claim([claim], 1.0)  # type: ignore[misc]
    nested: list[Any] = []

    def step(book: Any) -> int:
        nested.append(store.release([claim], 1.0))
        assert book.holds, "the rows changed under the outer step"
        with pytest.raises(BackendError, match="destructor or signal handler"):
            store.claim([claim._replace(id="2")], 1.0)
        return len(book.holds)

    assert memory.step("n", step)[0] == 1
    waiter = claim._replace(id="3")

    def leaves(book: Any) -> None:
        nested.append(store.leave(waiter, 1.0))

    memory.step("n", leaves)
    assert nested.pop().holders == ()
    assert nested == [[True]] and store.inspect("n", 1.0).holders == ()  # type: ignore[union-attr]
    assert memory.step("n", law.look, "n")[0].slots == 0


def test_a_hold_released_by_another_thread_of_its_owner_is_acquired_anew() -> None:
    with lockfast.connect("memory://") as client:
        lock = client.lock("a", owner="both")
        first = lock.acquire()
        settle = client._core.settle

        def released_meanwhile(held: Any) -> None:
            settle(held)
            client._core.settle = settle  # type: ignore[method-assign]
            first.release()

        client._core.settle = released_meanwhile  # type: ignore[method-assign]
        with lock as again:
            assert again.fence > first.fence and again.is_held
        assert client.names() == []

"""The memory store around the law: verbs, bells, names, forgetting, forks, URLs."""

from __future__ import annotations

import os
import sys

import pytest

from law_steps import LEASE, Desk
from lockfast import clock
from lockfast.core import law
from lockfast.errors import ConfigurationError
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.runtime.threads import ThreadSignal, run
from lockfast.stores.memory import open_memory


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_verbs_of_the_memory_backend_are_the_steps_of_the_law(desk: Desk) -> None:
    store = desk.store
    backend = store.blocking(ThreadSignal)
    a, b = (Claim("n", claim_id, f"host 1 {claim_id}", LEASE) for claim_id in "ab")
    woken: list[Granted | None] = []
    granted = run(backend.claim(a, 1))
    assert isinstance(granted, Granted)
    assert isinstance(run(backend.claim(b, 1)), Busy)
    run(backend.watch(b, woken.append, 0.0))
    assert run(backend.renew([a, b], [granted.fence, 0], 1))[0] == granted
    assert run(backend.transfer(a, False, 1)) == granted
    assert [holder.fence for holder in run(backend.inspect("n", 1)).holders] == [granted.fence]
    assert run(backend.break_hold("n", granted.fence, 1))
    assert [grant is not None for grant in woken] == [True]
    backend.unwatch(b)
    backend.unwatch(b)
    run(backend.claim(a, 1))
    assert run(backend.release(b, 1))
    assert run(backend.leave(a, 1)).holders == ()
    assert len(woken) == 1  # a was served too, but nobody watched
    assert backend.capabilities.store == "memory"
    backend.close()


def test_a_poke_before_hearing_is_not_forgotten(desk: Desk) -> None:
    backend = desk.store.tasks(ThreadSignal)
    backend.interrupt()
    run(backend.listen(60))
    run(backend.listen(0))


def test_names_are_those_of_the_living_sorted_and_by_prefix(desk: Desk) -> None:
    store = desk.store
    backend = store.blocking(ThreadSignal)
    for name, lease in (("b:2", 9.0), ("b:1", 9.0), ("a:1", 9.0), ("b:0", 1.0)):
        run(backend.claim(Claim(name, name, "w", lease), 1))
    desk.pass_time(1.0)
    assert run(backend.names("b:", 1)) == ["b:1", "b:2"]
    assert run(backend.names("", 1)) == ["a:1", "b:1", "b:2"]


def test_forgetting_a_name_loses_its_holds(desk: Desk) -> None:
    store = desk.store
    desk.holds("a")
    store.forget("n")
    store.forget("never there")
    assert desk.renew("a") == Gone()


def test_a_fork_finds_the_memory_store_empty_and_the_parent_keeps_its_own(desk: Desk) -> None:
    desk.holds("a")
    desk.waits("b")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            code = int(bool(desk.holders or desk.waiters or not desk.holds("c").fence))
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert desk.holders == ["a"] and desk.waiters == ["b"]


def test_after_a_fork_the_child_forgets_wakes_and_a_mutex_that_was_held(desk: Desk) -> None:
    """The same in this process, where it can be measured: the parent's threads are not there."""
    store = desk.store
    desk.holds("a")
    store.wakeups.watch("a", lambda grant: pytest.fail("a bell of the parent"))
    store._mutex.acquire()
    store.after_fork_in_child()
    store.wakeups.wake("a", None)
    assert desk.holders == []


def test_a_url_without_a_name_is_a_private_store_and_with_one_a_shared() -> None:
    assert open_memory("memory://") is not open_memory("memory://")
    assert open_memory("memory://test-law") is open_memory("memory://test-law")
    assert open_memory("memory://test-law") is not open_memory("memory://test-law-2")
    assert open_memory("memory://").clock is clock.now


@pytest.mark.parametrize("url", ["memory://a/b", "memory:///b", "memory://?x=1", "memory://a#f"])
def test_a_memory_url_has_nothing_after_the_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://NAME"):
        open_memory(url)


def test_what_ran_out_is_forgotten_although_nobody_asks_for_its_name_again(desk: Desk) -> None:
    for number in range(20_000):  # a hundred of them are alive at a time
        claim = Claim(f"job:{number}", "id", "w", 1.0)
        desk.store.step(claim.name, law.claim, claim)
        desk.pass_time(0.01)
    assert len(desk.store._names) < 4000
    assert len(desk.store.names("")) == 100

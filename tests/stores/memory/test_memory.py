"""The memory store around the law: verbs, wake-ups, names, forgetting, forks, URLs."""

from __future__ import annotations

import os
import sys

import pytest

from law_steps import LEASE, LawStore
from lockfast import clock
from lockfast.core import law
from lockfast.errors import ConfigurationError, Unsupported
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.runtime.threads import ThreadSignal, run
from lockfast.stores.memory import open_memory


@pytest.fixture
def store() -> LawStore:
    return LawStore()


def test_the_verbs_of_the_memory_backend_are_the_steps_of_the_law(store: LawStore) -> None:
    verbs = store.memory.blocking(ThreadSignal)
    a, b = (Claim("n", claim_id, f"host 1 {claim_id}", LEASE) for claim_id in "ab")
    woken: list[Granted | None] = []
    granted = verbs.claim([a], 1)[0]
    assert isinstance(granted, Granted)
    assert isinstance(verbs.claim([b], 1)[0], Busy)
    verbs.watch(b, woken.append, 0.0)
    assert verbs.renew([a, b], [granted.fence, 0], 1)[0] == granted
    assert verbs.transfer(a, False, 1) == granted
    assert [holder.fence for holder in verbs.inspect("n", 1).holders] == [granted.fence]
    assert verbs.break_hold("n", granted.fence, 1)
    assert [grant is not None for grant in woken] == [True]
    verbs.unwatch(b)
    verbs.unwatch(b)
    verbs.claim([a], 1)[0]
    assert verbs.release([b], 1)[0]
    assert verbs.leave(a, 1).holders == ()
    assert len(woken) == 1  # a was granted too, but nobody watched
    assert verbs.capabilities.store == "memory"
    verbs.close()


def test_an_interrupt_before_listening_is_not_forgotten(store: LawStore) -> None:
    verbs = store.memory.tasks(ThreadSignal)
    verbs.interrupt()
    run(verbs.listen(60))
    run(verbs.listen(0))


def test_names_lists_live_names_sorted_and_by_prefix(store: LawStore) -> None:
    verbs = store.memory.blocking(ThreadSignal)
    for name, lease in (("b:2", 9.0), ("b:1", 9.0), ("a:1", 9.0), ("b:0", 1.0)):
        verbs.claim([Claim(name, name, "w", lease)], 1)[0]
    store.pass_time(1.0)
    assert verbs.names("b:", 1) == ["b:1", "b:2"]
    assert verbs.names("", 1) == ["a:1", "b:1", "b:2"]


def test_forgetting_a_name_loses_its_holds(store: LawStore) -> None:
    store.acquire("a")
    store.memory.forget("n")
    store.memory.forget("never there")
    assert store.renew("a") == Gone()


def test_a_fork_finds_the_memory_store_empty_and_the_parent_keeps_its_own(store: LawStore) -> None:
    store.acquire("a")
    store.enqueue("b")
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            code = int(bool(store.holders or store.waiters or not store.acquire("c").fence))
        finally:
            sys.stdout.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.holders == ["a"] and store.waiters == ["b"]


def test_after_a_fork_the_child_discards_wakeups_and_a_held_mutex(store: LawStore) -> None:
    """Run the child's fork handler in this process, where coverage can be measured."""
    store.acquire("a")
    store.memory.wakeups.watch("a", lambda grant: pytest.fail("a wake-up of the parent"))
    store.memory._mutex.acquire()
    store.memory.after_fork_in_child()
    store.memory.wakeups.deliver("a", None)
    assert store.holders == []


def test_a_url_without_a_name_is_a_private_store_and_with_one_a_shared() -> None:
    assert open_memory("memory://") is not open_memory("memory://")
    assert open_memory("memory://test-law") is open_memory("memory://test-law")
    assert open_memory("memory://test-law") is not open_memory("memory://test-law-2")
    assert open_memory("memory://").clock is clock.now


@pytest.mark.parametrize("url", ["memory://a/b", "memory:///b", "memory://?x=1", "memory://a#f"])
def test_a_memory_url_has_nothing_after_the_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://NAME"):
        open_memory(url)


def test_expired_names_are_removed_although_nobody_claims_them_again(store: LawStore) -> None:
    for number in range(20_000):  # a hundred of them are live at a time
        claim = Claim(f"job:{number}", "id", "w", 1.0)
        store.memory.step(claim.name, law.claim, claim)
        store.pass_time(0.01)
    assert len(store.memory._names) < 4000
    assert len(store.memory.names("")) == 100


def test_a_store_without_transactions_says_so() -> None:
    with pytest.raises(Unsupported, match="no transactions"):
        open_memory("memory://").blocking(ThreadSignal).transaction("n", "n", None, None, False)

"""Redlock in the simulator, its fence rule explored exhaustively, and planted bugs to detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.simulation.lua_bugs import planted
from lab.simulation.quorum_model import Model
from lab.simulation.quorum_run import RestartsScenario, run_quorum_seed
from lockfast.stores.redlock import votes, voting

SEEDS = range(1, 13)


def test_a_quorum_keeps_its_promises_while_nodes_hang_and_lose_data():
    reports = [run_quorum_seed(seed) for seed in SEEDS]
    assert [report.violations for report in reports if report.violations] == []
    assert sum(report.acquired for report in reports) > 300
    assert sum(report.forgot for report in reports) > 10
    assert sum(report.lost for report in reports) > 3


def test_nodes_that_restart_empty_one_after_the_other_do_not_free_a_hold_that_is_renewed():
    reports = [run_quorum_seed(seed, RestartsScenario) for seed in SEEDS]
    assert [report.violations for report in reports if report.violations] == []
    assert sum(report.forgot for report in reports) >= 3 * len(SEEDS)


def test_the_simulator_detects_nodes_that_are_not_marked(monkeypatch):
    monkeypatch.setattr(voting.Voting, "mark", lambda self, nodes: None)
    assert any(run_quorum_seed(seed, RestartsScenario).violations for seed in SEEDS)


def test_a_seed_replays_exactly():
    assert run_quorum_seed(3) == run_quorum_seed(3)


def test_every_order_of_two_claims_on_three_nodes_keeps_fences_apart_and_growing():
    found = Model().explore()
    assert found.violation == ""
    assert found.states > 50_000 and found.grants > 1000


def test_the_model_detects_the_naive_fence():
    """The greatest fence of the votes, not written back."""
    assert "was given twice" in Model(naive=True).explore().violation
    assert Model(naive=True, readers=True).explore().violation


def test_the_model_detects_an_empty_node_that_votes_at_once():
    assert Model(marks=False, forgets=1).explore().violation


def test_the_model_detects_a_fence_that_is_settled_below_a_higher_one():
    """Readers share the lock, and two of them got the same fence."""
    with planted(("      if fence > last then\n", "      if true then\n")).plant():
        assert "was given twice" in Model(readers=True).explore().violation


# ---- planted bugs -------------------------------------------------------------------------------


@contextmanager
def naive_fence() -> Iterator[None]:
    honest = votes.Tally.fence

    def fence(self: votes.Tally, number: int) -> tuple[int, bool]:
        return max(vote.fence for vote in self.grants(number).values()), True

    votes.Tally.fence = fence  # type: ignore[method-assign]
    try:
        yield
    finally:
        votes.Tally.fence = honest  # type: ignore[method-assign]


@contextmanager
def half_is_enough() -> Iterator[None]:
    honest = votes.majority_of
    votes.majority_of = lambda size: size // 2
    try:
        yield
    finally:
        votes.majority_of = honest


@contextmanager
def votes_are_not_withdrawn() -> Iterator[None]:
    honest = voting.undo_call
    voting.undo_call = lambda claims, number, stay: honest(claims, 0, stay=stay)
    try:
        yield
    finally:
        voting.undo_call = honest


BUGS: dict[str, Callable[[], Any]] = {
    "the naive fence": naive_fence,
    "half is enough": half_is_enough,
    "votes are not withdrawn": votes_are_not_withdrawn,
    "a node without a mark votes": planted(
        (
            "if not from then\n",
            "if not from then\n  from, longest = '0', '60000000'\nend\nif false then\n",
        )
    ).plant,
    "a recovering node votes at once": planted(
        ("if tonumber(from) > now then", "if false then")
    ).plant,
    "a late undo withdraws the vote on a later ballot": planted(
        ("if previous and tonumber(previous) <= tonumber(ARGV[1]) then", "if hold then")
    ).plant,
    "readers are admitted beside a writer": planted(
        ("if mine.take <= slots - book.taken and not must_wait", "if not must_wait")
    ).plant,
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_simulator_detects_a_planted_bug(bug):
    with BUGS[bug]():
        assert any(run_quorum_seed(seed).violations for seed in range(1, 400))

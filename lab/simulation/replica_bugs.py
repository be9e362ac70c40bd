"""Planted bugs in counting replicas, and in what a failover may forget: each is one wrong line.

A test runs every one of them and demands that some seed finds it, as with those of `bugs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.lua_bugs import LUA_BUGS
from lockfast.core import acquire, locks
from lockfast.errors import BackendError, NotReplicated
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.stores.redis.backend import RedisBackend
from lockfast.stores.redis.replicas import ReplicatedBackend


@contextmanager
def claims_without_acknowledgement_count() -> Iterator[None]:
    """Who asked is told yes before any replica knows of it."""
    with patch.object(ReplicatedBackend, "_run", RedisBackend._run):
        yield


@contextmanager
def renewals_without_acknowledgement_count() -> Iterator[None]:
    """Belief grows, and the replica that takes over knows of an older lease."""
    with patch.object(ReplicatedBackend, "renew", RedisBackend.renew):
        yield


@contextmanager
def a_bell_is_believed_without_replicas() -> Iterator[None]:
    """It tells of a grant in the release of another, who waited for nobody."""
    with patch.object(ReplicatedBackend, "watch", RedisBackend.watch):
        yield


@contextmanager
def a_refresh_is_believed_without_replicas() -> Iterator[None]:
    """It tells of a grant, too; where only places were refreshed nobody looks whether replicas have
    it."""
    honest = ReplicatedBackend.renew

    async def renew(
        self: ReplicatedBackend, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> list[Granted | Busy | Gone | BackendError]:
        if any(fences):
            return await honest(self, claims, fences, budget)
        return await RedisBackend.renew(self, claims, fences, budget)

    with patch.object(ReplicatedBackend, "renew", renew):
        yield


@contextmanager
def what_was_not_replicated_is_not_undone() -> Iterator[None]:
    """It stands at the master, renewed by nobody, in the way of all others until its lease ends."""
    honest = acquire.leave
    refused: set[str] = set()
    not_replicated = ReplicatedBackend._not_replicated

    def remember(self: ReplicatedBackend, claims: Sequence[Claim], lacking: Any) -> NotReplicated:
        refused.update(claim.id for claim in claims)
        return not_replicated(self, claims, lacking)

    async def leave(backend: Any, keeper: Any, claim: Claim, limit: float) -> Any:
        if claim.id not in refused:
            return await honest(backend, keeper, claim, limit)
        return None

    with (
        patch.object(ReplicatedBackend, "_not_replicated", remember),
        patch.object(locks, "leave", leave),
    ):
        yield


@contextmanager
def too_few_are_enough() -> Iterator[None]:
    """None of them, to be exact."""
    with patch.object(ReplicatedBackend, "_wanted", lambda self: 0):
        yield


REPLICA_BUGS: dict[str, Bug] = {
    bug.__name__: Bug(bug, store="replicas")
    for bug in (
        claims_without_acknowledgement_count,
        renewals_without_acknowledgement_count,
        a_bell_is_believed_without_replicas,
        a_refresh_is_believed_without_replicas,
        what_was_not_replicated_is_not_undone,
        too_few_are_enough,
    )
} | {
    # A plain counter repeats when the replica that takes over had not heard of the last grants.
    "fences_repeat_after_a_failover": Bug(
        LUA_BUGS["lua_fence_without_a_floor"].plant, store="forgetful"
    ),
}

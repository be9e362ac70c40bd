"""Planted bugs in counting replicas, and in what a failover may forget: one wrong line each.

A test plants each of them and requires that some seed finds it, as for the bugs in `bugs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lab.simulation.bug import Bug
from lab.simulation.lua_bugs import LUA_BUGS
from lockfast.core import locks
from lockfast.errors import BackendError, NotReplicated
from lockfast.model import Busy, Claim, Gone, Granted
from lockfast.stores.redis.replicas import ReplicatedStore
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.steps import Steps


@contextmanager
def claims_without_acknowledgement_count() -> Iterator[None]:
    """A claim is granted before any replica has acknowledged it."""
    with patch.object(ReplicatedStore, "_run", RedisStore._run):
        yield


@contextmanager
def renewals_without_acknowledgement_count() -> Iterator[None]:
    """Validity is extended, and the replica that takes over has the older lease."""
    with patch.object(ReplicatedStore, "_renew", RedisStore._renew):
        yield


@contextmanager
def a_wakeup_is_trusted_without_replicas() -> Iterator[None]:
    """A wake-up carries a grant from the release of another client, which waited for no replica."""
    with patch.object(ReplicatedStore, "watch", RedisStore.watch):
        yield


@contextmanager
def a_refresh_is_trusted_without_replicas() -> Iterator[None]:
    """A refresh reports grants, too; a renewal of waiters only is not checked with the replicas."""
    honest = ReplicatedStore._renew

    def renew(
        self: ReplicatedStore, claims: Sequence[Claim], fences: Sequence[int], budget: float
    ) -> Steps[list[Granted | Busy | Gone | BackendError]]:
        chosen = honest if any(fences) else RedisStore._renew
        return chosen(self, claims, fences, budget)

    with patch.object(ReplicatedStore, "_renew", renew):
        yield


@contextmanager
def a_grant_that_was_not_replicated_is_not_withdrawn() -> Iterator[None]:
    """The grant stays at the master, renewed by nobody, and blocks others until its lease ends."""
    honest = locks.Core.withdraw
    refused: set[str] = set()
    not_replicated = ReplicatedStore._not_replicated

    def remember(self: ReplicatedStore, claims: Sequence[Claim], too_few: Any) -> NotReplicated:
        refused.update(claim.id for claim in claims)
        return not_replicated(self, claims, too_few)

    async def withdraw(self: locks.Core, claim: Claim, limit: float) -> Any:
        return None if claim.id in refused else await honest(self, claim, limit)

    with (
        patch.object(ReplicatedStore, "_not_replicated", remember),
        patch.object(locks.Core, "withdraw", withdraw),
    ):
        yield


@contextmanager
def no_acknowledgement_is_required() -> Iterator[None]:
    """Zero replicas are enough."""
    with patch.object(ReplicatedStore, "_wanted", lambda self: 0):
        yield


REPLICA_BUGS: dict[str, Bug] = {
    bug.__name__: Bug(bug, store="replicas")
    for bug in (
        claims_without_acknowledgement_count,
        renewals_without_acknowledgement_count,
        a_wakeup_is_trusted_without_replicas,
        a_refresh_is_trusted_without_replicas,
        a_grant_that_was_not_replicated_is_not_withdrawn,
        no_acknowledgement_is_required,
    )
} | {
    # A plain counter repeats when the replica that takes over has not received the last grants.
    "fences_repeat_after_a_failover": Bug(
        LUA_BUGS["lua_fence_without_a_floor"].plant, store="forgetful"
    ),
}

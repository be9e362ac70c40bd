"""A name on Redis expires neither while it is held nor before its last fence may be forgotten.

The scripts set an expiry only now and then; `constants.lua` states the invariants in between. This
test checks them after every step of histories that Hypothesis generates, of a lock and a semaphore
on MiniRedis, whose clock it advances, and sets back by no more than is allowed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from direct_transport import DirectChannel
from lab.miniredis import MiniRedis
from lockfast.model import Claim, Granted
from lockfast.stores.redis import scripts
from lockfast.stores.redis.store import RedisStore

BUDGET = 30.0
SIZES = {"lock": 1, "semaphore": 2}
# µs: how long fences are kept according to the docs, how often an expiry is set, and for how long.
REMEMBERED, SPAN, KEPT = 90_000_000, 10_000_000, 130_000_000
SECOND = 1_000_000

names = st.sampled_from(sorted(SIZES))
picks = st.integers(0, 9)


class Names(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = self.highest = 1_763_258_400_123_456
        self.server = MiniRedis(self.tick, lambda channel, message: 1, lambda channel: 1)
        for script in scripts.ALL:
            self.server.script_load(script.source)
        channel = DirectChannel("left")
        channel.server = self.server
        self.store: Any = RedisStore(channel, "Redis")
        self.number = 0
        self.claims: dict[str, Claim] = {}  # of holders and waiters
        self.valid: dict[str, tuple[int, int]] = {}  # fence and end
        self.fences = dict.fromkeys(SIZES, 0)
        self.moved = False
        self.behind = 0  # how far the clock is behind one that was never set back

    def tick(self) -> int:
        self.clock += 20
        self.highest = max(self.highest, self.clock)
        return self.clock

    def teardown(self) -> None:
        self.store.close()

    def granted(self, claim: Claim, grant: Granted) -> None:
        if claim.id not in self.valid:
            assert grant.fence > self.fences[claim.name]
            self.fences[claim.name] = grant.fence
        self.valid[claim.id] = grant.fence, self.clock + round(grant.lease * SECOND)

    def picked(self, pick: int) -> Claim | None:
        known = list(self.claims.values())
        return known[pick % len(known)] if known else None

    # ---- steps -------------------------------------------------------------------------------

    @rule(name=names, lease=st.sampled_from([2.0, 30.0, 30.1, 90.0, 129.0, 131.0, 300.0]))
    def claim(self, name: str, lease: float) -> None:
        self.number += 1
        claim = Claim(name, f"{name}#{self.number}", "host 1 t", lease, SIZES[name], 1, True, True)
        self.claims[claim.id] = claim
        self.store.watch(claim, lambda grant: grant and self.granted(claim, grant), 0.0)
        (answer,) = self.store.claim([claim], BUDGET)
        if isinstance(answer, Granted):
            self.granted(claim, answer)

    @rule(name=names, lease=st.sampled_from([2.0, 30.0]), times=st.integers(1, 12))
    def use_repeatedly(self, name: str, lease: float, times: int) -> None:
        """Acquire and release the name every few seconds."""
        for _ in range(times):
            self.pass_time(3.0)
            self.claim(name, lease)
            self.release(len(self.claims) - 1)

    @rule(pick=picks)
    def release(self, pick: int) -> None:
        if claim := self.picked(pick):
            del self.claims[claim.id]
            self.valid.pop(claim.id, None)
            if pick % 5 == 0:
                self.store.leave(claim, BUDGET)
            else:
                self.store.release([claim], BUDGET)

    @rule(pick=picks)
    def renew(self, pick: int) -> None:
        claim = self.picked(pick)
        if claim and claim.id in self.valid:
            (answer,) = self.store.renew([claim], [self.valid[claim.id][0]], BUDGET)
            if isinstance(answer, Granted):
                self.granted(claim, answer)

    @rule(pick=picks)
    def break_hold(self, pick: int) -> None:
        claim = self.picked(pick)
        if claim and claim.id in self.valid:
            self.store.break_hold(claim.name, self.valid.pop(claim.id)[0], BUDGET)

    @rule(seconds=st.sampled_from([0.1, 3.0, 9.9, 10.0, 31.0, 80.0, 89.0, 120.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock += round(seconds * SECOND)

    @rule(seconds=st.sampled_from([0.001, 1.0, 9.0, 30.0, 60.0, 89.0]))
    def set_the_clock_back(self, seconds: float) -> None:
        back = round(seconds * SECOND)
        if self.is_remembered(back, moves=self.moved):
            self.clock -= back
            self.behind += back

    def is_remembered(self, back: int, *, moves: bool) -> bool:
        """A clock that is set back takes the names' expiries with it, as they are points of its
        time. A name that moves keeps its TTL instead, so that its fence is remembered for a time
        that passes: all that the clock is behind by then, in however many steps, must fit into it.
        """
        self.highest = max(self.highest, self.clock)
        behind = self.highest - self.clock + back
        return max(behind, self.behind + back if moves else 0) <= REMEMBERED

    @rule(seconds=st.sampled_from([9.0, 60.0, 80.0, 89.0]))
    def move_to_a_server_whose_clock_is_behind(self, seconds: float) -> None:
        """Move all keys to another server; each keeps its remaining TTL, as with MIGRATE."""
        by = -round(seconds * SECOND)
        if not self.is_remembered(-by, moves=True):
            return
        self.behind -= by
        keys = [f"{self.key(name)}{kind}" for name in SIZES for kind in ("", ":q", ":w")]
        ttls: dict[str, Any] = {key: self.server.call("PTTL", key) for key in keys}
        self.clock += by
        for key, left in ttls.items():
            if left > 0:
                self.server.call("PERSIST", key)
                self.server.call("PEXPIRE", key, left)
        self.valid = {one: (fence, ends + by) for one, (fence, ends) in self.valid.items()}
        self.moved = True

    # ---- invariants --------------------------------------------------------------------------

    @invariant()
    def no_held_name_has_expired(self) -> None:
        for claim_id, (_, ends) in list(self.valid.items()):
            if ends <= self.clock:
                del self.valid[claim_id]
            else:
                name = self.claims[claim_id].name
                assert self.server.call("HGET", self.key(name), claim_id), claim_id

    @invariant()
    def a_name_is_kept_as_long_as_its_fence_requires(self) -> None:
        for name in SIZES if not self.moved else ():
            fields = self.server.call("HGETALL", self.key(name))
            rows: dict[bytes, bytes] = dict(zip(fields[::2], fields[1::2], strict=True))
            if not rows:
                continue
            left: Any = self.server.call("PTTL", self.key(name))
            expires = self.clock + (left + 1) * 1000
            last = int(rows.pop(b".f"))
            assert expires >= last - last % SPAN + KEPT
            for row in rows.values():
                assert expires >= int(row.split()[1])

    def key(self, name: str) -> str:
        return f"lf:{{{name}}}"


TestNames = Names.TestCase
TestNames.pytestmark = [pytest.mark.timeout(600)]  # shrinking a failure takes long
TestNames.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("lease", [30.0, 90.0])
def test_a_moved_name_is_kept_for_a_whole_lease(lease: float) -> None:
    """The name is unused until the clock reaches its last fence again, so no expiry is set."""
    names = Names()
    names.clock -= names.clock % SPAN
    names.claim("lock", 30.0)
    names.release(1)
    names.move_to_a_server_whose_clock_is_behind(89.0)
    names.pass_time(89.0 + 9.0)
    names.claim("lock", lease)
    names.pass_time(lease - 0.1)
    assert len(names.valid) == 1
    names.no_held_name_has_expired()


@pytest.mark.parametrize("back", [(89.0,), (9.0, 80.0), (30.0, 30.0, 29.0)])
def test_fences_grow_although_a_name_moves_to_clocks_that_are_behind(
    back: tuple[float, ...],
) -> None:
    """The name is not used between the moves, and its memory runs out after the last one."""
    names = Names()
    names.use_repeatedly("lock", 2.0, 3)
    for by in back:
        names.move_to_a_server_whose_clock_is_behind(by)
        names.pass_time(31.0)
    assert names.behind == sum(back) * SECOND
    names.pass_time(130.0 - 31.0 * len(back))
    names.use_repeatedly("lock", 2.0, 1)  # asserts that the fence grows

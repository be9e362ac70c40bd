"""The memory store, the SQLite store and the Lua scripts of Redis give the same answers and the
same wake-ups.

Hypothesis generates a history; each step goes to all stores, on one clock that only the history
moves. Two clients with different wake addresses alternate, so that wake-ups also go from one to the
other. Each store numbers its own fences: they are compared by the order in which they were first
seen. The scripts run on `lab.miniredis`, whose clock can be moved; the conformance suite runs them
on the real server.

Two promises are checked from the answers alone, independently of the law: the slots taken by valid
holds never exceed those of the name, and no fence is issued twice or decreases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from direct_transport import DirectChannel
from lab.miniredis import MiniRedis
from lockfast.core.ports import Store, answer_of
from lockfast.model import (
    ALL_SLOTS,
    BARRIER,
    LATCH,
    Busy,
    Claim,
    Differs,
    Granted,
    Snapshot,
)
from lockfast.runtime.threads import ThreadSignal, run
from lockfast.stores.memory import Memory, open_memory
from lockfast.stores.redis import scripts
from lockfast.stores.redis.commands import channel_of, claim_arguments, claimed, deliver, keys_of
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.redis.task_connection import Batch
from lockfast.stores.sqlite.endpoint import SqliteEndpoint
from lockfast.stores.sqlite.file import File
from lockfast.stores.sqlite.inboxes import Inboxes
from lockfast.stores.sqlite.store import SqliteStore

BUDGET = 30.0
SIZES = {"lock": 1, "semaphore": 3, "read-write": ALL_SLOTS}
SHOWN = [""] * 10  # names have no fences
RENDEZVOUS = {"latch": LATCH + 2, "barrier": BARRIER + 2}
Wakeup = tuple[str, Granted | None]
Ask = Callable[[Store, "Side"], Coroutine[Any, Any, Any]]

names = st.sampled_from(sorted(SIZES))
all_names = st.sampled_from(sorted(SIZES | RENDEZVOUS))
numbers = st.integers(0, 4)
picks = st.integers(0, 30)
clients = st.integers(0, 1)
leases = st.sampled_from([0.5, 2.0, 7.0, 30.0])


class Side:
    """One of the stores: its answers, with fences replaced by their order."""

    def __init__(self, *stores: Store, per_name: bool = False) -> None:
        self.stores = stores
        self.per_name = per_name  # each name numbers its own fences
        self.woken: list[Wakeup] = []
        # In the order in which they were first seen; the name is '' if all names share them.
        self.fences: list[tuple[str, int]] = []
        self.seen = 0  # the greatest fence so far; every later one is greater

    def watch(self, claim: Claim) -> None:
        for store in self.stores:
            store.watch(claim, lambda grant: self.woken.append((claim.id, grant)), 0.0)

    def ask(self, client: int, ask: Ask, names: Sequence[str]) -> tuple[Any, list[Wakeup]]:
        before, self.latest = self.seen, self.seen
        answer = run(answer_of(ask(self.stores[client % len(self.stores)], self)))
        for store in self.stores:
            run(answer_of(store.listen(0.0)))
            while isinstance(store, SqliteStore) and store.inboxes.thread_inbox().receive():
                pass  # its threads read their own wake-ups
        known = len(self.fences)
        answer = self.normalized(answer, names)
        # Wake-ups of one step for two addresses may arrive in any order.
        wakeups = [
            (one, self.normalized(grant, [one.partition("#")[0]]))
            for one, grant in sorted(self.woken, key=lambda it: it[0])
        ]
        self.woken.clear()
        assert all(fence > before for _, fence in self.fences[known:])
        self.seen = max(self.latest, *(fence for _, fence in self.fences), 0)
        return answer, wakeups

    def normalized(self, answer: Any, names: Sequence[str]) -> Any:
        """Replace the fences in the answer about these names: one answer, or one for each name."""
        match answer:
            case Granted(fence, lease):
                return Granted(self.order_of(names[0], fence), lease)
            case Busy(retry_after, fence):
                assert fence >= self.seen or self.per_name
                self.latest = max(self.latest, fence)
                return Busy(retry_after, 0)
            case Snapshot():
                holders = [
                    replace(one, fence=self.order_of(names[0], one.fence)) for one in answer.holders
                ]
                return replace(answer, holders=tuple(holders))
            case list():
                pairs = zip(answer, names, strict=False)
                return [self.normalized(one, [name]) for one, name in pairs]
        return answer

    def order_of(self, name: str, fence: int) -> int:
        known = (name if self.per_name else "", fence)
        if known not in self.fences:
            self.fences.append(known)
        return self.fences.index(known)

    def fence(self, order: int) -> int:
        return self.fences[order][1]


def rounded(answer: Any) -> Any:
    """Round times: some µs pass between the steps of Redis, and its dates are of another clock."""
    match answer:
        case Granted(fence, lease):
            return Granted(fence, round(lease * 8) / 8)
        case Busy(retry_after, fence):
            return Busy(round(retry_after * 8) / 8, fence)
        case Snapshot():
            holders = [
                replace(one, since=0.0, remaining=round(one.remaining * 8) / 8)
                for one in answer.holders
            ]
            waiters = [replace(one, since=0.0) for one in answer.waiters]
            return replace(answer, holders=tuple(holders), waiters=tuple(waiters), now=0.0)
        case list():
            return [rounded(one) for one in answer]
    return answer


class ValidHold(NamedTuple):
    """A hold as the answers to one claim describe it, and until when it is valid."""

    name: str
    slots: int
    take: int
    fence: int
    ends: float


class StoreComparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.wall, self.ticks = 1e9, 2e9, 0
        self.folder = tempfile.TemporaryDirectory(prefix="lockfast-comparison-")
        memory = Memory(lambda: self.now, lambda: self.wall)
        self.memory = Side(memory.blocking(ThreadSignal))
        self.sqlite = Side(self.sqlite_client(), self.sqlite_client())
        self.redis = Side(*self.redis_clients(), per_name=True)
        self.claims: dict[str, Claim] = {}  # by id, as long as the store may have it
        self.sizes = dict(SIZES)
        self.over: dict[str, int] = {}
        self.resized: dict[str, int] = {}  # claims whose rows have been resized
        self.valid: dict[str, ValidHold] = {}
        self.issued: set[int] = set()

    def sqlite_client(self) -> SqliteStore:
        inboxes = Inboxes(Path(self.folder.name, "locks.db.d"))
        path = Path(self.folder.name, "locks.db")
        file = File(path, inboxes.peers, lambda: self.now, lambda: self.wall, self.tick)
        return SqliteStore(file, inboxes, suspends=False)

    def redis_clients(self) -> list[RedisStore]:
        transports = {
            channel_of(wake_address): DirectChannel(wake_address)
            for wake_address in ("left", "right")
        }

        def published(channel: str, message: bytes) -> int:
            deliver([b"message", channel, message], transports[channel].wakeups)
            return 1

        def tick() -> int:
            """Let some µs pass between two steps, so that names do not share fences."""
            self.ticks += 20
            return round(self.now * 1e6) + self.ticks

        server = MiniRedis(tick, published, lambda channel: 1)
        for script in scripts.ALL:
            server.script_load(script.source)
        for transport in transports.values():
            transport.server = server
        return [RedisStore(transport, "Redis") for transport in transports.values()]

    def tick(self) -> float:
        """The clock of fences, which advances by some µs between two transactions."""
        self.ticks += 1
        return self.now + self.ticks * 5e-6

    def teardown(self) -> None:
        for store in self.sqlite.stores:
            store.close()
        self.folder.cleanup()

    # ---- comparison of the answers -----------------------------------------------------------

    def all(self, client: int, ask: Ask, *names: str, redis: bool = True) -> Any:
        ours, our_wakeups = self.memory.ask(client, ask, names)
        theirs, their_wakeups = self.sqlite.ask(client, ask, names)
        assert theirs == ours
        assert their_wakeups == our_wakeups
        if redis:
            theirs, their_wakeups = self.redis.ask(client, ask, names)
            assert rounded(theirs) == rounded(ours)
            assert their_wakeups == our_wakeups
        for claim_id, grant in our_wakeups:
            if grant is not None:
                self.granted(claim_id, grant)
        return ours

    def granted(self, claim_id: str, grant: Granted) -> None:
        claim = self.claims[claim_id]
        known = self.valid.get(claim_id)
        if known is None or known.ends <= self.now:
            assert grant.fence not in self.issued
            self.issued.add(grant.fence)
        else:
            assert grant.fence == known.fence
        ends = self.now + grant.lease
        slots = self.resized.get(claim_id, claim.slots)
        self.valid[claim_id] = ValidHold(claim.name, slots, claim.take, grant.fence, ends)

    def alive(self) -> list[ValidHold]:
        return [one for one in self.valid.values() if self.now < one.ends]

    def picked(self, pick: int) -> Claim:
        """One of the known claims or, rarely, one that was never sent."""
        known = [*self.claims.values(), Claim("lock", "lock#99", "host 99 t", 2.0)]
        return known[pick % len(known)]

    # ---- the steps ---------------------------------------------------------------------------

    @rule(
        client=clients,
        name=names,
        number=numbers,
        lease=leases,
        take=st.sampled_from([1, 1, 2, 3, 4, ALL_SLOTS]),
        fair=st.sampled_from([True, True, False]),
        wait=st.sampled_from([True, True, True, False]),
        other_size=st.sampled_from([False] * 9 + [True]),
    )
    def claim(
        self,
        client: int,
        name: str,
        number: int,
        lease: float,
        take: int,
        fair: bool,
        wait: bool,
        other_size: bool,
    ) -> None:
        """Repeat a claim id on the same terms until the claim has ended, as the core does."""
        slots = 2 if other_size else self.sizes[name]
        self.ask_for(client, name, number, lease, slots, take, fair, wait)

    @rule(client=clients, number=numbers, lease=st.sampled_from([0.5, 2.0]))
    def claim_a_plain_lock(self, client: int, number: int, lease: float) -> None:
        """Claim a plain lock, so that the common case is frequent."""
        self.ask_for(client, "lock", number, lease, 1, 1, True, True)

    @rule(
        client=clients,
        name=st.sampled_from(sorted(RENDEZVOUS)),
        number=numbers,
        lease=leases,
        take=st.sampled_from([0, 1]),
        wait=st.sampled_from([True, True, False]),
        other_size=st.sampled_from([0] * 9 + [1]),
    )
    def claim_a_latch_or_barrier(
        self,
        client: int,
        name: str,
        number: int,
        lease: float,
        take: int,
        wait: bool,
        other_size: int,
    ) -> None:
        """Count a latch down, wait at a latch (taking no slot), or arrive at a barrier."""
        take = 1 if name == "barrier" else take
        slots = RENDEZVOUS[name] + other_size
        self.ask_for(client, name, number, lease, slots, take, name == "latch", wait)

    def ask_for(
        self,
        client: int,
        name: str,
        number: int,
        lease: float,
        slots: int,
        take: int,
        fair: bool,
        wait: bool,
    ) -> None:
        claim = self.made(name, number, lease, slots, take, fair, wait)
        # The Redis store refuses more slots than there are without asking the server.
        (answer,) = self.all(
            client,
            lambda store, side: store.claim([claim], BUDGET),
            claim.name,
            redis=claim.take <= claim.slots,
        )
        self.answered(claim, answer)

    def made(
        self,
        name: str,
        number: int,
        lease: float,
        slots: int,
        take: int,
        fair: bool,
        wait: bool,
    ) -> Claim:
        claim_id = f"{name}#{number}"
        if claim_id not in self.claims:
            claim = Claim(name, claim_id, f"host {number} t", lease, slots, take, fair, wait)
            self.claims[claim_id] = claim
            self.resized.pop(claim_id, None)
            self.memory.watch(claim)
            self.sqlite.watch(claim)
            self.redis.watch(claim)
        return self.claims[claim_id]

    def answered(self, claim: Claim, answer: Granted | Busy | Differs) -> None:
        if isinstance(answer, Granted):
            known = self.valid.get(claim.id)
            repeated = known is not None and self.now < known.ends
            self.granted(claim.id, answer)
            if claim.take and "latch" in claim.name and not repeated:
                self.latch_was_extended(claim, answer)
        elif isinstance(answer, Differs) or not claim.wait:
            del self.claims[claim.id]

    def latch_was_extended(self, claim: Claim, answer: Granted) -> None:
        """Extend all counts of a latch: they last as long as the newest one."""
        for claim_id, one in self.valid.items():
            if one.name == claim.name and one.take and self.now < one.ends:
                self.valid[claim_id] = one._replace(ends=self.now + answer.lease)

    @rule(
        client=clients,
        chosen=st.lists(st.tuples(names, numbers), min_size=1, max_size=4, unique=True),
        lease=leases,
        wait=st.booleans(),
    )
    def claim_batch(
        self, client: int, chosen: list[tuple[str, int]], lease: float, wait: bool
    ) -> None:
        claims = [
            self.made(name, number, lease, self.sizes[name], 1, True, wait)
            for name, number in chosen
        ]
        if any(claim.take > claim.slots for claim in claims):
            return  # the core never sends these in a batch
        answers = self.all(
            client,
            lambda store, side: store.claim(claims, BUDGET),
            *[claim.name for claim in claims],
        )
        assert all(isinstance(answer, Granted) for answer in answers[:-1])
        for claim, answer in zip(claims, answers, strict=False):
            self.answered(claim, answer)

    @rule(
        client=clients,
        chosen=st.lists(st.tuples(all_names, numbers), min_size=2, max_size=6, unique=True),
        lease=leases,
        wait=st.booleans(),
    )
    def claim_concurrently(
        self, client: int, chosen: list[tuple[str, int]], lease: float, wait: bool
    ) -> None:
        """Claim independently; on Redis in one call, as tasks that ask at the same time do."""
        sizes = self.sizes | RENDEZVOUS
        claims = [
            self.made(name, number, lease, sizes[name], 1, name != "barrier", wait)
            for name, number in chosen
        ]
        claims = [claim for claim in claims if claim.take <= claim.slots]
        names = [claim.name for claim in claims]
        for claim, answer in zip(claims, self.all(client, _each(claims), *names), strict=True):
            self.answered(claim, answer)

    @rule(client=clients, which=st.sets(picks, min_size=1, max_size=5))
    def release_batch(self, client: int, which: set[int]) -> None:
        claims = list({claim.id: claim for claim in map(self.picked, sorted(which))}.values())
        released = self.all(
            client,
            lambda store, side: store.release(claims, BUDGET),
            *[claim.name for claim in claims],
        )
        for claim, done in zip(claims, released, strict=True):
            if done:
                del self.valid[claim.id]
                del self.claims[claim.id]

    @rule(client=clients, pick=picks, take=st.sampled_from([1, 1, 2]))
    def shrink(self, client: int, pick: int, take: int) -> None:
        claim = self.picked(pick)._replace(take=take)
        if claim.slots >= LATCH:
            return
        answer = self.all(client, lambda store, side: store.shrink(claim, BUDGET), claim.name)
        if isinstance(answer, Granted):
            known = self.valid[claim.id]
            assert answer.fence == known.fence
            take = min(known.take, take)
            self.valid[claim.id] = known._replace(take=take)
            self.claims[claim.id] = claim._replace(take=take)

    @rule(
        client=clients,
        name=all_names,
        expected=st.sampled_from([0, 0, 0, 1]),
        slots=st.integers(1, 5),
    )
    def resize(self, client: int, name: str, expected: int, slots: int) -> None:
        expected += (self.sizes | RENDEZVOUS)[name] if name == "semaphore" or expected else 1
        had = self.all(client, lambda store, side: store.resize(name, expected, slots, BUDGET))
        if had == expected:
            for claim_id, one in self.valid.items():
                if one.name == name:
                    self.valid[claim_id] = one._replace(slots=slots)
            for claim in self.claims.values():
                if claim.name == name:
                    self.resized[claim.id] = slots
        if name == "semaphore" and had == expected:
            self.sizes[name] = slots
        self.over[name] = sum(one.take for one in self.alive() if one.name == name)

    @rule(client=clients, which=st.sets(picks, min_size=1, max_size=5))
    def renew(self, client: int, which: set[int]) -> None:
        """Renew holds before waiters, as the keeper does."""
        picked = {claim.id: claim for claim in map(self.picked, sorted(which))}
        alive = {claim_id: one for claim_id, one in self.valid.items() if self.now < one.ends}
        claims = sorted(picked.values(), key=lambda claim: claim.id not in alive)
        known_holds = [alive.get(claim.id) for claim in claims]

        def renew(store: Store, side: Side) -> Coroutine[Any, Any, Any]:
            fences = [side.fence(known.fence) if known else 0 for known in known_holds]
            return store.renew(claims, fences, BUDGET)

        answers = self.all(client, renew, *[claim.name for claim in claims])
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, Granted):
                self.granted(claim.id, answer)

    @rule(client=clients, rounds=st.integers(1, 3))
    def let_the_keepers_renew(self, client: int, rounds: int) -> None:
        """Renew for a while, so that holds and waiters outlive their first leases."""
        for _ in range(rounds):
            self.pass_time(1.5)
            self.renew(client, set(range(len(self.claims))) or {0})

    @rule(client=clients, pick=picks)
    def release(self, client: int, pick: int) -> None:
        claim = self.picked(pick)
        known = self.valid.get(claim.id)
        (released,) = self.all(
            client, lambda store, side: store.release([claim], BUDGET), claim.name
        )
        assert released == (known is not None and known.ends > self.now)
        if released:
            del self.valid[claim.id]
            del self.claims[claim.id]

    @rule(client=clients, pick=picks)
    def leave(self, client: int, pick: int) -> None:
        claim = self.picked(pick)
        self.all(client, lambda store, side: store.leave(claim, BUDGET), claim.name)
        self.valid.pop(claim.id, None)
        self.claims.pop(claim.id, None)

    @rule(client=clients, pick=picks, attached=st.booleans())
    def transfer(self, client: int, pick: int, attached: bool) -> None:
        claim = self.picked(pick)
        answer = self.all(
            client, lambda store, side: store.transfer(claim, attached, BUDGET), claim.name
        )
        if isinstance(answer, Granted):
            self.granted(claim.id, answer)

    @rule(client=clients, name=all_names, pick=st.integers(0, 3), off=st.sampled_from([0, 0, 1]))
    def break_hold(self, client: int, name: str, pick: int, off: int) -> None:
        holders = self.look(client, name).holders
        if not holders:
            return
        order = holders[pick % len(holders)].fence
        victims = [one for one, hold in self.valid.items() if hold.fence == order]
        next_is_held = any(
            {side.fence(order) + off} & {side.fence(one.fence) for one in holders}
            for side in (self.memory, self.sqlite, self.redis)
            if off
        )
        if next_is_held:
            return  # then the fence plus one is another holder's, in one of the stores
        broken = self.all(
            client, lambda store, side: store.break_hold(name, side.fence(order) + off, BUDGET)
        )
        assert broken == (off == 0)
        for claim_id in victims if broken else []:
            del self.valid[claim_id]

    @rule(client=clients, prefix=st.sampled_from(["", "l", "read-", "zz"]))
    def list_names(self, client: int, prefix: str) -> None:
        self.all(client, lambda store, side: _as_list(store.names(prefix, BUDGET)), *SHOWN)

    @rule(seconds=st.sampled_from([0.0, 0.125, 0.5, 1.5, 3.0, 6.0, 30.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    @rule(seconds=st.sampled_from([-60.0, -0.5, 60.0]))
    def step_the_wall_clock(self, seconds: float) -> None:
        self.wall += seconds

    def look(self, client: int, name: str) -> Snapshot:
        seen = self.all(client, lambda store, side: store.inspect(name, BUDGET), name)
        assert isinstance(seen, Snapshot)
        return seen

    # ---- promises ----------------------------------------------------------------------------

    @invariant()
    def the_slots_taken_by_valid_holds_never_exceed_the_size(self) -> None:
        for name in SIZES:
            live = [one for one in self.alive() if one.name == name]
            assert len({one.slots for one in live}) <= 1
            most = self.over.get(name, 0)  # held when the semaphore shrank
            assert all(sum(one.take for one in live) <= max(one.slots, most) for one in live)

    @invariant()
    def a_latch_counts_no_more_than_it_has(self) -> None:
        # The name may be in use with another size.
        live = [one for one in self.alive() if one.name == "latch" and one.slots >= LATCH]
        assert all(sum(one.take for one in live) <= one.slots - LATCH for one in live)

    @rule(client=clients, name=all_names)
    def the_stores_have_exactly_the_valid_holds(self, client: int, name: str) -> None:
        """Compare holders, but not after every step: inspecting removes dead rows, and the verbs
        must work without that."""
        known = {one.fence for one in self.alive() if one.name == name}
        assert {holder.fence for holder in self.look(client, name).holders} == known


def _each(claims: Sequence[Claim]) -> Ask:
    async def ask(store: Store, side: Side) -> Any:
        if not isinstance(store, RedisStore):
            return [(await answer_of(store.claim([claim], BUDGET)))[0] for claim in claims]
        batch = Batch(scripts.CLAIM)
        for claim in claims:
            batch.keys.append(keys_of(claim.name)[2])
            batch.arguments.append(claim_arguments(claim, store.wake_address_of(claim.name)))
        reply = store._channel.send(batch.command(), BUDGET)
        replies = [reply] if len(claims) == 1 else reply
        return [claimed(one, claim.lease) for one, claim in zip(replies, claims, strict=True)]

    return ask


async def _as_list(names: Any) -> list[str]:
    return list(await answer_of(names))


TestStoreComparison = StoreComparison.TestCase
TestStoreComparison.pytestmark = [pytest.mark.timeout(600)]  # shrinking a failure takes long
TestStoreComparison.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_holders_are_shown_in_the_order_they_were_granted(store: str, tmp_path: Path) -> None:
    opened = (
        SqliteEndpoint(tmp_path / "locks.db") if store == "sqlite" else open_memory("memory://")
    )
    store = opened.blocking(ThreadSignal)
    for number in (3, 1, 2):
        claim = Claim("n", f"id-{number}", f"host {number} t", 30.0, 5)
        run(answer_of(store.claim([claim], BUDGET)))
    shown = run(answer_of(store.inspect("n", BUDGET))).holders
    store.close()
    assert [holder.who.pid for holder in shown] == [3, 1, 2]

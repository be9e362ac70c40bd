"""What a client can do: acquire, re-enter, renew, release, hand over, look. Written once.

Both faces call these coroutines; the blocking one runs them to the end, asyncio awaits them, the
simulator schedules them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import NoReturn

from holdfast.core.acquire import ATTEMPTS, BELIEF, RETRY_PAUSE, leave, obtain
from holdfast.core.explain import taken_message
from holdfast.core.keeper import MAX_BUDGET, Keeper, budget_for
from holdfast.core.ledger import DETACHED, HELD, LOST, RELEASED, Held, Ledger, bare, shown
from holdfast.core.ports import Backend, KeeperRuntime, Runtime
from holdfast.core.terms import FOREVER, Terms
from holdfast.errors import AcquireTimeout, BackendError, NotHeld
from holdfast.model import Busy, Claim, Differs, Granted, Snapshot

log = logging.getLogger("holdfast")
EXIT_PATIENCE = 0.2
_new = tuple.__new__  # of a named tuple, without the wrapper that takes keywords: it is hot


class Core:
    """One client's logic. ``keeper_backend`` is the blocking twin that the keeper speaks through;
    ``new_secret`` makes 128 bits that nobody can guess, from which claim ids are made."""

    def __init__(
        self,
        runtime: Runtime,
        backend: Backend,
        new_secret: Callable[[], str],
        keeper_runtime: KeeperRuntime,
        keeper_backend: Backend,
    ) -> None:
        self.runtime = runtime
        self.backend = backend
        self.ledger = Ledger(runtime)
        self._keep(keeper_runtime, keeper_backend)
        self._new_secret = new_secret
        self._secret = new_secret()
        self._count = itertools.count(1)

    def _keep(self, runtime: KeeperRuntime, backend: Backend) -> None:
        self.keeper = Keeper(runtime, backend, self.ledger)
        # While it runs, its thread keeps us alive, and what we hold: a client that nobody refers to
        # any more still gives back at exit.
        self.keeper.client = self

    # ---- acquire ---------------------------------------------------------------------------

    async def refuse(
        self, terms: Terms, timeout: float | None, outcome: Snapshot | None
    ) -> NoReturn:
        """Say that the time is over: `AcquireTimeout`, which names the holder."""
        if outcome is None:
            try:
                limit = budget_for(terms.lease) / 2
                outcome = await self.backend.inspect(terms.name, limit, terms.layout)
            except BackendError:
                outcome = None  # the time is over either way; who was in the way stays unsaid
        raise AcquireTimeout(
            taken_message(bare(terms.name), timeout or 0.0, outcome),
            name=bare(terms.name),
            timeout=timeout or 0.0,
            snapshot=outcome,
        )

    async def attempt(self, terms: Terms, timeout: float | None) -> Held | Snapshot | None:
        """A hold, or whoever was in the way when the time was over (None: nobody asked)."""
        ledger, runtime = self.ledger, self.runtime
        if ledger.closed:
            self._refuse_if_closed()
        name, lease, renews, _, fair, slots, take, owner, label, layout = terms
        if owner is None:
            owner = runtime.owner()
        mine = ledger.by_owner.get((name, owner))
        if mine is not None:
            return self._reenter(mine)
        began = runtime.now()
        claim_id = f"{self._secret}-{next(self._count)}"
        said = (name, claim_id, runtime.who(label), lease, slots, take, fair, timeout != 0, layout)
        claim: Claim = _new(Claim, said)
        ledger.asking.add(claim_id)
        try:
            answer: Granted | Busy | Differs | None
            try:
                answer = await self.backend.claim(claim, budget_for(lease) / ATTEMPTS)
            except BackendError as error:
                if not error.transient:
                    raise
                answer = None  # it may have been executed: ask again, with the same id
            sent, now, by_bell = began, runtime.now(), False
            if type(answer) is Granted and now < sent + answer.lease * BELIEF:
                grant = answer  # one round trip, and nothing else
            else:
                outcome = await obtain(
                    runtime, self.backend, ledger, self.keeper, claim, began, timeout, now, answer
                )
                if outcome is None or isinstance(outcome, Snapshot):
                    return outcome
                sent, now, grant, by_bell = outcome
            held = Held(claim, owner, grant.fence, now, renews, terms.ends_by(now))
            if by_bell:
                held.believe_bell(sent, now, grant.lease)
            else:
                held.believe(sent, grant.lease)
            with ledger.mutex:
                ledger.enter(held, now - began)
            if ledger.closed:
                self._refuse_if_closed()
            self.keeper.mind(held.due)
            return held
        except GeneratorExit:
            raise
        except BaseException:
            # Cancelled, interrupted, refused: what the store has of this claim, nobody wants.
            stray = ledger.kept.get(claim_id)
            if stray is not None:
                with ledger.mutex:
                    ledger.end(stray, RELEASED, runtime.now())
            limit = budget_for(lease) / 2
            await runtime.shielded(leave(self.backend, self.keeper, claim, limit), limit)
            raise
        finally:
            ledger.asking.discard(claim_id)

    def _reenter(self, mine: Held) -> Held:
        self.settle(mine)
        with self.ledger.mutex:
            if mine.state is HELD:
                mine.count += 1
                self.ledger.reentered += 1
                return mine
        raise mine.loss()

    # ---- belief ----------------------------------------------------------------------------

    def is_held(self, held: Held) -> bool:
        """False at the latest when the lease can be over, with no help from keeper or store."""
        return held.state is HELD and self.runtime.now() < held.deadline

    def settle(self, held: Held) -> None:
        """What our own clock proves lost is lost now, also if the keeper did not look yet."""
        if held.state is HELD and self.runtime.now() >= held.deadline:
            self.ledger.lose(held, held.why_over())

    def check(self, held: Held) -> None:
        """Raise unless we may still believe in the hold. No I/O."""
        self.settle(held)
        if held.state is LOST:
            raise held.loss()
        if held.state is not HELD:
            raise NotHeld(f"the hold on {shown(held.claim.name)} was {held.state.value} already")

    async def wait_lost(self, held: Held, timeout: float | None) -> bool:
        """Wait for its end; True if that is a loss. Needs no keeper: the deadline wakes us too."""
        until = FOREVER if timeout is None else self.runtime.now() + timeout
        signal = self.runtime.signal()
        self.ledger.on_end(held, signal.set)
        try:
            while True:
                self.settle(held)
                now = self.runtime.now()
                if held.state is not HELD or now >= until:
                    return held.state is LOST
                await signal.wait(min(until, held.deadline) - now)
        finally:
            self.ledger.off_end(held, signal.set)

    # ---- release, renew, hand over ---------------------------------------------------------

    def find(self, terms: Terms) -> Held:
        """The current owner's hold, as `threading.RLock` would find it."""
        owner = terms.owner if terms.owner is not None else self.runtime.owner()
        held = self.ledger.by_owner.get((terms.name, owner))
        if held is None:
            raise NotHeld(
                f"{shown(terms.name)} is not held by {self._describe(owner)}: it was released "
                "already, or another thread, task or owner= acquired it"
            )
        return held

    async def release(self, held: Held) -> None:
        """One step out; the last one gives it back. Lost is `HoldLost`, too many is `NotHeld`."""
        now = self.runtime.now()
        if held.state is HELD and now >= held.deadline:
            self.settle(held)
        if held.state is LOST and held.count > 0:
            await self._unwind_lost(held)
        if held.unknown:
            return await self._give_back(held)  # a retry, after an error that said "unknown"
        with self.ledger.mutex:
            if held.state is not HELD:
                raise NotHeld(
                    f"the hold on {shown(held.claim.name)} was {held.state.value} already: "
                    "one release too many"
                )
            held.count -= 1
            if held.count > 0:
                return
            self.ledger.end(held, RELEASED, now)
        if held.callbacks:
            self.ledger.tell(held)
        await self._give_back(held)

    async def _unwind_lost(self, held: Held) -> NoReturn:
        """One step out of what is lost. It may be lost to our clock alone: then the store is told,
        by our own claim id, so that the next need not wait for the rest of the lease."""
        with self.ledger.mutex:
            held.count -= 1
            last = held.count == 0
            if last:
                self.ledger.forget(held)
        if last and not held.foreign:
            limit = budget_for(held.claim.lease) / ATTEMPTS
            await self._release_again(self.backend, held.claim, limit)
        raise held.loss()

    async def _give_back(self, held: Held) -> None:
        """Tell the store, and ask again if it did not answer: never guess."""
        budget = budget_for(held.claim.lease)
        until: float | None = None
        while True:
            try:
                if until is not None:
                    await self.runtime.sleep(RETRY_PAUSE)
                known = await self.backend.release(held.claim, budget / ATTEMPTS)
                break
            except GeneratorExit:
                raise
            except BackendError as error:
                held.unknown = True
                now = self.runtime.now()
                until = until or now + budget * (1 - 1 / ATTEMPTS)  # one of them is spent
                if not error.transient or now + RETRY_PAUSE >= until:
                    raise self._release_unknown(held, error) from error
            except BaseException:
                # Cancelled in the middle: it may or may not have reached the store.
                await self.runtime.shielded(
                    self._release_again(self.backend, held.claim, budget), budget
                )
                raise
        # "Not ours any more" after an answer that got lost: our own first request did it, unless
        # the lease could have ended meanwhile.
        unknown, held.unknown = held.unknown, False
        if not known and (not unknown or self.runtime.now() >= held.deadline):
            held.cause = "the store no longer knew it when it was released"
            raise held.loss()

    async def _release_again(self, backend: Backend, claim: Claim, limit: float) -> None:
        """Out of it, held or waiting, as well as we can: the lease does the rest."""
        try:
            await backend.leave(claim, max(limit, 0.01))
        except BackendError as error:
            log.warning("holdfast: release of %s unknown: %s", shown(claim.name), error)

    def _release_unknown(self, held: Held, error: BackendError) -> BackendError:
        rest = max(held.deadline - self.runtime.now(), 0.0)
        return BackendError(
            f"whether {shown(held.claim.name)} was released is unknown, the store did not answer: "
            f"{error}. It is renewed no more and frees itself in at most {rest:.1f} s",
            transient=error.transient,
        )

    async def renew(self, held: Held, lease: float | None) -> None:
        """Extend it now, by hand; `HoldLost` if it cannot be."""
        self.check(held)
        claim = held.claim
        if lease is not None and lease != claim.lease:
            claim = claim._replace(lease=lease)
        sent = self.runtime.now()
        (answer,) = await self.backend.renew([claim], [held.fence], budget_for(claim.lease))
        if isinstance(answer, Granted) and answer.fence == held.fence:
            with self.ledger.mutex:
                if held.state is HELD and self.runtime.now() < held.deadline:
                    held.claim = claim
                    if not held.renews:
                        held.ends_by = self.runtime.now() + claim.lease
                    held.believe(sent, claim.lease)
            self.keeper.mind(held.due)
        else:
            self.ledger.lose(held, "the store no longer knows it")
        self.check(held)

    async def detach(self, held: Held) -> str:
        """Let go of it without releasing; the text lets another process take it over."""
        self.check(held)
        if held.count > 1:
            raise NotHeld(
                f"{shown(held.claim.name)} was entered {held.count} times: detach it where it was "
                "acquired, not inside"
            )
        answer = await self.backend.transfer(held.claim, False, budget_for(held.claim.lease))
        if not isinstance(answer, Granted):
            self.ledger.lose(held, "the store no longer knows it")
        self.check(held)
        with self.ledger.mutex:
            self.ledger.end(held, DETACHED, self.runtime.now())
        self.ledger.tell(held)
        return f"hf1:{held.claim.id}:{held.fence}:{held.claim.lease!r}"

    async def attach(self, terms: Terms, claim_id: str, fence: int) -> Held:
        """Take over what another process detached, under its fence."""
        self._refuse_if_closed()
        owner = terms.owner if terms.owner is not None else self.runtime.owner()
        who = self.runtime.who(terms.label)
        claim = Claim(terms.name, claim_id, who, terms.lease, terms.slots, terms.take, terms.fair)
        sent = self.runtime.now()
        answer = await self.backend.transfer(claim, True, budget_for(terms.lease))
        if not isinstance(answer, Granted) or answer.fence != fence:
            raise NotHeld(
                f"{shown(terms.name)} with fence {fence} cannot be taken over: its lease ran out "
                "before, or it was never detached under this name"
            )
        now = self.runtime.now()
        held = Held(claim, owner, fence, now, terms.renew, terms.ends_by(now))
        held.believe(sent, answer.lease)
        with self.ledger.mutex:
            self.ledger.enter(held, 0.0)
        self.keeper.mind(held.due)
        return held

    # ---- look ------------------------------------------------------------------------------

    async def inspect(self, name: str, layout: str = "") -> Snapshot:
        return await self.backend.inspect(name, MAX_BUDGET, layout)

    async def names(self, prefix: str) -> Iterable[str]:
        return await self.backend.names(prefix, MAX_BUDGET)

    async def break_hold(self, name: str, fence: int) -> bool:
        broken = await self.backend.break_hold(name, fence, MAX_BUDGET)
        log.warning(
            "holdfast: break of %s with fence %d: %s",
            shown(name),
            fence,
            "done" if broken else "refused, it is not held under this fence",
        )
        return broken

    # ---- the end ---------------------------------------------------------------------------

    async def close(self, backend: Backend, limit: float, *, exiting: bool = False) -> None:
        """Give back everything through ``backend``, within about ``limit`` seconds, and stop. Those
        who wait are told, and leave; we wait for that, unless the program is ``exiting``."""
        self.ledger.closed = True
        self.keeper.stop()
        until = self.runtime.now() + limit
        ending = []
        for held in list(self.ledger.kept.values()):
            with self.ledger.mutex:
                if held.state is not HELD:
                    continue
                self.ledger.end(held, RELEASED, self.runtime.now())
            self.ledger.tell(held)
            ending.append(held.claim)
        for waiting in list(self.ledger.waiting.values()):
            waiting.ring(None)  # wake up, and find that we are closed
            ending.append(waiting.claim)
        await self._end_all(backend, ending, until)
        # Who is in the middle of asking could still be granted something: threads go on until they
        # notice that we are closed. Tasks do not, once the program is exiting.
        if exiting:
            threads = self.keeper.runtime is self.runtime
            until = self.runtime.now() + (EXIT_PATIENCE if threads else 0.0)
        while self.ledger.asking and self.runtime.now() < until:
            await self.runtime.sleep(0.002)

    async def _end_all(self, backend: Backend, claims: list[Claim], until: float) -> None:
        """As many as there is time for: a store that is away must not keep a program from ending.
        The leases do the rest."""
        for done, claim in enumerate(claims):
            rest = until - self.runtime.now()
            try:
                if rest <= 0:
                    raise BackendError("no time is left")
                await backend.leave(claim, rest)
            except BackendError as error:
                if rest <= 0 or self.runtime.now() >= until:
                    left = len(claims) - done
                    log.warning("holdfast: %d left to their leases at the end: %s", left, error)
                    return

    def before_fork(self) -> None:
        """The store comes to rest by itself."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        """We are a child: what the parent holds is the parent's, and no keeper runs here."""
        inherited = list(self.ledger.by_owner.values())
        self.ledger = Ledger(self.runtime)
        self._keep(self.keeper.runtime, self.keeper.backend)
        self._secret = self._new_secret()
        self._count = itertools.count(1)
        for held in inherited:
            held.state = LOST
            held.callbacks = None
            held.foreign = True
            held.cause = "it belongs to the parent process; a fork holds nothing"

    @property
    def closed(self) -> bool:
        return self.ledger.closed

    def _refuse_if_closed(self) -> None:
        if self.ledger.closed:
            raise NotHeld("this client was closed: connect again")

    def _describe(self, owner: object) -> str:
        return f"owner {owner!r}" if isinstance(owner, str | int) else "the current thread or task"

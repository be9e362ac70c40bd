"""A client's operations: acquire, re-enter, renew, release, hand over, inspect, close.

Both APIs call them, and so does the simulator: the sync API runs the coroutines to the end, the
async API awaits them, the simulator schedules them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from lockfast.core.amend import Amending
from lockfast.core.keeper import MAX_BUDGET, Keeper
from lockfast.core.ledger import HELD, LOST, RELEASED, Ledger, shown
from lockfast.core.listeners import Listeners
from lockfast.core.ports import KeeperRuntime, Runtime, Store, answer_of
from lockfast.errors import BackendError
from lockfast.model import Claim, Snapshot

T = TypeVar("T")
log = logging.getLogger("lockfast")
EXIT_PATIENCE = 0.2


class Core(Amending):
    """One client's logic. ``keeper_store`` is the blocking store that the keeper uses;
    ``new_secret`` makes 128 bits that nobody can guess, the prefix of claim ids."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        new_secret: Callable[[], str],
        keeper_runtime: KeeperRuntime,
        keeper_store: Store,
    ) -> None:
        self.runtime = runtime
        self.store = store
        self.ledger = Ledger(runtime)
        self._keep(keeper_runtime, keeper_store)
        self._new_secret = new_secret
        self._secret = new_secret()
        self._count = itertools.count(1)

    def _keep(self, runtime: KeeperRuntime, store: Store) -> None:
        self.keeper = Keeper(runtime, store, self.ledger)
        # While the keeper runs, its thread keeps this client and its holds alive: a client that
        # nobody refers to any more still releases them at exit.
        self.keeper.client = self

    # ---- inspect ---------------------------------------------------------------------------

    def listen(self, listeners: Listeners) -> None:
        """Emit events to these listeners from now on."""
        self.ledger.listeners = listeners

    async def inspect(self, name: str, layout: str = "") -> Snapshot:
        return await self.look(lambda limit: self.store.inspect(name, limit, layout), MAX_BUDGET)

    async def names(self, prefix: str) -> Iterable[str]:
        return await self.look(lambda limit: self.store.names(prefix, limit), MAX_BUDGET)

    async def break_hold(self, name: str, fence: int) -> bool:
        broken = await answer_of(self.store.break_hold(name, fence, MAX_BUDGET))
        log.warning(
            "lockfast: break of %s with fence %d: %s",
            shown(name),
            fence,
            "done" if broken else "refused, it is not held under this fence",
        )
        return broken

    # ---- close, fork -----------------------------------------------------------------------

    async def close(self, store: Store, limit: float, *, exiting: bool = False) -> None:
        """Release everything through ``store``, within about ``limit`` seconds, and stop. Waiters
        are woken and withdraw; this waits for them, unless the program is ``exiting``."""
        ledger, runtime = self.ledger, self.runtime
        ledger.closed = True
        self.keeper.stop()
        until = runtime.now() + limit
        ended = []
        for held in list(ledger.kept.values()):
            with ledger.mutex:
                if held.state is not HELD:
                    continue
                ledger.end(held, RELEASED, runtime.now())
            ledger.run_callbacks(held)
            ended.append(held)
        ending = [held.claim for held in ended]
        for waiting in list(ledger.waiting.values()):
            waiting.wake(None)  # the waiter finds that the client is closed
            ending.append(waiting.claim)
        await self._end_all(store, ending, until)
        for held in ended:
            ledger.emit_end(held)
        # An acquisition under way could still be granted: threads go on until they notice that the
        # client is closed. Tasks do not, once the program is exiting.
        if exiting:
            threads = self.keeper.runtime is runtime
            until = runtime.now() + (EXIT_PATIENCE if threads else 0.0)
        while ledger.asking and runtime.now() < until:
            await runtime.sleep(0.002)

    async def _end_all(self, store: Store, claims: list[Claim], until: float) -> None:
        """Withdraw as many claims as there is time for: an unreachable store must not keep a
        program from ending. The leases end the rest."""
        left, why = 0, "out of time"
        for done, claim in enumerate(claims):
            rest = until - self.runtime.now()
            if rest <= 0:
                left += len(claims) - done
                break
            try:
                await answer_of(store.leave(claim, rest))
            except BackendError as error:
                left, why = left + 1, str(error)
        if left:
            log.warning("lockfast: release of %d claims unknown, leases end them: %s", left, why)

    def before_fork(self) -> None:
        """Nothing to do: the store quiesces by itself."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do."""

    def after_fork_in_child(self) -> None:
        """Start empty in the child: the parent keeps its holds, and no keeper runs here."""
        inherited = list(self.ledger.by_owner.values())
        listeners = self.ledger.listeners
        self.ledger = Ledger(self.runtime)
        self.ledger.listeners = listeners
        self._keep(self.keeper.runtime, self.keeper.store)
        self._secret = self._new_secret()
        self._count = itertools.count(1)
        for held in inherited:
            held.state = LOST
            held.callbacks = None
            held.foreign = True
            held.cause = "it belongs to the parent process; a forked child holds nothing"

    @property
    def closed(self) -> bool:
        return self.ledger.closed

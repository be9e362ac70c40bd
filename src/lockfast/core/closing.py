"""Closing a client: release its holds and withdraw its waiters, in bounded time."""

from __future__ import annotations

import logging

from lockfast.core.keeper import Keeper
from lockfast.core.ledger import HELD, RELEASED, Ledger
from lockfast.core.ports import Backend, Runtime
from lockfast.errors import BackendError
from lockfast.model import Claim

log = logging.getLogger("lockfast")
EXIT_PATIENCE = 0.2


async def close(
    runtime: Runtime, ledger: Ledger, keeper: Keeper, backend: Backend, limit: float, exiting: bool
) -> None:
    """Close the client within about ``limit`` seconds. Its waiters are woken and withdraw their
    claims; this waits for them, unless the program is ``exiting``."""
    ledger.closed = True
    keeper.stop()
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
    await _end_all(runtime, backend, ending, until)
    for held in ended:
        ledger.emit_end(held)
    # An acquisition under way could still be granted: threads go on until they notice that the
    # client is closed. Tasks do not, once the program is exiting.
    if exiting:
        threads = keeper.runtime is runtime
        until = runtime.now() + (EXIT_PATIENCE if threads else 0.0)
    while ledger.asking and runtime.now() < until:
        await runtime.sleep(0.002)


async def _end_all(runtime: Runtime, backend: Backend, claims: list[Claim], until: float) -> None:
    """Withdraw as many claims as there is time for: an unreachable store must not keep a program
    from ending. The leases end the rest."""
    left, why = 0, "out of time"
    for done, claim in enumerate(claims):
        rest = until - runtime.now()
        if rest <= 0:
            left += len(claims) - done
            break
        try:
            await backend.leave(claim, rest)
        except BackendError as error:
            left, why = left + 1, str(error)
    if left:
        log.warning("lockfast: release of %d claims unknown, leases end them: %s", left, why)

"""The end of a client: give back what is held, leave what is waited for, in bounded time."""

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
    """Within about ``limit`` seconds. Those who wait are told, and leave; we wait for that, unless
    the program is ``exiting``."""
    ledger.closed = True
    keeper.stop()
    until = runtime.now() + limit
    ended = []
    for held in list(ledger.kept.values()):
        with ledger.mutex:
            if held.state is not HELD:
                continue
            ledger.end(held, RELEASED, runtime.now())
        ledger.call_back(held)
        ended.append(held)
    ending = [held.claim for held in ended]
    for waiting in list(ledger.waiting.values()):
        waiting.wake(None)  # wake up, and find that we are closed
        ending.append(waiting.claim)
    await _end_all(runtime, backend, ending, until)
    for held in ended:
        ledger.emit_end(held)
    # Who is in the middle of asking could still be granted something: threads go on until they
    # notice that we are closed. Tasks do not, once the program is exiting.
    if exiting:
        threads = keeper.runtime is runtime
        until = runtime.now() + (EXIT_PATIENCE if threads else 0.0)
    while ledger.asking and runtime.now() < until:
        await runtime.sleep(0.002)


async def _end_all(runtime: Runtime, backend: Backend, claims: list[Claim], until: float) -> None:
    """As many as there is time for: a store that is away must not keep a program from ending. Their
    leases do the rest."""
    left, why = 0, "no time was left"
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
        log.warning("lockfast: release of %d unknown, their leases end them: %s", left, why)

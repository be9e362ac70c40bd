"""How the bells of a client are heard: the keeper listens, for both colours, in its pauses.

A `PushEar` has a connection on which the server tells of grants as soon as they are committed; it
is opened when somebody waits first. A `PacedEar` has to look: one statement for all who wait here.
Either way a bell is a hint: one that gets lost costs a refresh of the place.

**The pace.** Where somebody was served a moment ago, somebody is probably served soon again, and
who has waited for long will wait on. So it looks again after a twentieth of the time in which
nothing happened here: a hand-over is noticed late by a twentieth of that at most, and by `SLOWEST`,
and 50 who wait for long cost no more than one. A server that is slow to answer is asked less: a
pause is as long as the last look, at least.

**Why MySQL is looked at** (``python bench/run.py sql_bells`` measures both again). Nothing blocks
there that a releaser could end from afar, but one statement: KILL QUERY of a session that sleeps,
found by a lock that it owns (``KILL QUERY IS_USED_LOCK(…)``). That rang in 0.2 ms, and was refused
all the same: under load MariaDB spends up to two seconds in such a KILL, again and again, and lets
nobody connect meanwhile. GET_LOCK needs a connection for each hold, as only its owner can free it.
"""

from __future__ import annotations

import random
import secrets
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockfast import clock
from lockfast.core.ports import Wake
from lockfast.errors import BackendError
from lockfast.model import Granted
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

EAR_BUDGET = 1.0
LONGEST_PAUSE = 1.0
# A look is the keeper's, who must not be late to renew because of a hint.
LOOK_BUDGET = 0.2
# Paced: how soon is looked again at most, and at least; and the part of a wait that it may add.
FASTEST, SLOWEST, PART = 0.001, 0.3, 1 / 20


class Listener(Protocol):
    """A connection of a dialect that hears."""

    fd: int

    @property
    def broken(self) -> bool: ...

    def subscribe(self, wake_address: str, budget: float) -> None: ...

    def wakeups(self) -> list[tuple[str, Granted | None]]: ...

    def close(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class PacedEar:
    """Looks. ``look`` asks the store which of (name, claim id) were granted."""

    def __init__(self, look: Callable[[Sequence[tuple[str, str]]], Any]) -> None:
        self.wake_address = secrets.token_hex(8)
        self.wakeups = Wakeups()
        self._look = look
        self._waiting: dict[str, str] = {}  # claim id: name
        self._happened = -float("inf")  # when somebody came, or was granted something
        self._took = 0.0  # the last look
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool:
        self.wakeups.watch(claim_id, wake)
        self._happened = clock.now()
        self._waiting[claim_id] = name
        self._interrupt.interrupt()
        return False  # whatever was granted meanwhile is seen when we look

    def unwatch(self, claim_id: str) -> None:
        self._waiting.pop(claim_id, None)
        self.wakeups.unwatch(claim_id)

    async def listen(self, timeout: float | None) -> None:
        until = None if timeout is None else clock.now() + timeout
        while True:
            interrupted, rest = self._interrupt.ready(
                None if until is None else until - clock.now()
            )
            pace = self._pace()
            last = pace is None or (rest is not None and rest <= pace)
            if self._paused(interrupted, rest if last else pace) or last:
                return
            if self._looked():
                return

    def _pace(self) -> float | None:
        """How long until we look again; None: nobody waits."""
        if not self._waiting:
            return None
        silence = clock.now() - self._happened
        pace = min(max(silence * PART, self._took, FASTEST), SLOWEST)
        return pace * (0.75 + random.random() / 2)

    def _paused(self, interrupted: int, timeout: float | None) -> bool:
        """Whether we were poked."""
        waiter = select.poll()
        waiter.register(interrupted, select.POLLIN)
        if waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            self._interrupt.heard()
            return True
        return False

    def _looked(self) -> bool:
        waiting = [(name, claim_id) for claim_id, name in list(self._waiting.items())]
        began = clock.now()
        try:
            found = self._look(waiting)
        except BackendError:
            return True  # the keeper will see for itself
        finally:
            self._took = clock.now() - began
        for claim_id, grant in found:
            self._waiting.pop(claim_id, None)
            self.wakeups.wake(claim_id, grant)
        if found:
            self._happened = clock.now()
        return bool(found)

    def close(self) -> None:
        self._interrupt.interrupt()

    def after_fork_in_child(self) -> None:
        self.wake_address = secrets.token_hex(8)
        self.wakeups.clear()
        self._waiting.clear()
        self._interrupt.after_fork_in_child()


class PushEar:
    """Listens on a connection of its own. ``open_listener`` gives one, or None where the server
    cannot push: then ``paced`` looks instead."""

    def __init__(self, open_listener: Callable[[float], Listener | None], paced: PacedEar) -> None:
        self._open = open_listener
        self._paced = paced
        self._listener: Listener | None = None
        self._since = float("inf")
        self._pushes = True
        self._pause = 0.0
        self._again_at = 0.0
        self._closed = False
        self._mutex = threading.Lock()  # a listener is not closed while the keeper reads it
        self.interrupt = paced.interrupt
        self.wakeups = paced.wakeups

    @property
    def wake_address(self) -> str:
        return self._paced.wake_address

    def watch(self, name: str, claim_id: str, wake: Wake, since: float) -> bool:
        """Who watches before we listen is rung when we do, and asks again then."""
        if not self._pushes:
            return self._paced.watch(name, claim_id, wake, since)
        self.wakeups.watch(claim_id, wake)
        self._paced._waiting[claim_id] = name
        self._closed = False
        if self._listener is None:
            self.interrupt()
            return False
        return self._since > since

    def unwatch(self, claim_id: str) -> None:
        self._paced.unwatch(claim_id)

    async def listen(self, timeout: float | None) -> None:
        if self._pushes and self._listener is None and self.wakeups and not self._closed:
            timeout = self._listen(timeout)
        if not self._pushes:
            await self._paced.listen(timeout)
            return
        interrupt = self._paced._interrupt
        interrupted, timeout = interrupt.ready(timeout)
        waiter = select.poll()
        waiter.register(interrupted, select.POLLIN)
        listener = self._listener
        if listener is not None:
            waiter.register(listener.fd, select.POLLIN)
        for fd, _ in waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            if fd == interrupted:
                interrupt.heard()
            elif listener is not None:
                self._deliver(listener)

    def _listen(self, timeout: float | None) -> float | None:
        """Open the ear, or say when to try again."""
        now = clock.now()
        if now < self._again_at:
            return self._sooner(timeout, self._again_at - now)
        try:
            listener = self._open(EAR_BUDGET)
            if listener is None:
                self._pushes = False
                return timeout
            try:
                listener.subscribe(self.wake_address, EAR_BUDGET)
            except BaseException:
                listener.close()
                raise
        except BackendError:
            self._pause = min(max(self._pause * 2, 0.05), LONGEST_PAUSE)
            self._again_at = clock.now() + self._pause
            return self._sooner(timeout, self._pause)
        self._pause = 0.0
        with self._mutex:
            unwanted = self._closed  # meanwhile
            if not unwanted:
                self._listener, self._since = listener, clock.now()
        if unwanted:
            listener.close()
            return timeout
        self.wakeups.wake_all()  # what was rung before nobody heard
        return timeout

    def _sooner(self, timeout: float | None, pause: float) -> float:
        return pause if timeout is None else min(timeout, pause)

    def _deliver(self, listener: Listener) -> None:
        with self._mutex:
            if listener.broken:
                return  # closed meanwhile
            try:
                found = listener.wakeups()
            except BackendError:
                self._listener = None
                listener.close()
                found = None
        if found is None:
            self.wakeups.wake_all()  # a bell may have been lost with it
            return
        for claim_id, grant in found:
            self.wakeups.wake(claim_id, grant)

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()
        self.interrupt()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        listener, self._listener = self._listener, None
        self._since = float("inf")
        if listener is not None:
            listener.after_fork_in_child()
        self._paced.after_fork_in_child()

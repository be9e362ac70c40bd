"""How the bells of a client are heard: the keeper listens, for both colours, in its pauses.

A `PushEar` has a connection on which the server tells of grants as soon as they are committed; it
is opened when somebody waits first. On PostgreSQL a bell says who was granted what. On MySQL it
says nothing (`Listener.says` is False), so who is rung looks: one statement for all who wait here.
A bell that came before its waiter was known here would ring in vain then, so who begins to watch
after a bell makes the ear look once more; and now and then it looks without a bell (`FLOOR`). If
that finds what no bell told of, bells do not reach us (they are lost with a connection, or the
releaser may not ring us): then the ear is opened anew, and looks as a `PacedEar` for a while.

A `PacedEar` is for where nothing can ring: it looks, often at first and then less, because who has
waited for long will wait on. Either way a bell is a hint: one that gets lost costs a refresh of the
place.
"""

from __future__ import annotations

import random
import secrets
import select
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from holdfast import clock
from holdfast.backends.bells import Bells
from holdfast.backends.poke import Poke
from holdfast.core.ports import Wake
from holdfast.errors import BackendError
from holdfast.model import Claim, Granted

EAR_BUDGET = 1.0
LONGEST_PAUSE = 1.0
# Paced: so often is looked at first, and after so long a wait at the latest.
FASTEST, SLOWEST, SLOWER = 0.005, 0.05, 1 / 20
# Where bells say nothing: so soon after one is looked again, so often without one, and for so long
# paced after one was missed; so many are told to ask who wait in no order, because a bell may be
# for any of them.
ECHO, FLOOR, PACED_FOR, MOST_RUNG = 0.01, 0.5, 30.0, 8


class Listener(Protocol):
    """A connection of a dialect that hears. ``says``: its bells tell whom they are for."""

    fd: int
    says: bool

    @property
    def broken(self) -> bool: ...

    def listen(self, home: str, budget: float) -> None: ...

    def bells(self) -> list[tuple[str, Granted | None]]: ...

    def close(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class PacedEar:
    """Looks. ``look`` asks the store which of (name, claim id) were granted."""

    def __init__(self, look: Callable[[Sequence[tuple[str, str]]], Any]) -> None:
        self.home = secrets.token_hex(8)
        self.bells = Bells()
        self._look = look
        self.waiting: dict[str, tuple[Claim, float]] = {}  # by claim id; since when
        self._poke = Poke()
        self.poke = self._poke.poke

    def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        self.bells.watch(claim.id, wake)
        self.waiting[claim.id] = (claim, clock.now())
        self._poke.poke()
        return False  # whatever was granted meanwhile is seen when we look

    def unwatch(self, claim_id: str) -> None:
        self.waiting.pop(claim_id, None)
        self.bells.unwatch(claim_id)

    async def hear(self, timeout: float | None) -> None:
        until = None if timeout is None else clock.now() + timeout
        while True:
            poked, rest = self._poke.ready(None if until is None else until - clock.now())
            pace = self.pace()
            last = pace is None or (rest is not None and rest <= pace)
            if self._paused(poked, rest if last else pace) or last:
                return
            if self.look() is not False:
                return  # or the keeper will see for itself

    def pace(self) -> float | None:
        """How long until we look again; None: nobody waits."""
        now = clock.now()
        youngest = max([since for _, since in list(self.waiting.values())], default=None)
        if youngest is None:
            return None
        pace = min(max((now - youngest) * SLOWER, FASTEST), SLOWEST)
        return pace * (0.75 + random.random() / 2)

    def _paused(self, poked: int, timeout: float | None) -> bool:
        """Whether we were poked."""
        waiter = select.poll()
        waiter.register(poked, select.POLLIN)
        if waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            self._poke.heard()
            return True
        return False

    def look(self) -> bool | None:
        """Whether anything was granted to those who wait here; None: nobody answered."""
        waiting = [(claim.name, claim.id) for claim, _ in list(self.waiting.values())]
        if not waiting:
            return False
        try:
            found = self._look(waiting)
        except BackendError:
            return None
        for claim_id, grant in found:
            self.waiting.pop(claim_id, None)
            self.bells.ring(claim_id, grant)
        return bool(found)

    def close(self) -> None:
        self._poke.poke()

    def after_fork_in_child(self) -> None:
        self.home = secrets.token_hex(8)
        self.bells.clear()
        self.waiting.clear()
        self._poke.after_fork_in_child()


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
        self._rung = -float("inf")  # where bells say nothing: when the last one came,
        self._look_at = self._paced_until = 0.0  # when to look, and until when often,
        self._unrung = False  # and whether what is found then should have been told by a bell
        self._closed = False
        self._mutex = threading.Lock()  # a listener is not closed while the keeper reads it
        self.poke = paced.poke
        self.bells = paced.bells

    @property
    def home(self) -> str:
        return self._paced.home

    def watch(self, claim: Claim, wake: Wake, since: float) -> bool:
        """Who watches before we listen is rung when we do, and asks again then."""
        if not self._pushes:
            return self._paced.watch(claim, wake, since)
        self.bells.watch(claim.id, wake)
        self._paced.waiting[claim.id] = (claim, clock.now())
        self._closed = False
        if self._listener is None:
            self.poke()
            return False
        if self._rung > since:  # perhaps for us, whom nobody knew here
            self._look_at, self._unrung = 0.0, False
            self.poke()
        return self._since > since

    def unwatch(self, claim_id: str) -> None:
        self._paced.unwatch(claim_id)

    async def hear(self, timeout: float | None) -> None:
        if self._pushes and self._listener is None and self.bells and not self._closed:
            timeout = self._listen(timeout)
        if not self._pushes:
            await self._paced.hear(timeout)
            return
        poke = self._paced._poke
        poked, timeout = poke.ready(timeout)
        waiter = select.poll()
        waiter.register(poked, select.POLLIN)
        listener = self._listener
        if listener is not None:
            waiter.register(listener.fd, select.POLLIN)
            if not listener.says and self.bells:
                timeout = self._sooner(timeout, max(self._look_at - clock.now(), 0.0))
        for fd, _ in waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000):
            if fd == poked:
                poke.heard()
            elif listener is not None:
                self._deliver(listener)
        if listener is not None and not listener.says and self.bells:
            self._look_unrung(listener)

    def _look_unrung(self, listener: Listener) -> None:
        """For those whose bell did not come, or came before they were here."""
        now = clock.now()
        if now < self._look_at:
            return
        missed = self._unrung
        self._look_after(now)
        if self._paced.look() and missed and now >= self._paced_until:
            self._paced_until = now + PACED_FOR
            self._look_after(now)
            self._lose(listener)

    def _look_after(self, now: float) -> None:
        pace = self._paced.pace() if now < self._paced_until else None
        self._look_at = now + (pace or FLOOR * (0.75 + random.random() / 2))
        self._unrung = True

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
                listener.listen(self.home, EAR_BUDGET)
            except BaseException:
                listener.close()
                raise
        except BackendError:
            self._pause = min(max(self._pause * 2, 0.05), LONGEST_PAUSE)
            self._again_at = clock.now() + self._pause
            return self._sooner(timeout, self._pause)
        self._pause = 0.0
        self._listener, self._since = listener, clock.now()
        self._look_after(self._since)
        self.bells.ring_all()  # what was rung before nobody heard
        return timeout

    def _sooner(self, timeout: float | None, pause: float) -> float:
        return pause if timeout is None else min(timeout, pause)

    def _deliver(self, listener: Listener) -> None:
        with self._mutex:
            if listener.broken:
                return  # closed meanwhile
            try:
                found = listener.bells()
            except BackendError:
                found = None
        if found is None:
            self._lose(listener)
            return
        for claim_id, grant in found:
            self.bells.ring(claim_id, grant)
        if not listener.says:
            self._rung = clock.now()
            self._paced.look()
            # The next one may have rung before the server let us listen again.
            self._look_at, self._unrung = clock.now() + ECHO, False
            in_no_order = (one for one, _ in list(self._paced.waiting.values()) if not one.fair)
            for claim in islice(in_no_order, MOST_RUNG):
                self.bells.ring(claim.id, None)

    def _lose(self, listener: Listener) -> None:
        """Bells may have been lost with it: whoever waits asks."""
        with self._mutex:
            if self._listener is listener:
                self._listener = None
            listener.close()
        self.bells.ring_all()

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()
        self.poke()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        listener, self._listener = self._listener, None
        self._since = float("inf")
        if listener is not None:
            listener.after_fork_in_child()
        self._paced.after_fork_in_child()

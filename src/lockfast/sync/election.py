"""An election, blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Never, TypeVar

from lockfast.api.election import BaseElection
from lockfast.api.hold import add_note
from lockfast.api.lock import DEFAULT, Default
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.model import Leader
from lockfast.runtime.threads import run
from lockfast.sync.hold import Hold
from lockfast.sync.lock import Lock

T = TypeVar("T")


class Leadership(Lock):
    """The lead, as a lock: whoever holds it leads."""

    on_gained: Callable[[Hold], object] | None = None

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """The lead, or `AcquireTimeout` that names the leader."""
        return self._gained(super().acquire(timeout=timeout, **foreign))

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """The lead, or None: at once, or after waiting ``timeout`` seconds."""
        hold = super().try_acquire(timeout=timeout, **foreign)
        return None if hold is None else self._gained(hold)

    def _gained(self, hold: Hold) -> Hold:
        if self.on_gained is not None:
            try:
                self.on_gained(hold)
            except BaseException as error:
                try:
                    hold.release()
                except (HoldLost, BackendError, NotHeld) as ours:
                    add_note(error, ours)
                raise
        return hold


class Election(BaseElection[Hold]):
    __doc__ = BaseElection.__doc__

    def lead(self, *, timeout: Seconds | None = None) -> Leadership:
        """Stand for election: ``with election.lead() as hold:`` waits until we lead, and resigns at
        the end. ``hold.fence`` is the term. A lead that is lost is told as with any lock."""
        wait_for = None if timeout is None else checked_timeout(timeout)
        leadership = Leadership(self._client, self._terms, wait_for, self._on_lost)
        leadership.on_gained = self._on_gained
        return leadership

    def run(self, work: Callable[[Hold], T]) -> T:
        """Call ``work`` with the hold whenever we lead, and stand again if the lead is lost under
        it, until it returns: what it returned. It is not interrupted: it has to look at
        ``hold.is_held``."""
        while True:
            hold: Hold | None = None
            try:
                with self.lead() as hold:
                    return work(hold)
            except HoldLost as loss:
                if not self._is_ours(loss, hold):
                    raise
                self._again(loss)

    def leader(self) -> Leader | None:
        """Who leads now, and what it tells of itself. One round trip, and old news when it
        arrives."""
        return self._leader(run(self._client.core.inspect(self._terms.name)))

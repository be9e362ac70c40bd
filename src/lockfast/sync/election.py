# Generated from lockfast/aio/election.py by tools/generate_sync.py: change that file instead.
"""Election of the sync API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Never, TypeVar

from lockfast.api.blocks import end_of
from lockfast.api.hold import add_note
from lockfast.api.primitives import DEFAULT, BaseElection, Default
from lockfast.errors import BackendError, HoldLost, NotHeld
from lockfast.inputs import Seconds, checked_timeout
from lockfast.model import Leader
from lockfast.runtime.threads import run
from lockfast.sync.hold import Hold
from lockfast.sync.lock import Lock

T = TypeVar("T")


class Leadership(Lock):
    """The lead of an election, as a lock: its holder is the leader."""

    on_gained: Callable[[Hold], object] | None = None

    def acquire(self, *, timeout: Seconds | Default | None = DEFAULT, **foreign: Never) -> Hold:
        """Wait until this process leads, and return the hold; its fence is the term.

        Raises `AcquireTimeout`, which names the leader. If ``on_gained`` raises, the lead is
        released and the exception passes through.
        """
        return self._gained(super().acquire(timeout=timeout, **foreign))

    def __enter__(self) -> Hold:
        end = end_of(self)
        return self._begin_block(self.acquire(), end)

    def try_acquire(self, *, timeout: Seconds = 0, **foreign: Never) -> Hold | None:
        """Return the hold if this process leads within ``timeout`` seconds, or None."""
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


class Election(BaseElection):
    __doc__ = BaseElection.__doc__

    def lead(self, *, timeout: Seconds | None = None) -> Leadership:
        """Stand for election: ``with election.lead() as hold:`` waits for the lead, then resigns.

        ``hold.fence`` is the term. A lost lead shows as for any lock: `HoldLost`, ``hold.lost``,
        ``on_lost``.
        """
        wait_for = checked_timeout(timeout)
        leadership = Leadership(self._client, self._terms, wait_for, self._on_lost)
        leadership.on_gained = self._on_gained
        return leadership

    def run(self, work: Callable[[Hold], T]) -> T:
        """Call ``work(hold)`` whenever this process leads, until it returns; return its result.

        After a lost lead, stands for election again and calls ``work`` again. The loss does not
        interrupt ``work``, which has to check ``hold.is_held``.
        """
        while True:
            fence = None
            try:
                with self.lead() as hold:
                    fence = hold.fence
                    return work(hold)
            except HoldLost as loss:
                if not self._is_ours(loss, fence):
                    raise
                self._log_lost_lead(loss)

    def leader(self) -> Leader | None:
        """Return the leader with metadata and term, or None. One round trip; may be outdated."""
        return self._leader(run(self._client._core.inspect(self._terms.name)))

"""Poll the store on a thread of its own, so that keys never wait for a store that is slow or down.

Rate: a round begins every ``interval`` and inspects names one by one for at most half of it, so
that the store is idle at least half of the time. Listing all names, the most expensive step where
there are many, is repeated only after ten times as long as it took. An error is shown, and the next
round starts as usual.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from lockfast import clock
from lockfast.cli.admin import Address, Admin
from lockfast.cli.sanitize import escaped
from lockfast.cli.top.keys import Break
from lockfast.cli.top.model import Model
from lockfast.core.explain import ago
from lockfast.errors import LockfastError

LISTING_PAUSE = 10  # pause between two listings, as a multiple of the time one takes
JOIN_LIMIT = 0.2


class Poller:
    def __init__(
        self,
        admin: Admin,
        prefix: str,
        *,
        everywhere: bool,
        interval: float,
        on_update: Callable[[], None],
    ) -> None:
        self.model = Model()
        self.mutex = threading.Lock()  # guards the model
        self.visible: Sequence[Address] = ()  # names on the screen
        self.messages: deque[str] = deque()  # results of breaks
        self._admin, self._prefix, self._everywhere = admin, prefix, everywhere
        self._interval, self._on_update = interval, on_update
        self._breaks: deque[Break] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._next_listing = 0.0
        self._failing_since: float | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. It may be waiting for a store that does not answer: join briefly."""
        self._stopped = True
        self._wake.set()
        self._thread.join(JOIN_LIMIT)

    def request_break(self, request: Break) -> None:
        """Queue a break, to be carried out at the start of the next round, which begins now."""
        self._breaks.append(request)
        self._wake.set()

    def problem(self) -> str:
        """Error of the store and age of the displayed data; empty if all is well."""
        since = self._failing_since
        if since is None:
            return ""
        return f"no data for {ago(clock.now() - since)}: {self._error}"

    def _run(self) -> None:
        while not self._stopped:
            began = clock.now()
            try:
                self._round(began)
                self._failing_since = None
            except LockfastError as error:
                self._error = str(error)
                self._failing_since = self._failing_since or began
            self._on_update()
            self._wake.wait(max(began + self._interval - clock.now(), self._interval / 2))
            self._wake.clear()

    def _round(self, began: float) -> None:
        self._carry_out_breaks()
        if began >= self._next_listing:
            names = self._admin.addresses(self._prefix, everywhere=self._everywhere)
            now = clock.now()
            self._next_listing = now + max(LISTING_PAUSE * (now - began), self._interval / 2)
            with self.mutex:
                self.model.listed(names, now)
        with self.mutex:
            wanted = self.model.to_inspect(self.visible)
        until = clock.now() + self._interval / 2
        for address in wanted:
            if self._stopped or self._breaks or clock.now() > until:
                break
            inspection = self._admin.inspect(address)
            with self.mutex:
                self.model.inspected(inspection, clock.now())

    def _carry_out_breaks(self) -> None:
        while self._breaks:
            request = self._breaks.popleft()
            name, fence = escaped(request.address.name), request.fence
            try:
                if self._admin.break_hold(request.address, fence):
                    message = f"{name}: broken, fence {fence}"
                else:
                    message = f"{name}: no hold has fence {fence} any more, nothing was broken"
            except LockfastError as error:
                message = f"{name}: whether it was broken is unknown: {error}"
            self.messages.append(message)
            self._on_update()

"""Looks at the store, on a thread of its own: an operator who types must not wait for a store,
least of all for one that does not answer.

The pace: a round begins every ``interval``, and looks at names one by one for at most half of that,
so that the store has at least as much peace as it has questions. The walk over all names, which is
what costs most where there are many, is repeated after ten times as long as it took. An error is
shown, and the next round comes as if nothing had been.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from lockfast import clock
from lockfast.cli.admin import Address, Desk
from lockfast.cli.sanitize import shown
from lockfast.cli.top.keys import Break
from lockfast.cli.top.model import Model
from lockfast.core.explain import ago
from lockfast.errors import LockfastError

WALKS = 10  # a walk takes at most one part of so many of the time
LAST_LOOK = 0.2


class Looker:
    def __init__(
        self,
        desk: Desk,
        prefix: str,
        *,
        everywhere: bool,
        interval: float,
        news: Callable[[], None],
    ) -> None:
        self.model = Model()
        self.mutex = threading.Lock()  # around the model and what follows
        self.shown: Sequence[Address] = ()  # on the screen
        self.told: deque[str] = deque()  # what became of breaks
        self._desk = desk
        self._prefix = prefix
        self._everywhere = everywhere
        self._interval = interval
        self._news = news
        self._asked: deque[Break] = deque()
        self._wake = threading.Event()
        self._over = False
        self._walk_at = 0.0
        self._silent_since: float | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="looker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It may be asking a store that does not answer: what it hears nobody will see."""
        self._over = True
        self._wake.set()
        self._thread.join(LAST_LOOK)

    def ask(self, what: Break) -> None:
        """Break it, soon."""
        self._asked.append(what)
        self._wake.set()

    def trouble(self) -> str:
        """What is wrong with the store, and how old the picture is."""
        since = self._silent_since
        if since is None:
            return ""
        return f"nothing seen for {ago(clock.now() - since)}: {self._error}"

    def _run(self) -> None:
        while not self._over:
            began = clock.now()
            try:
                self._round(began)
                self._silent_since = None
            except LockfastError as error:
                self._error = str(error)
                self._silent_since = self._silent_since or began
            self._news()
            self._wake.wait(max(began + self._interval - clock.now(), self._interval / 2))
            self._wake.clear()

    def _round(self, began: float) -> None:
        self._break_what_was_asked_for()
        if began >= self._walk_at:
            names = self._desk.addresses(self._prefix, everywhere=self._everywhere)
            now = clock.now()
            self._walk_at = now + max(WALKS * (now - began), self._interval / 2)
            with self.mutex:
                self.model.found(names, now)
        with self.mutex:
            wanted = self.model.to_look_at(self.shown)
        until = clock.now() + self._interval / 2
        for address in wanted:
            if self._over or self._asked or clock.now() > until:
                break
            sight = self._desk.look(address)
            with self.mutex:
                self.model.saw(sight, clock.now())

    def _break_what_was_asked_for(self) -> None:
        while self._asked:
            address, fence = (what := self._asked.popleft()).address, what.fence
            name = shown(address.name)
            try:
                if self._desk.break_hold(address, fence):
                    said = f"{name}: broken, fence {fence}"
                else:
                    said = f"{name}: fence {fence} does not hold it any more, nothing was broken"
            except LockfastError as error:
                said = f"{name}: whether it was broken is unknown: {error}"
            self.told.append(said)
            self._news()

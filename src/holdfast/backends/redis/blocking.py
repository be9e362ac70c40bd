"""How threads speak to Redis: a connection of its own for each thread, and one more for the keeper
and the bells, however many wait.

The ear (that one more) is opened and subscribed by the first thread that waits; from then on only
the keeper reads it, and speaks on it too. If it breaks, the keeper opens it again and lets all who
wait ask for themselves.
"""

from __future__ import annotations

import select
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from holdfast import clock
from holdfast.backends.bells import Bells
from holdfast.backends.poke import Poke
from holdfast.backends.redis.bell import channel_of, delivered
from holdfast.backends.redis.conditions import ServerError, Unreachable, explained
from holdfast.backends.redis.links import LEAST, Link, Where
from holdfast.backends.redis.scripts import packed
from holdfast.errors import BackendError

IDLE = 1.0  # a connection that was not used for so long may be closed by now
EAR_BUDGET = 0.25
LONGEST_PAUSE = 1.0


class BlockingTransport:
    suspends = False

    def __init__(self, address: Where, home: str, connected: Callable[[Link], None]) -> None:
        self.bells = Bells()
        self._address = address
        self._connected = connected
        self._own_home = home
        self.home = "."
        self._local = threading.local()
        self._poke = Poke()
        self._ear: Link | None = None
        self._ear_mutex = threading.Lock()
        self._ear_since = float("inf")
        self._listening = False
        self._pause = 0.0
        # Weakly: the link of a thread that has ended is closed with it.
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self.poke = self._poke.poke

    # ---- calls -------------------------------------------------------------------------------

    def send(self, command: bytes, budget: float) -> Any:
        try:
            link = self._local.link
        except AttributeError:
            link = None
        now = clock.now()
        if link is None or now - link.used > IDLE or link.generation != self._address.generation:
            link, budget = self._ready(link, now, budget)
        link.used = now
        try:
            return link.ask(command, budget)
        except BaseException:
            self._drop(link)
            raise

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        """Several at once, in one write."""
        now = clock.now()
        link, budget = self._ready(getattr(self._local, "link", None), now, budget)
        link.used = now
        try:
            return link.ask_all(commands, budget)
        except BaseException:
            self._drop(link)
            raise

    async def settled(
        self, commands: Sequence[bytes], replicas: int, wait_ms: int, budget: float
    ) -> list[Any]:
        return await self.calls([*commands, packed("WAIT", replicas, wait_ms)], budget)

    def _ready(self, link: Link | None, now: float, budget: float) -> tuple[Link, float]:
        """This thread's connection, and what connecting left of the budget."""
        if link is not None:
            if link.generation == self._address.generation and (
                link is self._ear or now - link.used <= IDLE or not link.is_stale()
            ):
                return link, budget
            self._drop(link)
        link = Link(self._address, budget)
        try:
            self._connected(link)
        except BaseException:
            link.close()  # an answer may still come
            raise
        self._local.link = link
        self._links.add(link)
        return link, max(now + budget - clock.now(), LEAST)

    def _drop(self, link: Link) -> None:
        """It may be in the middle of an answer."""
        self._links.discard(link)
        link.close()
        if getattr(self._local, "link", None) is link:
            self._local.link = None
        if link is self._ear:
            self._ear, self.home = None, "."

    # ---- bells -------------------------------------------------------------------------------

    async def listen(self, since: float) -> bool:
        self._listening = True
        if self._ear is None:
            try:
                self._open_ear()
            except BackendError as error:
                if not error.transient:  # we may not listen: say it
                    self._listening = False
                    raise
            self._poke.poke()  # the keeper adopts it, or goes on trying
        return self._ear is None or self._ear_since > since

    def _open_ear(self) -> None:
        if not self._ear_mutex.acquire(timeout=EAR_BUDGET):
            raise Unreachable(f"{self._address.where} does not answer who wants to listen")
        try:
            if self._ear is not None:
                return
            link = Link(self._address, EAR_BUDGET)
            try:
                command = packed("SUBSCRIBE", channel_of(self._own_home))
                answer = link.subscribe(command, link.budget)
                if isinstance(answer, ServerError):
                    raise explained(answer, self._address.where)
                if type(answer) is not hiredis.PushNotification:
                    raise BackendError(f"{self._address.where} does not let us subscribe")
            except BaseException:
                link.close()
                raise
            link.pushed = self._pushed
            self._links.add(link)
            self._ear_since = clock.now()
            self._ear, self.home = link, self._own_home
        finally:
            self._ear_mutex.release()

    def _pushed(self, push: Any) -> None:
        delivered(push, self.bells)

    async def hear(self, timeout: float | None) -> None:
        poked, timeout = self._poke.ready(timeout)
        ear = self._ear
        if ear is not None and ear.generation != self._address.generation:
            self._drop(ear)  # who is there rings no more
        if self._listening and self._ear is None and self.bells:
            timeout = self._reopen(timeout)
        waiter = select.poll()
        waiter.register(poked, select.POLLIN)
        ear = self._ear
        if ear is not None:
            self._adopt(ear)
            waiter.register(ear.sock, select.POLLIN)
        ready = waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000.0)
        for descriptor, _ in ready:
            if descriptor == poked:
                self._poke.heard()
            elif ear is not None and ear is self._ear:
                try:
                    ear.pushes()
                except BaseException as error:
                    self._drop(ear)
                    self.bells.ring_all()  # a bell may have been lost with it
                    if not isinstance(error, BackendError):
                        raise

    def _adopt(self, ear: Link) -> None:
        """The keeper speaks on the ear, and needs no other connection."""
        own = getattr(self._local, "link", None)
        if own is not ear:
            if own is not None:
                self._drop(own)
            self._local.link = ear

    def _reopen(self, timeout: float | None) -> float | None:
        try:
            self._open_ear()
        except BackendError:
            self._pause = min(max(self._pause * 2, 0.05), LONGEST_PAUSE)
            return self._pause if timeout is None else min(timeout, self._pause)
        self._pause = 0.0
        self.bells.ring_all()
        return timeout

    # ---- the end -----------------------------------------------------------------------------

    def moved(self) -> None:
        """The server is another one: whoever hears opens its ear there."""
        self._poke.poke()

    def distrust(self, why: str) -> None:
        link = getattr(self._local, "link", None)
        if link is not None:
            self._drop(link)

    def close(self) -> None:
        """Close what is open, of whichever thread: who goes on connects again."""
        self._listening = False
        self._local = threading.local()
        self._ear, self.home = None, "."
        for link in list(self._links):
            self._links.discard(link)
            link.close()
        self._poke.poke()

    def after_fork_in_child(self) -> None:
        """The parent's sockets are the parent's: only our copies of them are closed."""
        self._ear_mutex = threading.Lock()
        self._ear, self.home = None, "."
        self._listening = False
        self._local = threading.local()
        for link in list(self._links):
            link.sock.close()
        self._links.clear()
        self.bells.clear()
        self._poke.after_fork_in_child()

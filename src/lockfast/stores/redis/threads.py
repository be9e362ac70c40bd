"""How threads speak to Redis: on a connection of its own for each thread, on which it also hears
its bells, and one more for the keeper.

A thread that has to wait subscribes its connection to a channel of its own, once, and from then on
says with its claims where it is heard. While it waits it reads that connection itself: a bell wakes
the thread that it is for and nobody else, with no other thread in between. If the connection
breaks, the thread that waits notices at once, and asks again on another one.
"""

from __future__ import annotations

import itertools
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.connections import LEAST, Link, Where
from lockfast.stores.redis.errors import ServerError, explained
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.spin import Company
from lockfast.stores.redis.wakeup_messages import channel_of, delivered
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

IDLE = 1.0  # a connection that was not used for so long may be closed by now
EAR_BUDGET = 0.25
DEAF_PAUSE = 0.1
FOREVER = float("inf")


class _Local(threading.local):
    """What a thread has of a transport."""

    link: Link | None = None
    wake_address: str = "."
    interrupt: WakeupPipe | None = None


class BlockingTransport:
    suspends = False

    def __init__(
        self, address: Where, wake_address: str, connected: Callable[[Link], None]
    ) -> None:
        self.wakeups = Wakeups()
        self._address = address
        self._connected = connected
        self._wake_addresses = map((wake_address + "t%d").__mod__, itertools.count(1))
        self._local = _Local()
        self._interrupt = WakeupPipe()
        self._company = Company()
        # Weakly: the link of a thread that has ended is closed with it.
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self.interrupt = self._interrupt.interrupt

    # ---- calls -------------------------------------------------------------------------------

    def send(self, command: bytes, budget: float) -> Any:
        link = self._local.link
        now = clock.now()
        if link is None or now - link.used > IDLE or link.generation != self._address.generation:
            link, budget = self._connection(link, now, budget)
        link.used = now
        self._company.asks(link.near)
        try:
            return link.ask(command, budget)
        except BaseException:
            self._drop(link)
            raise

    async def calls(self, commands: Sequence[bytes], budget: float) -> list[Any]:
        """Several at once, in one write."""
        now = clock.now()
        link, budget = self._connection(self._local.link, now, budget)
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

    def _connection(self, link: Link | None, now: float, budget: float) -> tuple[Link, float]:
        """This thread's connection, and what connecting left of the budget."""
        if link is not None:
            if link.generation == self._address.generation and (
                now - link.used <= IDLE or not link.is_stale()
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
        if self._local.link is link:
            self._local.link, self._local.wake_address = None, "."

    # ---- bells -------------------------------------------------------------------------------

    @property
    def wake_address(self) -> str:
        """Where this thread is heard; '.' while it does not listen."""
        return self._local.wake_address

    async def subscribe(self, since: float) -> bool:
        """Whether this thread began to listen only now, so that its claim could not say where."""
        return self.begin_to_listen()

    def begin_to_listen(self) -> bool:
        """Hear bells from now on; whether that is new."""
        if self._local.wake_address != ".":
            return False
        try:
            link, budget = self._connection(self._local.link, clock.now(), EAR_BUDGET)
            try:
                wake_address = next(self._wake_addresses)
                answer = link.subscribe(packed("SUBSCRIBE", channel_of(wake_address)), budget)
                if isinstance(answer, ServerError):
                    raise explained(answer, self._address.where)
                if type(answer) is not hiredis.PushNotification:
                    raise BackendError(f"{self._address.where} does not let us subscribe")
            except BaseException:
                self._drop(link)
                raise
            link.pushed = self._pushed
            self._local.wake_address = wake_address
        except BackendError as error:
            if not error.transient:  # we may not listen: say it
                raise
            time.sleep(DEAF_PAUSE)  # who waits asks again, and tries it again
        return True

    def _pushed(self, push: Any) -> None:
        delivered(push, self.wakeups)

    def new_ear(self, listens: bool) -> Ear:
        """What this thread waits with."""
        local = self._local
        if local.interrupt is None:
            local.interrupt = WakeupPipe()
        return Ear(self, local.interrupt, listens)

    def ear(self) -> Link | None:
        """On which this thread listens; None if it does not (any more)."""
        local = self._local
        link = local.link
        if link is not None and link.generation != self._address.generation:
            self._drop(link)  # who is there rings no more
        return None if local.wake_address == "." else link

    def heard(self, link: Link) -> bool:
        """Deliver what the server said to this thread. False: a bell may have been lost."""
        try:
            link.used = clock.now()
            link.near.crowded()
            link.pushes()
        except BaseException as error:
            self._drop(link)
            if not isinstance(error, BackendError):
                raise
            return False
        return True

    async def listen(self, timeout: float | None) -> None:
        """The keeper hears no bells: each thread hears its own."""
        _ready(self._interrupt, timeout)

    # ---- the end -----------------------------------------------------------------------------

    def moved(self) -> None:
        """The server is another one: who waits asks there."""
        self.wakeups.wake_all()

    def distrust(self, why: str) -> None:
        link = self._local.link
        if link is not None:
            self._drop(link)

    def close(self) -> None:
        """Close what is open, of whichever thread: who goes on connects again."""
        self._local = _Local()
        for link in list(self._links):
            self._links.discard(link)
            link.close()
        self._interrupt.interrupt()

    def after_fork_in_child(self) -> None:
        """The parent's sockets are the parent's: only our copies of them are closed."""
        self._local = _Local()
        for link in list(self._links):
            link.sock.close()
        self._links.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()


class Ear:
    """The signal of a thread that waits: rung by its own bell, which it reads itself, or by another
    thread (the keeper, whoever closes the client)."""

    __slots__ = ("_inside", "_interrupt", "_listens", "_transport", "_woken")

    def __init__(self, transport: BlockingTransport, interrupt: WakeupPipe, listens: bool) -> None:
        self._transport = transport
        self._interrupt = interrupt
        self._listens = listens
        self._woken = False
        self._inside = False

    def set(self) -> None:
        self._woken = True
        if self._inside:  # or it will see it before it sleeps
            self._interrupt.interrupt()

    async def wait(self, timeout: float | None) -> bool:
        until = FOREVER if timeout is None else clock.now() + timeout
        transport = self._transport
        while not self._woken:
            rest = until - clock.now()
            if rest <= 0:
                return False
            if not self._listens:
                self._sleep(rest)
                continue
            link = transport.ear()
            if link is None or (self._sleep(rest, link.sock) and not transport.heard(link)):
                transport.begin_to_listen()
                self._woken = True
        self._woken = False
        return True

    def _sleep(self, rest: float, sock: Any = None) -> bool:
        """Until there is something to read (True), or somebody rings, or the time is over. What is
        read then rings us without a poke: we are awake."""
        self._inside = True
        try:
            return not self._woken and _ready(
                self._interrupt, None if rest == FOREVER else rest, sock
            )
        finally:
            self._inside = False


def _ready(interrupt: WakeupPipe, timeout: float | None, sock: Any = None) -> bool:
    """Wait for a poke, or for something to read; whether there is."""
    interrupted, timeout = interrupt.ready(timeout)
    waiter = select.poll()
    waiter.register(interrupted, select.POLLIN)
    if sock is not None:
        waiter.register(sock, select.POLLIN)
    readable = False
    for descriptor, _ in waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000.0):
        if descriptor == interrupted:
            interrupt.heard()
        else:
            readable = True
    return readable

"""Where a client hears its bells: one more connection to each node that serves a name that is
waited for. The keeper alone opens, reads and speaks on them, so no two threads meet there. They are
for both colours: what they hear is passed on to threads and to tasks.

Bells are sharded pub/sub (Redis 7): a channel for each client and name, in the name's slot, at the
node that serves it, and no other node hears of it. Where the server has none, the same channels are
classic ones.

The rules:

1. A name is heard when its node has confirmed it; from then on claims say where ('home'), and all
   who wait for it are rung once: a bell before that rang nobody, so they ask.
2. When its slot moves the node says so and hears no more (classic: the map says so): the name is
   subscribed at the new node, and rule 1 applies again. So it does when a connection breaks. What
   only the map says is tried, and the name is heard where it was until it is heard there: a map
   may be older than what we know, and a name that is heard nowhere loses its place.
3. A name that nobody waits for any more is heard for a while yet: who waited once waits again.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from typing import Any

import hiredis

from lockfast import clock
from lockfast.errors import BackendError
from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.connections import Address, Link
from lockfast.stores.redis.errors import Redirected, ServerError, explained
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.wakeup_messages import channel_of, delivered
from lockfast.stores.redis_cluster.slots import SlotMap, slot_of
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

EAR_BUDGET = 0.25
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
LINGER = 30.0
MOST_IDLE = 1000
REFUSED_PAUSE = 60.0
SUBSCRIBE, UNSUBSCRIBE = "SUBSCRIBE", "UNSUBSCRIBE"

log = logging.getLogger("lockfast")


class Ear(Link):
    """A connection on which nothing is asked but subscriptions: what is answered and is no push is
    a refusal."""

    def __init__(self, address: Address, budget: float, refused: Callable[[Any], None]) -> None:
        super().__init__(address, budget)
        self.refused = refused

    def _surplus(self) -> None:
        while (answer := self.reader.gets()) is not False:
            if type(answer) is hiredis.PushNotification:
                self._push(answer)
            else:
                self.refused(answer)

    def say(self, commands: list[bytes]) -> None:
        try:
            self._set_limit(EAR_BUDGET)
            self.sock.sendall(b"".join(commands))
        except OSError as error:
            raise self._explained(error, EAR_BUDGET) from error


class Ears:
    def __init__(self, slots: SlotMap, address_of: Callable[[str], Address], ear: str) -> None:
        self.wakeups = Wakeups()
        self.lost_their_way = False  # the map is needed anew
        self._slots = slots
        self._address_of = address_of
        self._own = ear
        self._mutex = threading.Lock()
        self._interrupt = WakeupPipe()
        self.interrupt = self._interrupt.interrupt
        self._sharded = True
        self._wanted: dict[str, set[str]] = {}  # name → claims that wait
        self._idle: dict[str, float] = {}  # name → since when nobody waits for it, in that order
        self._reset()

    def _reset(self) -> None:
        self._ears: dict[str, Ear] = {}
        self._asked_at: dict[str, str] = {}  # name → the seat where it is subscribed, or will be
        self._heard: dict[str, tuple[str, float]] = {}  # name → that seat, once confirmed; since
        self._names: dict[str, str] = {}  # channel → name
        self._pause = 0.0
        self._not_before = 0.0
        self._tended: int | None = None  # the map's version that they were tended by
        self._tidy_at = 0.0

    # ---- for whoever waits -------------------------------------------------------------------

    def wake_address_of(self, name: str) -> str:
        heard = self._heard.get(name)
        if heard is None:
            return "."
        # Without the node's id it is compared with none: nobody is taken for gone then.
        node = self._slots.id_of(heard[0])[:8] or "0"
        return f"{'s' if self._sharded else 'c'}{node}:{self._own}"

    def want(self, name: str, claim_id: str, since: float) -> bool:
        """Hear it from now on. Whether a claim that was sent ``since`` could not say where."""
        with self._mutex:
            self._wanted.setdefault(name, set()).add(claim_id)
            self._idle.pop(name, None)
        heard = self._heard.get(name)
        if heard is None:
            self._tended = None
            self.interrupt()
            heard = self._heard.get(name)  # it may have been confirmed just now, before we wanted
        return heard is not None and heard[1] > since

    def unwant(self, name: str, claim_id: str) -> None:
        with self._mutex:
            waiting = self._wanted.get(name)
            if waiting is None:
                return
            waiting.discard(claim_id)
            if not waiting:
                del self._wanted[name]
                self._idle[name] = clock.now()

    # ---- the keeper's ------------------------------------------------------------------------

    async def listen(self, timeout: float | None) -> None:
        interrupted, timeout = self._interrupt.ready(timeout)
        timeout = self._tend(timeout)
        waiter = select.poll()
        waiter.register(interrupted, select.POLLIN)
        ears = {ear.sock.fileno(): (endpoint, ear) for endpoint, ear in self._ears.items()}
        for descriptor in ears:
            waiter.register(descriptor, select.POLLIN)
        for descriptor, _ in waiter.poll(None if timeout is None else max(timeout, 0.0) * 1000.0):
            if descriptor == interrupted:
                self._interrupt.heard()
                continue
            endpoint, ear = ears[descriptor]
            if self._ears.get(endpoint) is ear:
                try:
                    ear.pushes()
                except BaseException as error:
                    self._drop(endpoint)
                    if not isinstance(error, BackendError):
                        raise

    def _tend(self, timeout: float | None) -> float | None:
        """Subscribe what is wanted and where it is now; let go what nobody waited for, for long."""
        now = clock.now()
        if now < self._not_before:
            rest = self._not_before - now
            return rest if timeout is None else min(timeout, rest)
        version = self._slots.version
        if self._tended != version or now >= self._tidy_at:
            self._tended, self._tidy_at = version, now + LINGER / 2
            said: dict[str, list[bytes]] = {}
            self._let_go(now, said)
            for name in list(self._wanted):
                self._subscribe(name, said)
            for endpoint, commands in said.items():
                self._say(endpoint, commands)
        return timeout

    def _subscribe(self, name: str, said: dict[str, list[bytes]]) -> None:
        endpoint = self._slots.owners[slot_of(name)]
        if not endpoint or endpoint == self._asked_at.get(name):
            return
        self._asked_at[name] = endpoint
        self._names[self._channel(name)] = name
        said.setdefault(endpoint, []).append(self._packed(SUBSCRIBE, name))

    def _unsubscribe(self, name: str, said: dict[str, list[bytes]]) -> None:
        endpoints = {self._asked_at.pop(name, "")}
        endpoints.add(self._heard.pop(name, ("", 0.0))[0])
        for endpoint in endpoints & self._ears.keys():
            said.setdefault(endpoint, []).append(self._packed(UNSUBSCRIBE, name))

    def _packed(self, verb: str, name: str) -> bytes:
        return packed(f"S{verb}" if self._sharded else verb, self._channel(name))

    def _channel(self, name: str) -> str:
        """In the slot of the name, whose key's hash tag it has."""
        return channel_of(f"{self._own}:{key_of(name)}")

    def _let_go(self, now: float, said: dict[str, list[bytes]]) -> None:
        with self._mutex:
            idle = self._idle
            surplus = len(idle) - MOST_IDLE
            gone = [name for at, name in enumerate(idle) if at < surplus]
            gone += [name for name, since in idle.items() if now >= since + LINGER]
            for name in gone:
                idle.pop(name, None)
        for name in gone:
            self._unsubscribe(name, said)
            self._names.pop(self._channel(name), None)

    def _say(self, endpoint: str, commands: list[bytes]) -> None:
        try:
            ear = self._ears.get(endpoint)
            if ear is None:
                ear = Ear(
                    self._address_of(endpoint),
                    EAR_BUDGET,
                    lambda said: self._refused(endpoint, said),
                )
                ear.pushed = lambda push: self._pushed(endpoint, push)
                self._ears[endpoint] = ear
            ear.say(commands)
        except BackendError:
            self._drop(endpoint)

    # ---- what is heard -----------------------------------------------------------------------

    def _pushed(self, endpoint: str, push: Any) -> None:
        kind = push[0] if push and isinstance(push[0], bytes) else b""
        if kind in (b"message", b"smessage"):
            delivered([b"message", *push[1:]], self.wakeups)
            return
        channel = push[1].decode(errors="replace") if len(push) > 1 and push[1] else ""
        name = self._names.get(channel)
        if name is None:
            return
        if kind.endswith(b"unsubscribe"):
            # Its slot has gone elsewhere. (What we let go ourselves is not heard there any more.)
            if self._forget(name, endpoint):
                self._hold_back()
        elif kind.endswith(b"subscribe") and self._asked_at.get(name) == endpoint:
            self._pause = 0.0
            # Where it was heard before it still is, until that node ends it: while a slot changes
            # hands two nodes may both believe that it is theirs, and maps say now this, now that.
            self._heard[name] = (endpoint, clock.now())
            for claim_id in list(self._wanted.get(name, ())):
                self.wakeups.wake(claim_id, None)

    def _refused(self, endpoint: str, said: Any) -> None:
        error = explained(said, f"redis at {endpoint}") if isinstance(said, ServerError) else None
        if error is not None and "unknown command" in str(said) and self._sharded:
            log.info("lockfast: redis at %s has no sharded pub/sub: classic is used", endpoint)
            self._sharded = False
            for other in list(self._ears):
                self._drop(other)
        elif isinstance(error, Redirected):
            self._slots.moved(error.slot, self._slots.told(error.endpoint, endpoint))
            for name in list(self._asked_at):
                if slot_of(name) == error.slot:
                    self._forget(name, endpoint)
            self._hold_back()
        else:
            self._drop(endpoint)
            if error is not None and not error.transient:
                # Nobody is there to raise it to; without bells a wake-up takes a refresh.
                log.warning("lockfast: hand-overs will be slow, bells are refused: %s", error)
                self._not_before = clock.now() + REFUSED_PAUSE

    def _forget(self, name: str, endpoint: str) -> bool:
        """It is not heard there any more, nor will be; whether it was, or would have been."""
        was = False
        if self._heard.get(name, ("", 0.0))[0] == endpoint:
            del self._heard[name]
            was = True
        if self._asked_at.get(name) == endpoint:
            del self._asked_at[name]
            was = True
        if name in self._heard and name not in self._asked_at:
            self._asked_at[name] = self._heard[name][0]
        return was

    def _drop(self, endpoint: str) -> None:
        """All that was heard there must be heard elsewhere, or there again."""
        ear = self._ears.pop(endpoint, None)
        if ear is not None:
            ear.close()
        for name in list(self._asked_at):
            self._forget(name, endpoint)
        self._hold_back()

    def _hold_back(self) -> None:
        """Try again soon, less and less often, with a map that is learned meanwhile."""
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._not_before = clock.now() + self._pause
        self._tended = None
        self.lost_their_way = True

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close what is open: who goes on listens again."""
        ears = self._ears
        self._reset()
        for ear in list(ears.values()):
            ear.close()
        self.interrupt()

    def after_fork_in_child(self) -> None:
        """The parent's sockets are the parent's: only our copies of them are closed."""
        self._mutex = threading.Lock()
        for ear in self._ears.values():
            ear.sock.close()
        self._reset()
        self._wanted.clear()
        self._idle.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()

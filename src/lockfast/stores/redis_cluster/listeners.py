"""Listeners: the connections on which a client receives wake-ups, one to each node that serves a
name with a waiter. Only the keeper opens, reads and writes them, so they need no lock. They serve
both APIs: wake-ups are passed on to threads and to tasks.

Wake-ups are sharded pub/sub messages (Redis 7): each client and name has a channel in the name's
slot, which only the node that serves the slot carries. On servers without sharded pub/sub the same
channels are used with the classic commands.

The rules:

1. A subscription counts when the node has confirmed it. From then on claims carry the wake address,
   and all waiters of the name are woken once, to ask again: earlier wake-ups reached nobody.
2. When the slot moves, the node ends the subscription (classic: the map shows the move). The name
   is subscribed at the new node, and rule 1 applies again; likewise after a broken connection. If
   only the map shows a move, the old subscription stays until the new one is confirmed: the map may
   be out of date, and a waiter without any subscription would lose its position in the queue.
3. A name stays subscribed for a while after its last waiter left: a client that waited once is
   likely to wait again.
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
from lockfast.stores.redis.commands import channel_of, deliver, key_of
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.errors import Redirected, ServerError, explained
from lockfast.stores.redis.redis_py import Address
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis_cluster.slots import SlotMap, slot_of
from lockfast.stores.wakeup_pipe import WakeupPipe
from lockfast.stores.wakeups import Wakeups

SEND_BUDGET = 0.25
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
LINGER = 30.0
MOST_IDLE = 1000
REFUSED_PAUSE = 60.0
SUBSCRIBE, UNSUBSCRIBE = "SUBSCRIBE", "UNSUBSCRIBE"

log = logging.getLogger("lockfast")


class Listener(Connection):
    """A connection for subscriptions only: any reply on it that is not a push is a refusal."""

    def __init__(self, address: Address, budget: float, refused: Callable[[Any], None]) -> None:
        super().__init__(address, budget)
        self.refused = refused

    def _read_pushes(self) -> None:
        while (answer := self.reader.gets()) is not False:
            if type(answer) is hiredis.PushNotification:
                self.pushed(answer)
            else:
                self.refused(answer)

    def send_commands(self, commands: list[bytes]) -> None:
        try:
            self._set_limit(SEND_BUDGET)
            self.sock.sendall(b"".join(commands))
        except OSError as error:
            raise self._explained(error, SEND_BUDGET) from error


class Listeners:
    """The listeners of one client. ``listener_id`` is part of its channels' names."""

    def __init__(
        self, slots: SlotMap, address_of: Callable[[str], Address], listener_id: str
    ) -> None:
        self.wakeups = Wakeups()
        self.needs_slot_map = False  # the keeper refreshes the map before it listens again
        self._slots = slots
        self._address_of = address_of
        self._listener_id = listener_id
        self._mutex = threading.Lock()
        self._interrupt = WakeupPipe()
        self._sharded = True
        self._waiters: dict[str, set[str]] = {}  # name → ids of waiting claims
        self._idle: dict[str, float] = {}  # name → when its last waiter left, oldest first
        self._reset()

    def _reset(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._requested: dict[str, str] = {}  # name → endpoint that was asked to subscribe it
        self._confirmed: dict[str, tuple[str, float]] = {}  # name → endpoint that did so, and when
        self._names: dict[str, str] = {}  # channel → name
        self._pause = 0.0
        self._not_before = 0.0
        self._map_version: int | None = None  # of the last update; None: update now
        self._tidy_at = 0.0

    # ---- for waiters -------------------------------------------------------------------------

    def wake_address_of(self, name: str) -> str:
        confirmed = self._confirmed.get(name)
        if confirmed is None:
            return "."
        # '0' matches no node's id, so the release script takes no waiter for dead.
        node = self._slots.id_of(confirmed[0])[:8] or "0"
        return f"{'s' if self._sharded else 'c'}{node}:{self._listener_id}"

    def add_waiter(self, name: str, claim_id: str, since: float) -> bool:
        """Listen for the name from now on. Return True if the subscription was confirmed after
        ``since``: a claim sent then could not carry a wake address, so its waiter must ask again.
        """
        with self._mutex:
            self._waiters.setdefault(name, set()).add(claim_id)
            self._idle.pop(name, None)
        confirmed = self._confirmed.get(name)
        if confirmed is None:
            self._map_version = None
            self.interrupt()
            confirmed = self._confirmed.get(name)  # the keeper may have confirmed it meanwhile
        return confirmed is not None and confirmed[1] > since

    def remove_waiter(self, name: str, claim_id: str) -> None:
        with self._mutex:
            waiting = self._waiters.get(name)
            if waiting is None:
                return
            waiting.discard(claim_id)
            if not waiting:
                del self._waiters[name]
                self._idle[name] = clock.now()

    def interrupt(self) -> None:
        self._interrupt.interrupt()

    # ---- for the keeper ----------------------------------------------------------------------

    def listen(self, timeout: float | None) -> None:
        interrupted, timeout = self._interrupt.ready(timeout)
        timeout = self._update_subscriptions(timeout)
        poller = select.poll()
        poller.register(interrupted, select.POLLIN)
        listeners = {
            listener.sock.fileno(): (endpoint, listener)
            for endpoint, listener in self._listeners.items()
        }
        for descriptor in listeners:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(None if timeout is None else max(timeout, 0.0) * 1000.0):
            if descriptor == interrupted:
                self._interrupt.drain()
                continue
            endpoint, listener = listeners[descriptor]
            if self._listeners.get(endpoint) is listener:
                try:
                    listener.pushes()
                except BaseException as error:
                    self._disconnect(endpoint)
                    if not isinstance(error, BackendError):
                        raise

    def _update_subscriptions(self, timeout: float | None) -> float | None:
        """Subscribe names with waiters at the nodes that serve them now, and unsubscribe names
        without waiters after a while. Return the time-out, cut to the end of a back-off."""
        now = clock.now()
        if now < self._not_before:
            rest = self._not_before - now
            return rest if timeout is None else min(timeout, rest)
        version = self._slots.version
        if self._map_version != version or now >= self._tidy_at:
            self._map_version, self._tidy_at = version, now + LINGER / 2
            outgoing: dict[str, list[bytes]] = {}  # endpoint → commands
            self._unsubscribe_idle(now, outgoing)
            for name in list(self._waiters):
                self._subscribe(name, outgoing)
            for endpoint, commands in outgoing.items():
                self._send(endpoint, commands)
        return timeout

    def _subscribe(self, name: str, outgoing: dict[str, list[bytes]]) -> None:
        endpoint = self._slots.owners[slot_of(name)]
        if not endpoint or endpoint == self._requested.get(name):
            return
        self._requested[name] = endpoint
        self._names[self._channel(name)] = name
        outgoing.setdefault(endpoint, []).append(self._packed(SUBSCRIBE, name))

    def _unsubscribe(self, name: str, outgoing: dict[str, list[bytes]]) -> None:
        endpoints = {self._requested.pop(name, "")}
        endpoints.add(self._confirmed.pop(name, ("", 0.0))[0])
        for endpoint in endpoints & self._listeners.keys():
            outgoing.setdefault(endpoint, []).append(self._packed(UNSUBSCRIBE, name))

    def _packed(self, verb: str, name: str) -> bytes:
        return packed(f"S{verb}" if self._sharded else verb, self._channel(name))

    def _channel(self, name: str) -> str:
        """The channel's name, in the slot of the lock's name: it contains the key's hash tag."""
        return channel_of(f"{self._listener_id}:{key_of(name)}")

    def _unsubscribe_idle(self, now: float, outgoing: dict[str, list[bytes]]) -> None:
        with self._mutex:
            idle = self._idle
            surplus = len(idle) - MOST_IDLE
            gone = [name for at, name in enumerate(idle) if at < surplus]
            gone += [name for name, since in idle.items() if now >= since + LINGER]
            for name in gone:
                idle.pop(name, None)
        for name in gone:
            self._unsubscribe(name, outgoing)
            self._names.pop(self._channel(name), None)

    def _send(self, endpoint: str, commands: list[bytes]) -> None:
        try:
            listener = self._listeners.get(endpoint)
            if listener is None:
                listener = Listener(
                    self._address_of(endpoint),
                    SEND_BUDGET,
                    lambda reply: self._refused(endpoint, reply),
                )
                listener.pushed = lambda push: self._pushed(endpoint, push)
                self._listeners[endpoint] = listener
            listener.send_commands(commands)
        except BackendError:
            self._disconnect(endpoint)

    # ---- messages of the nodes ---------------------------------------------------------------

    def _pushed(self, endpoint: str, push: Any) -> None:
        kind = push[0] if push and isinstance(push[0], bytes) else b""
        if kind in (b"message", b"smessage"):
            deliver([b"message", *push[1:]], self.wakeups)
            return
        channel = push[1].decode(errors="replace") if len(push) > 1 and push[1] else ""
        name = self._names.get(channel)
        if name is None:
            return
        if kind.endswith(b"unsubscribe"):
            # The slot moved away. (Names that we unsubscribed ourselves are forgotten already.)
            if self._forget(name, endpoint):
                self._back_off()
        elif kind.endswith(b"subscribe") and self._requested.get(name) == endpoint:
            self._pause = 0.0
            # An earlier subscription elsewhere stays until that node ends it: while a slot
            # migrates, two nodes may both claim it, and maps alternate between them.
            self._confirmed[name] = (endpoint, clock.now())
            for claim_id in list(self._waiters.get(name, ())):
                self.wakeups.deliver(claim_id, None)

    def _refused(self, endpoint: str, reply: Any) -> None:
        error = explained(reply, f"redis at {endpoint}") if isinstance(reply, ServerError) else None
        if error is not None and "unknown command" in str(reply) and self._sharded:
            log.info(
                "lockfast: redis at %s has no sharded pub/sub: using classic pub/sub", endpoint
            )
            self._sharded = False
            for other in list(self._listeners):
                self._disconnect(other)
        elif isinstance(error, Redirected):
            self._slots.moved(error.slot, self._slots.resolve(error.endpoint, endpoint))
            for name in list(self._requested):
                if slot_of(name) == error.slot:
                    self._forget(name, endpoint)
            self._back_off()
        else:
            self._disconnect(endpoint)
            if error is not None and not error.transient:
                # Not raised: without wake-ups, waiters are served when they refresh.
                log.warning("lockfast: hand-overs will be slow, subscriptions fail: %s", error)
                self._not_before = clock.now() + REFUSED_PAUSE

    def _forget(self, name: str, endpoint: str) -> bool:
        """Forget the name's subscription at an endpoint; return True if there was one."""
        found = False
        if self._confirmed.get(name, ("", 0.0))[0] == endpoint:
            del self._confirmed[name]
            found = True
        if self._requested.get(name) == endpoint:
            del self._requested[name]
            found = True
        if name in self._confirmed and name not in self._requested:
            self._requested[name] = self._confirmed[name][0]
        return found

    def _disconnect(self, endpoint: str) -> None:
        """Close the listener; its names are to be subscribed again, there or elsewhere."""
        listener = self._listeners.pop(endpoint, None)
        if listener is not None:
            listener.close()
        for name in list(self._requested):
            self._forget(name, endpoint)
        self._back_off()

    def _back_off(self) -> None:
        """Pause the updates, longer each time, and have the keeper refresh the map meanwhile."""
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._not_before = clock.now() + self._pause
        self._map_version = None
        self.needs_slot_map = True

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close all listeners; a later waiter opens new ones."""
        listeners = self._listeners
        self._reset()
        for listener in list(listeners.values()):
            listener.close()
        self.interrupt()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of the sockets; the parent keeps using its own."""
        self._mutex = threading.Lock()
        for listener in self._listeners.values():
            listener.sock.close()
        self._reset()
        self._waiters.clear()
        self._idle.clear()
        self.wakeups.clear()
        self._interrupt.after_fork_in_child()

"""Hash slots: the slot of a name, and the node that serves a slot.

All threads and tasks of a client share one map. The map may be out of date: a node that does not
serve a slot answers MOVED. A caller that finds the map wrong refreshes it only if no other thread
or task is doing so or has just done so; otherwise all waiters would ask at once when a master dies.
Nothing blocks here.

A node is identified by its endpoint, 'host:port'.
"""

from __future__ import annotations

import binascii
import functools
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

from lockfast.stores.redis.commands import MALFORMED, key_of

SLOTS = 16384
# A map younger than this many seconds is not refreshed: the nodes know nothing newer.
FRESH = 0.1
# Seconds to wait for a node before asking others whether it has been replaced. Doubled after each
# time-out: a node may be slow permanently, and a slow one is then given the time that it needs.
PATIENCE, MOST_PATIENCE = 0.5, 2.0
Remap = Callable[[tuple[str, int]], tuple[str, int]]


def slot_of_key(key: bytes) -> int:
    """Compute the slot as servers do: of the text between the first { and the next }."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    tag = key[start + 1 : end] if -1 < start < end - 1 else key
    return binascii.crc_hqx(tag, 0) % SLOTS


@functools.lru_cache(maxsize=8192)
def slot_at(key: str) -> int:
    return slot_of_key(key.encode())


@functools.lru_cache(maxsize=8192)
def slot_of(name: str) -> int:
    return slot_at(key_of(name))


def endpoint_of(host: str, port: int) -> str:
    return f"{host}:{port}"


def host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


class SlotMap:
    """The owner of each slot. ``endpoints`` are the user's; the nodes report the others."""

    def __init__(self, endpoints: Iterable[str], remap: Remap | None = None) -> None:
        self.owners: list[str] = [""] * SLOTS
        self.version = 0
        self._seeds = list(dict.fromkeys(endpoints))
        self._ids: dict[str, str] = {}  # endpoint of each master → node id
        self._remap = remap
        self._mutex = threading.Lock()
        self._refreshing = False
        self._refreshed_at = float("-inf")
        self._silent: dict[str, float] = {}  # endpoint → no batch waits for it until then
        self._patience: dict[str, float] = {}  # endpoints that timed out → seconds to wait next

    @property
    def masters(self) -> list[str]:
        return list(self._ids)

    def id_of(self, endpoint: str) -> str:
        return self._ids.get(endpoint, "")

    # ---- reports of the nodes ----------------------------------------------------------------

    def moved(self, slot: int, endpoint: str) -> None:
        if self.owners[slot] != endpoint:
            self.owners[slot] = endpoint
            self.version += 1

    def resolve(self, endpoint: str, asked: str) -> str:
        """Complete an endpoint reported by the node ``asked``: without a host it means its own."""
        host, port = host_and_port(endpoint)
        return self._endpoint(host, port, asked)

    def _endpoint(self, host: str, port: int, asked: str) -> str:
        if host in ("", "?"):
            host = host_and_port(asked)[0]
        return endpoint_of(*(self._remap((host, port)) if self._remap else (host, port)))

    def update(self, reply: Any, asked: str) -> bool:
        """Take over a reply to CLUSTER SLOTS; False if it is malformed or lists no slot."""
        owners, ids = [""] * SLOTS, {}
        try:
            for first, last, (host, port, identity, *_), *_ in reply:
                endpoint = self._endpoint((host or b"").decode(), port, asked)
                ids[endpoint] = identity.decode()
                owners[first : last + 1] = [endpoint] * (last + 1 - first)
            if not ids or len(owners) != SLOTS:
                return False
        except MALFORMED:
            return False
        if owners != self.owners or ids != self._ids:
            self._ids, self.owners = ids, owners
            self.version += 1
        return True

    # ---- refreshing the map ------------------------------------------------------------------

    def begin_refresh(self, now: float) -> bool:
        """Return True if the caller is to refresh the map; it must call `end_refresh` then."""
        with self._mutex:
            if self._refreshing or now < self._refreshed_at + FRESH:
                return False
            self._refreshing = True
            return True

    def end_refresh(self, now: float) -> None:
        self._refreshed_at = now
        self._refreshing = False

    def candidates(self, avoid: str, now: float) -> list[str]:
        """List the nodes to ask for the map. Shuffled, so that clients spread their questions;
        masters first, which learn of changes first; silent nodes and the one to ``avoid`` last."""
        endpoints = list(dict.fromkeys([*self._ids, *self._seeds]))
        random.shuffle(endpoints)

        def reliability(endpoint: str) -> tuple[int, bool]:
            return (endpoint == avoid) + self.is_silent(endpoint, now), endpoint not in self._ids

        return sorted(endpoints, key=reliability)

    # ---- silent nodes ------------------------------------------------------------------------

    def patience(self, endpoint: str) -> float:
        return self._patience.get(endpoint, PATIENCE)

    def mark_answered(self, endpoint: str) -> None:
        if self._patience:
            self._patience.pop(endpoint, None)

    def mark_silent(self, endpoint: str, now: float, waited: float) -> bool:
        """Record that the node did not answer; return True if that took a whole time-out.

        For as long as it took, batches do not wait for the node again: holds at other nodes must
        be renewed meanwhile.
        """
        self._silent[endpoint] = now + waited
        # Callers that waited at the same time count once.
        patience = min(2 * waited, MOST_PATIENCE)
        if patience > self.patience(endpoint):
            self._patience[endpoint] = patience
        return waited >= 0.9 * PATIENCE

    def is_silent(self, endpoint: str, now: float) -> bool:
        return now < self._silent.get(endpoint, now)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._refreshing = False

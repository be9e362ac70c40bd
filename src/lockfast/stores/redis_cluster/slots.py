"""Which slot a name is in, and which node serves a slot.

The map is one for all threads and tasks of a client. It is a belief: the nodes know better, and say
so (MOVED). Nobody waits for anybody here: who finds that it is wrong asks for a new one only if
nobody else is asking, or has just asked; else all waiters would, at once, when a master dies.

A node is known by its seat, 'host:port'.
"""

from __future__ import annotations

import binascii
import functools
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

from lockfast.stores.redis.commands import key_of
from lockfast.stores.redis.replies import NONSENSE

SLOTS = 16384
# Who has just asked for a map knows as much as can be known.
FRESH = 0.1
# How long a node is waited for before others are asked whether it has been replaced. It is doubled
# each time in vain: a node may be slow for good, and one that comes late is asked as it needs.
PATIENCE, MOST_PATIENCE = 0.5, 2.0
Remap = Callable[[tuple[str, int]], tuple[str, int]]


def slot_of_key(key: bytes) -> int:
    """As the servers count: of what stands between the first { and the next }, if anything does."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    tag = key[start + 1 : end] if -1 < start < end - 1 else key
    return binascii.crc_hqx(tag, 0) % SLOTS


@functools.lru_cache(maxsize=8192)
def slot_of(name: str) -> int:
    return slot_of_key(key_of(name).encode())


def endpoint_of(host: str, port: int) -> str:
    return f"{host}:{port}"


def host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


class SlotMap:
    """``seats`` are those that the user named; more are learned."""

    def __init__(self, endpoints: Iterable[str], remap: Remap | None = None) -> None:
        self.owners: list[str] = [""] * SLOTS
        self.version = 0
        self._seeds = list(dict.fromkeys(endpoints))
        self._ids: dict[str, str] = {}  # of the masters
        self._remap = remap
        self._mutex = threading.Lock()
        self._learning = False
        self._learned_at = float("-inf")
        self._silent: dict[str, float] = {}  # seat → until when it is not waited for
        self._patience: dict[str, float] = {}  # of those that were waited for in vain

    @property
    def masters(self) -> list[str]:
        return list(self._ids)

    def id_of(self, endpoint: str) -> str:
        return self._ids.get(endpoint, "")

    # ---- what nodes say ----------------------------------------------------------------------

    def moved(self, slot: int, endpoint: str) -> None:
        if self.owners[slot] != endpoint:
            self.owners[slot] = endpoint
            self.version += 1

    def told(self, endpoint: str, asked: str) -> str:
        """A seat that the node ``asked`` told of; without a host it means its own."""
        host, port = host_and_port(endpoint)
        return self._endpoint(host, port, asked)

    def _endpoint(self, host: str, port: int, asked: str) -> str:
        if host in ("", "?"):
            host = host_and_port(asked)[0]
        return endpoint_of(*(self._remap((host, port)) if self._remap else (host, port)))

    def learn(self, reply: Any, asked: str) -> bool:
        """The answer of CLUSTER SLOTS; False if it is none, or knows of no slot."""
        owners, ids = [""] * SLOTS, {}
        try:
            for first, last, (host, port, identity, *_), *_ in reply:
                endpoint = self._endpoint((host or b"").decode(), port, asked)
                ids[endpoint] = identity.decode()
                owners[first : last + 1] = [endpoint] * (last + 1 - first)
            if not ids or len(owners) != SLOTS:
                return False
        except NONSENSE:
            return False
        if owners != self.owners or ids != self._ids:
            self._ids, self.owners = ids, owners
            self.version += 1
        return True

    # ---- who asks ----------------------------------------------------------------------------

    def begin_to_learn(self, now: float) -> bool:
        """Whether the caller is the one to ask, who says `end_to_learn` then."""
        with self._mutex:
            if self._learning or now < self._learned_at + FRESH:
                return False
            self._learning = True
            return True

    def end_to_learn(self, now: float) -> None:
        self._learned_at = now
        self._learning = False

    def whom_to_ask(self, but: str, now: float) -> list[str]:
        """In any order, so that not all clients ask the same; masters first, who hear of changes
        first; the silent, and the one whose word is in doubt, come last."""
        endpoints = list(dict.fromkeys([*self._ids, *self._seeds]))
        random.shuffle(endpoints)

        def reliability(endpoint: str) -> tuple[int, bool]:
            return (endpoint == but) + self.is_silent(endpoint, now), endpoint not in self._ids

        return sorted(endpoints, key=reliability)

    # ---- who is silent -----------------------------------------------------------------------

    def patience(self, endpoint: str) -> float:
        return self._patience.get(endpoint, PATIENCE)

    def answered(self, endpoint: str) -> None:
        if self._patience:
            self._patience.pop(endpoint, None)

    def silent(self, endpoint: str, now: float, waited: float) -> bool:
        """It was asked in vain; whether it was waited for, too. As long as that took, batches do
        not wait for it again: what is held at other nodes must be renewed meanwhile."""
        self._silent[endpoint] = now + waited
        # Others may have been waiting at the same time: that counts once.
        patience = min(2 * waited, MOST_PATIENCE)
        if patience > self.patience(endpoint):
            self._patience[endpoint] = patience
        return waited >= 0.9 * PATIENCE

    def is_silent(self, endpoint: str, now: float) -> bool:
        return now < self._silent.get(endpoint, now)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._learning = False

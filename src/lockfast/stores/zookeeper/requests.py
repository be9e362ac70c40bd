"""Requests to ZooKeeper and its refusals, as plain values: the interface between the verbs, which
know no driver, and the session, which sends them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

# Called on the session's thread when a watch fires: must not block. A wake-up is only a hint.
WatchCallback = Callable[[object], None]


class Stat(Protocol):
    """The metadata of a node. Times are milliseconds on the leader's wall clock."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    ephemeralOwner: int


class Refusal(enum.Enum):
    """A refusal that the verbs handle. Every other one raises `BackendError`."""

    NO_NODE = "there is no such node"
    NODE_EXISTS = "there is such a node already"
    NOT_EMPTY = "it is not empty"
    BAD_VERSION = "it was changed since"
    ROLLED_BACK = "another part of the transaction was refused"


class Kind(enum.Enum):
    """The kind of a node, as the protocol numbers them."""

    PERSISTENT = 0
    EPHEMERAL = 1
    SEQUENTIAL = 2  # persistent, with a number that the server appends
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4


class CreateObserver(Protocol):
    """Notified of the fate of a create request, even if its caller stopped waiting for the answer.
    `created` is called on the session's thread; None means that the node may exist."""

    def sent(self) -> None: ...

    def created(self, answer: tuple[str, Stat] | Refusal | None) -> None: ...


class Create(NamedTuple):
    """Answered with the path and the Stat."""

    path: str
    data: bytes
    kind: Kind
    observer: CreateObserver | None = None


class Delete(NamedTuple):
    path: str
    version: int = -1


class Exists(NamedTuple):
    """Answered with the Stat, or None. Watched in either case."""

    path: str
    wake: WatchCallback | None = None


class Get(NamedTuple):
    """Answered with the data and the Stat. Watched if the node exists."""

    path: str
    wake: WatchCallback | None = None


class Put(NamedTuple):
    """Answered with the new Stat."""

    path: str
    data: bytes
    version: int = -1


class Children(NamedTuple):
    """Answered with the names of the children and the Stat of the parent."""

    path: str
    wake: WatchCallback | None = None


class Sync(NamedTuple):
    """Answered when the connected server has applied every change decided before."""

    path: str


class Check(NamedTuple):
    """A part of a transaction, which is refused unless the node's data has this version."""

    path: str
    version: int


class Transaction(NamedTuple):
    """All of the requests atomically, or none. Answered with True, or with the first refusal."""

    requests: tuple[Create | Delete | Put | Check, ...]


Request = Create | Delete | Exists | Get | Put | Children | Sync | Transaction

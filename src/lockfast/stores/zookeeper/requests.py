"""What is asked of ZooKeeper, as plain values, and what it refuses: the words between the verbs,
which know no driver, and the session, which sends them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

# Called when a watch fires, on the session's thread: it must not block. What it is told of the
# event it need not look at: a bell is a hint.
Ring = Callable[[object], None]


class Stat(Protocol):
    """What ZooKeeper knows of a node. Times are milliseconds of the leader's wall clock."""

    @property
    def czxid(self) -> int: ...

    @property
    def mzxid(self) -> int: ...

    @property
    def ctime(self) -> int: ...

    @property
    def mtime(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def ephemeralOwner(self) -> int: ...


class No(enum.Enum):
    """A refusal that a verb understands. Every other one raises `BackendError`."""

    NODE = "there is no such node"
    EXISTS = "there is such a node already"
    EMPTY = "it is not empty"
    VERSION = "it was changed since"
    ROLLED_BACK = "another part of the transaction was refused"


class Kind(enum.Enum):
    EPHEMERAL = 1
    NUMBERED = 2  # persistent, with a number that the server appends
    PLACE = 3  # ephemeral, and with a number
    CONTAINER = 4
    PERSISTENT = 0


class Maker(Protocol):
    """Whose node is made, and who is told what becomes of that also when nobody waits for the
    answer any more. `made` comes on the session's thread; None: it may have been done."""

    def sent(self) -> None: ...

    def made(self, answer: tuple[str, Stat] | No | None) -> None: ...


class Create(NamedTuple):
    """Answered by the path and the Stat."""

    path: str
    data: bytes
    kind: Kind
    maker: Maker | None = None


class Delete(NamedTuple):
    path: str
    version: int = -1


class Exists(NamedTuple):
    """Answered by the Stat, or None. Watched in either case."""

    path: str
    wake: Ring | None = None


class Get(NamedTuple):
    """Answered by the data and the Stat. Watched if it is there."""

    path: str
    wake: Ring | None = None


class Put(NamedTuple):
    """Answered by the new Stat."""

    path: str
    data: bytes
    version: int = -1


class Children(NamedTuple):
    """Answered by the names and the Stat of the parent."""

    path: str
    wake: Ring | None = None


class Sync(NamedTuple):
    """Answered when the server that we speak to knows all that was decided before."""

    path: str


class Together(NamedTuple):
    """All of them in one step, or none. Answered by True, or by the first refusal."""

    requests: tuple[Create | Delete | Put, ...]


Request = Create | Delete | Exists | Get | Put | Children | Sync | Together

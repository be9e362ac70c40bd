"""The opened store: ``redlock://a:6379,b:6379,c:6379`` or a list of redis-py's clients."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from lockfast import clock, forks
from lockfast.core.ports import Signal
from lockfast.errors import ConfigurationError
from lockfast.stores.health_checks import HealthCheck
from lockfast.stores.redis.connections import Address
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redis.store import (
    CHECK_BUDGET,
    address_of_client,
    address_of_url,
    warn_of_eviction,
)
from lockfast.stores.redis.task_connection import TaskConnection
from lockfast.stores.redlock.backend import QuorumBackend
from lockfast.stores.redlock.connections import NodeConnection, PendingReply
from lockfast.stores.redlock.tasks import TaskVoters
from lockfast.stores.redlock.threads import BlockingVoters
from lockfast.stores.redlock.voting import Ballots

# Default, in seconds. A node that lost its data does not vote for this long, so it is kept short.
LONGEST_LEASE = 60.0
# Seconds for which the last fence of a name is remembered.
MOST_LONGEST = 90.0
SCHEMES = {"redlock": "redis", "redlocks": "rediss"}
EXAMPLE = "redlock://user:password@a:6379,b:6379,c:6379/0 is one, redlocks:// with TLS"


class QuorumStore:
    """One client's view of a quorum of N servers."""

    def __init__(self, addresses: Sequence[Address], longest: float) -> None:
        self._addresses = addresses
        self._longest = longest
        self.url = "redlock of " + ", ".join(
            address.where.removeprefix("redis at ") for address in addresses
        )
        self._ballots = Ballots(secrets.token_hex(8))
        self._voters: weakref.WeakSet[BlockingVoters | TaskVoters] = weakref.WeakSet()
        self._checked: set[int] = set()
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> QuorumBackend:
        voters = BlockingVoters(self._addresses, secrets.token_hex(8), self._check)
        self._voters.add(voters)
        return QuorumBackend(voters, self._ballots, self._longest)

    def tasks(self, signal: Callable[[], Signal]) -> QuorumBackend:
        voters = TaskVoters(self._addresses, secrets.token_hex(8), self._check_later)
        self._voters.add(voters)
        return QuorumBackend(voters, self._ballots, self._longest)

    # ---- checks for operators -----------------------------------------------------------------

    def _check(self, node: int, connection: NodeConnection) -> None:
        """Ask each node once whether it may evict keys; the reply is read when it arrives."""
        if node not in self._checked:
            self._checked.add(node)
            where = self._addresses[node].where

            def check(info: object) -> None:
                warn_of_eviction(where, info)

            connection.write(packed("INFO", "memory"), PendingReply(check, clock.now(), None))

    def _check_later(self, node: int, connection: TaskConnection) -> None:
        if node not in self._checked:
            self._checked.add(node)
            info = connection.ask(packed("INFO", "memory"), CHECK_BUDGET)
            info.add_done_callback(lambda done: self._checked_later(node, done))

    def _checked_later(self, node: int, info: Any) -> None:
        if not info.cancelled() and info.exception() is None:
            warn_of_eviction(self._addresses[node].where, info.result())

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the nodes for settings that endanger locks."""
        from lockfast.stores.redlock.health import health_checks  # only the doctor needs it

        return health_checks(self._addresses)

    def before_fork(self) -> None:
        """Do nothing: the child discards its copies of connections and state."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps its connections."""

    def after_fork_in_child(self) -> None:
        self._ballots.__init__(secrets.token_hex(8))  # type: ignore[misc]
        for voters in list(self._voters):
            voters.after_fork_in_child()


def open_redlock(url: str) -> QuorumStore:
    """Open ``redlock://[[user]:password@]a[:port],b[:port],c[:port][/db][?options]``. Credentials,
    database and options apply to all hosts; the options are redis-py's and ``longest_lease``."""
    try:
        parts = urlsplit(url)
        options = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        parts = None
    if parts is None or parts.fragment:  # outside the handler: its error may quote a password
        raise ConfigurationError(f"not a Redlock URL: {EXAMPLE}")
    user, at, hosts = parts.netloc.rpartition("@")
    longest = _checked_longest(options.pop("longest_lease", LONGEST_LEASE))
    names = [name.strip() for name in hosts.split(",")] if hosts else []
    if not all(names):
        raise ConfigurationError(f"not a Redlock URL: a host is missing; {EXAMPLE}")
    _check_number(names)
    tail = f"{parts.path}{'?' + urlencode(options) if options else ''}"
    scheme = SCHEMES[parts.scheme]
    addresses = [address_of_url(f"{scheme}://{user}{at}{name}{tail}") for name in names]
    return _open(addresses, longest)


def open_redlock_clients(clients: Sequence[object]) -> QuorumStore:
    """Open a quorum through one redis-py client per node, sync or async."""
    _check_number(clients)
    addresses = []
    for client in clients:
        address = address_of_client(client)
        if not isinstance(address, Address):
            raise ConfigurationError(
                "nodes of a quorum are independent servers, not masters behind Sentinel"
            )
        addresses.append(address)
    return _open(addresses, LONGEST_LEASE)


def _open(addresses: Sequence[Address], longest: float) -> QuorumStore:
    for address in addresses:
        address.check()
    wheres = [address.where for address in addresses]
    double = next((where for where in wheres if wheres.count(where) > 1), None)
    if double:
        raise ConfigurationError(
            f"{double} is named twice: each node has one vote, so they must be independent servers"
        )
    return QuorumStore(addresses, longest)


def _check_number(nodes: Sequence[object]) -> None:
    number = len(nodes)
    if number >= 3 and number % 2:
        return
    if number < 3:
        why = "with fewer than three none may fail, so use a single server: redis://"
    else:
        why = f"{number} survive no more failures than {number - 1}, and need a larger majority"
    raise ConfigurationError(
        f"Redlock takes an odd number of nodes, 3 or more, not {number}: {why}"
    )


def _checked_longest(value: object) -> float:
    try:
        longest = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        longest = 0.0
    if not 0.01 <= longest <= MOST_LONGEST:
        raise ConfigurationError(
            f"longest_lease={value!r}: expected seconds, 0.01 to {MOST_LONGEST:g}, since the last "
            f"fence of a name is remembered for {MOST_LONGEST:g} s"
        )
    return longest

"""Which servers: ``redlock://a:6379,b:6379,c:6379`` and lists of redis-py's clients."""

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
from lockfast.stores.redis.task_connection import TaskLink
from lockfast.stores.redlock.backend import QuorumBackend
from lockfast.stores.redlock.connections import NodeLink, Owed
from lockfast.stores.redlock.tasks import TaskVoters
from lockfast.stores.redlock.threads import BlockingVoters
from lockfast.stores.redlock.voting import Asks

# A minute is the longest that anybody should have to wait for a node that came back empty.
LONGEST_LEASE = 60.0
# So long is the last fence of a name remembered.
MOST_LONGEST = 90.0
SCHEMES = {"redlock": "redis", "redlocks": "rediss"}
EXAMPLE = "redlock://user:password@a:6379,b:6379,c:6379/0 is one, redlocks:// with TLS"


class QuorumStore:
    """N servers, seen by one client."""

    def __init__(self, addresses: Sequence[Address], longest: float) -> None:
        self._addresses = addresses
        self._longest = longest
        self.url = "redlock of " + ", ".join(
            address.where.removeprefix("redis at ") for address in addresses
        )
        self._asks = Asks(secrets.token_hex(8))
        self._voters: weakref.WeakSet[BlockingVoters | TaskVoters] = weakref.WeakSet()
        self._checked: set[int] = set()
        forks.remember(self)

    def blocking(self, signal: Callable[[], Signal]) -> QuorumBackend:
        voters = BlockingVoters(self._addresses, secrets.token_hex(8), self._check)
        self._voters.add(voters)
        return QuorumBackend(voters, self._asks, self._longest)

    def tasks(self, signal: Callable[[], Signal]) -> QuorumBackend:
        voters = TaskVoters(self._addresses, secrets.token_hex(8), self._check_later)
        self._voters.add(voters)
        return QuorumBackend(voters, self._asks, self._longest)

    # ---- what an operator should know ---------------------------------------------------------

    def _check(self, node: int, link: NodeLink) -> None:
        """Once per node: could it throw locks away? The answer is looked at when it comes."""
        if node not in self._checked:
            self._checked.add(node)
            where = self._addresses[node].where

            def look(info: object) -> None:
                warn_of_eviction(where, info)

            link.write(packed("INFO", "memory"), Owed(look, clock.now(), None))

    def _check_later(self, node: int, link: TaskLink) -> None:
        if node not in self._checked:
            self._checked.add(node)
            info = link.ask(packed("INFO", "memory"), CHECK_BUDGET)
            info.add_done_callback(lambda done: self._checked_later(node, done))

    def _checked_later(self, node: int, info: Any) -> None:
        if not info.cancelled() and info.exception() is None:
            warn_of_eviction(self._addresses[node].where, info.result())

    def health_checks(self) -> Iterator[HealthCheck]:
        """What an examination of the nodes finds."""
        from lockfast.stores.redlock.health import health_checks  # only the doctor needs it

        return health_checks(self._addresses)

    def before_fork(self) -> None:
        """Nothing to rest: what crosses a fork is dropped in the child."""

    def after_fork_in_parent(self) -> None:
        """The parent goes on."""

    def after_fork_in_child(self) -> None:
        self._asks.__init__(secrets.token_hex(8))  # type: ignore[misc]
        for voters in list(self._voters):
            voters.after_fork_in_child()


def open_redlock(url: str) -> QuorumStore:
    """``redlock://[[user]:password@]a[:port],b[:port],c[:port][/db][?options]``: what stands before
    the hosts and behind them is for all of them; the options are redis-py's, and
    ``longest_lease``."""
    try:
        parts = urlsplit(url)
        said = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        parts = None
    if parts is None or parts.fragment:  # not in the handler: what was caught may quote a password
        raise ConfigurationError(f"not a Redlock URL: {EXAMPLE}")
    user, at, hosts = parts.netloc.rpartition("@")
    longest = _checked_longest(said.pop("longest_lease", LONGEST_LEASE))
    names = [name.strip() for name in hosts.split(",")] if hosts else []
    if not all(names):
        raise ConfigurationError(f"not a Redlock URL: a host is missing; {EXAMPLE}")
    _check_number(names)
    tail = f"{parts.path}{'?' + urlencode(said) if said else ''}"
    scheme = SCHEMES[parts.scheme]
    addresses = [address_of_url(f"{scheme}://{user}{at}{name}{tail}") for name in names]
    return _open(addresses, longest)


def open_redlock_clients(clients: Sequence[object]) -> QuorumStore:
    """One client of redis-py for each node, of either colour."""
    _check_number(clients)
    addresses = []
    for client in clients:
        address = address_of_client(client)
        if not isinstance(address, Address):
            raise ConfigurationError(
                "nodes of a quorum are independent servers: not one that sentinels replace"
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
        why = "of fewer than three none may fail, so one server alone does as well: redis://"
    else:
        why = f"{number} survive no more failures than {number - 1}, and need a greater majority"
    raise ConfigurationError(
        f"Redlock takes an odd number of nodes, 3 or more, not {number}: {why}"
    )


def _checked_longest(said: object) -> float:
    try:
        longest = float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        longest = 0.0
    if not 0.01 <= longest <= MOST_LONGEST:
        raise ConfigurationError(
            f"longest_lease={said!r}: seconds, at most {MOST_LONGEST:g}: so long is the last fence "
            "of a name remembered"
        )
    return longest

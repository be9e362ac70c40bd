"""The opened store: ``redlock://a:6379,b:6379,c:6379`` or a list of redis-py's clients."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from lockfast import forks
from lockfast.core.ports import Signal
from lockfast.errors import BackendError, ConfigurationError
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.commands import Call
from lockfast.stores.redis.connections import Connection
from lockfast.stores.redis.endpoint import (
    CHECK_BUDGET,
    address_of_client,
    address_of_url,
    warn_of_eviction,
)
from lockfast.stores.redis.redis_py import Address
from lockfast.stores.redis.scripts import packed
from lockfast.stores.redlock.nodes import Ask
from lockfast.stores.redlock.store import QuorumStore
from lockfast.stores.redlock.tasks import TaskNodes
from lockfast.stores.redlock.threads import ThreadNodes
from lockfast.stores.redlock.votes import Count
from lockfast.stores.redlock.voting import Ballots

# Default, in seconds. A node that lost its data does not vote for this long, so it is kept short.
LONGEST_LEASE = 60.0
# Seconds for which the last fence of a name is remembered.
MOST_LONGEST = 90.0
SCHEMES = {"redlock": "redis", "redlocks": "rediss"}
EXAMPLE = "redlock://user:password@a:6379,b:6379,c:6379/0 is one, redlocks:// with TLS"


class QuorumEndpoint(Endpoint):
    """One client's view of a quorum of N servers."""

    def __init__(self, addresses: Sequence[Address], longest: float) -> None:
        self._addresses = addresses
        self._longest = longest
        self.url = "redlock of " + ", ".join(
            address.where.removeprefix("redis at ") for address in addresses
        )
        self._ballots = Ballots(secrets.token_hex(8))
        self._nodes: weakref.WeakSet[ThreadNodes | TaskNodes] = weakref.WeakSet()
        self._checked: set[int] = set()
        forks.register(self)

    def blocking(self, signal: Callable[[], Signal]) -> QuorumStore:
        return self._store(ThreadNodes)

    def tasks(self, signal: Callable[[], Signal]) -> QuorumStore:
        return self._store(TaskNodes)

    def _store(self, kind: type[ThreadNodes] | type[TaskNodes]) -> QuorumStore:
        nodes = kind(self._addresses, secrets.token_hex(8), self._first_ask)
        self._nodes.add(nodes)
        return QuorumStore(nodes, self._ballots, self._longest)

    # ---- checks for operators -----------------------------------------------------------------

    def _first_ask(self, node: int) -> Ask | None:
        """Ask each node once whether it may evict keys."""
        if node in self._checked:
            return None
        self._checked.add(node)
        info = Call(None, packed("INFO", "memory"), 0)
        ask = Ask([info if n == node else None for n in range(node + 1)], Count(node + 1))
        ask.late = lambda _, reply: warn_of_eviction(self._addresses[node].where, reply)
        return ask

    def health_checks(self) -> Iterator[HealthCheck]:
        """Check the nodes for settings that endanger locks."""
        from lockfast.stores.redis.health import gathered  # only the doctor needs it

        servers: dict[str, str] = {}
        nodes = {one.endpoint: _check_node(one, servers) for one in self._addresses}
        return gathered(nodes, "nodes")

    def after_fork_in_child(self) -> None:
        self._ballots.__init__(secrets.token_hex(8))  # type: ignore[misc]
        for nodes in list(self._nodes):
            nodes.after_fork_in_child()


def open_redlock(url: str) -> QuorumEndpoint:
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


def open_redlock_clients(clients: Sequence[object]) -> QuorumEndpoint:
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


def _open(addresses: Sequence[Address], longest: float) -> QuorumEndpoint:
    for address in addresses:
        address.check()
    wheres = [address.where for address in addresses]
    double = next((where for where in wheres if wheres.count(where) > 1), None)
    if double:
        raise ConfigurationError(
            f"{double} is named twice: each node has one vote, so they must be independent servers"
        )
    return QuorumEndpoint(addresses, longest)


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


def _check_node(address: Address, servers: dict[str, str]) -> Iterator[HealthCheck]:
    """Check one node, and that it is another server than the nodes before: a server under two
    addresses would have two votes. ``servers`` maps the run ids of those to their addresses."""
    from lockfast.stores.redis.health import examined

    try:
        connection = Connection(address, CHECK_BUDGET)
    except BackendError as error:
        yield bad(
            "contact",
            f"{error}: it cannot vote, so fewer other nodes may fail",
            "check that it runs and can be reached from here",
        )
        return
    try:
        run_id = _run_id(connection.ask(packed("INFO", "server"), CHECK_BUDGET))
        if run_id:
            other = servers.setdefault(run_id, address.endpoint)
            if other != address.endpoint:
                yield bad(
                    "votes",
                    f"it is the same server as {other}, and has two votes",
                    "name independent servers",
                )
        yield from examined(connection)
    except BackendError as error:
        yield bad("contact", str(error), "run the check again")
    finally:
        connection.close()


def _run_id(info: Any) -> str:
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name == "run_id"), "")

"""Health checks of Redlock's nodes: each node, and whether the nodes are different servers. A
server under two addresses would have two votes, and could be a majority by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.connections import Address, Connection
from lockfast.stores.redis.health import examined, gathered
from lockfast.stores.redis.scripts import packed

BUDGET = 2.0


def health_checks(addresses: Sequence[Address]) -> Iterator[HealthCheck]:
    servers: dict[str, str] = {}
    return gathered(
        {address.endpoint: _of_node(address, servers) for address in addresses}, "nodes"
    )


def _of_node(address: Address, servers: dict[str, str]) -> Iterator[HealthCheck]:
    """Check one node. ``servers`` maps run ids of nodes checked so far to addresses."""
    try:
        connection = Connection(address, BUDGET)
    except BackendError as error:
        yield bad(
            "contact",
            f"{error}: it cannot vote, so fewer other nodes may fail",
            "check that it runs and can be reached from here",
        )
        return
    try:
        run_id = _run_id(connection.ask(packed("INFO", "server"), BUDGET))
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

"""Are these Redises fit for Redlock? Each node is examined for itself, and whether they are several
servers at all: two addresses of one would give it two votes, and a majority could be of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.connections import Address, Link
from lockfast.stores.redis.health import examined, gathered
from lockfast.stores.redis.scripts import packed

BUDGET = 2.0


def health_checks(addresses: Sequence[Address]) -> Iterator[HealthCheck]:
    servers: dict[str, str] = {}
    return gathered(
        {address.endpoint: _of_node(address, servers) for address in addresses}, "nodes"
    )


def _of_node(address: Address, servers: dict[str, str]) -> Iterator[HealthCheck]:
    """``servers``: the addresses of those that were examined, by what they call themselves."""
    try:
        link = Link(address, BUDGET)
    except BackendError as error:
        yield bad(
            "contact",
            f"{error}: it cannot vote, and fewer may fail now",
            "see that it runs, and can be reached from here",
        )
        return
    try:
        run_id = _run_id(link.ask(packed("INFO", "server"), BUDGET))
        if run_id:
            other = servers.setdefault(run_id, address.endpoint)
            if other != address.endpoint:
                yield bad(
                    "votes",
                    f"it is the same server as {other}, and has two votes",
                    "name servers that do not depend on each other",
                )
        yield from examined(link)
    except BackendError as error:
        yield bad("contact", str(error), "look again")
    finally:
        link.close()


def _run_id(info: Any) -> str:
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in lines if name == "run_id"), "")

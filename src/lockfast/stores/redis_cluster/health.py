"""Is this Redis Cluster fit for locks? Each master is examined for itself, and what is found on
several is told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.connections import Address, Link
from lockfast.stores.redis.health import examined, gathered
from lockfast.stores.redis.scripts import packed

BUDGET = 2.0


def health_checks(
    address_of: Callable[[str], Address], masters: Sequence[str]
) -> Iterator[HealthCheck]:
    return gathered({endpoint: _of_node(address_of(endpoint)) for endpoint in masters}, "masters")


def _of_node(address: Address) -> Iterator[HealthCheck]:
    try:
        link = Link(address, BUDGET)
    except BackendError as error:
        yield bad("contact", str(error), "see that it runs, and can be reached from here")
        return
    try:
        said = link.ask(packed("CLUSTER", "INFO"), BUDGET)
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        if "cluster_state:fail" in text:
            yield bad(
                "cluster",
                "the cluster is down: slots are served by nobody",
                "look at CLUSTER NODES and CLUSTER SLOTS",
            )
        yield from examined(link, clustered=True)
    except BackendError as error:
        yield bad("contact", str(error), "look again")
    finally:
        link.close()

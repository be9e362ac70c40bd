"""Health checks of a Redis Cluster's masters; equal results are reported once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lockfast.errors import BackendError
from lockfast.stores.health_checks import HealthCheck, bad
from lockfast.stores.redis.connections import Address, Connection
from lockfast.stores.redis.health import examined, gathered
from lockfast.stores.redis.scripts import packed

BUDGET = 2.0


def health_checks(
    address_of: Callable[[str], Address], masters: Sequence[str]
) -> Iterator[HealthCheck]:
    return gathered({endpoint: _of_node(address_of(endpoint)) for endpoint in masters}, "masters")


def _of_node(address: Address) -> Iterator[HealthCheck]:
    try:
        connection = Connection(address, BUDGET)
    except BackendError as error:
        yield bad("contact", str(error), "check that it runs and can be reached from here")
        return
    try:
        reply = connection.ask(packed("CLUSTER", "INFO"), BUDGET)
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
        if "cluster_state:fail" in text:
            yield bad(
                "cluster",
                "the cluster is down: no node serves some of the slots",
                "inspect CLUSTER NODES and CLUSTER SLOTS",
            )
        yield from examined(connection, clustered=True)
    except BackendError as error:
        yield bad("contact", str(error), "run the check again")
    finally:
        connection.close()

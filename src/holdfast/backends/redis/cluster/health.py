"""Is this Redis Cluster fit for locks? Each master is examined for itself, and what is found on
several is told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.backends.findings import Finding, bad
from holdfast.backends.redis.health import examined, gathered
from holdfast.backends.redis.links import Address, Link
from holdfast.backends.redis.scripts import packed
from holdfast.errors import BackendError

BUDGET = 2.0


def findings(address_of: Callable[[str], Address], masters: Sequence[str]) -> Iterator[Finding]:
    return gathered({seat: _of_node(address_of(seat)) for seat in masters}, "masters")


def _of_node(address: Address) -> Iterator[Finding]:
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

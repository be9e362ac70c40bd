"""Is this Redis Cluster fit for locks? Each master is examined for itself, and what is found on
several is told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.backends.findings import Finding, Level, bad, ok
from holdfast.backends.redis.health import examined
from holdfast.backends.redis.links import Address, Link
from holdfast.backends.redis.scripts import packed
from holdfast.errors import BackendError

BUDGET = 2.0


def findings(address_of: Callable[[str], Address], masters: Sequence[str]) -> Iterator[Finding]:
    seats: dict[tuple[Level, str, str, str], list[str]] = {}
    for seat in masters:
        for one in _of_node(address_of(seat)):
            if one.level is not Level.OK:  # what is fine need not be told of each
                seats.setdefault((one.level, one.about, one.found, one.do), []).append(seat)
    yield ok("masters", f"{len(masters)}: {', '.join(masters)}")
    for (level, about, found, do), found_at in seats.items():
        where = "all masters" if len(found_at) == len(masters) else ", ".join(found_at)
        yield Finding(level, about, f"{where}: {found}", do)


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

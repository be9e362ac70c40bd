"""The conformance suite: what every store gives its users, on both APIs, from one set of cases.

    @pytest.mark.parametrize("case, face", cases_for("host"))
    def test_conformance(case, face, fresh_url):
        run_case(case, face, fresh_url)

A case gets a fresh store by URL. It is an ``async def`` over a `World`, and runs unchanged in
threads and in asyncio, as the library's own core does.
"""

from lab.conformance import (
    barriers,
    decorated,
    elections,
    expiring,
    inputs,
    inspection,
    latches,
    leases,
    locks,
    loss,
    multi,
    multi_ends,
    periods,
    processes,
    readers,
    readwrite,
    scheduled,
    semaphores,
    waiting,
)
from lab.conformance.cases import CASES, Case, cases_for, run_case
from lab.conformance.worlds import WORLDS

APIS = tuple(WORLDS)

__all__ = [
    "APIS",
    "CASES",
    "Case",
    "barriers",
    "cases_for",
    "decorated",
    "elections",
    "expiring",
    "inputs",
    "inspection",
    "latches",
    "leases",
    "locks",
    "loss",
    "multi",
    "multi_ends",
    "periods",
    "processes",
    "readers",
    "readwrite",
    "run_case",
    "scheduled",
    "semaphores",
    "waiting",
]

"""The conformance suite: one set of cases that every store must pass, in both APIs.

    @pytest.mark.parametrize("case, api", cases_for("host"))
    def test_conformance(case, api, fresh_url):
        run_case(case, api, fresh_url)

Each case gets the URL of an empty store. A case is an ``async def`` over a `World` and runs
unchanged in threads and in asyncio, like the library's own core.
"""

from lab.conformance import (
    barriers,
    decorated,
    elections,
    inputs,
    inspection,
    latches,
    leases,
    locks,
    loss,
    multi,
    multi_failures,
    once_every,
    once_every_arguments,
    permits,
    processes,
    readwrite,
    readwrite_lifetime,
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
    "inputs",
    "inspection",
    "latches",
    "leases",
    "locks",
    "loss",
    "multi",
    "multi_failures",
    "once_every",
    "once_every_arguments",
    "permits",
    "processes",
    "readwrite",
    "readwrite_lifetime",
    "run_case",
    "semaphores",
    "waiting",
]

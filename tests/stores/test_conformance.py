"""The conformance cases on every store, through both APIs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import coverage
import pytest

import lockfast
from every_store import LACKS, STORES
from lab.conformance import cases_for, run_case

# Measuring coverage doubles the run time. The law, the core and the APIs are the same for every
# store, and a store's own tests measure the store.
MEASURED = (
    "memory-blocking", "memory-asyncio", "sqlite-blocking", "sqlite-asyncio", "redis-asyncio",
    "zookeeper-blocking", "postgres-asyncio", "mariadb-blocking", "mariadb-asyncio",
    "redlock-blocking", "redlock-asyncio",
)  # fmt: skip
# The cases start many processes; only those of one store are measured.
WITH_CHILDREN = "sqlite-blocking"


@pytest.fixture(autouse=True)
def measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    measure = coverage.Coverage.current()
    test = request.node.name
    if f"[{WITH_CHILDREN}-" not in test:
        monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
    if measure is None or any(f"[{each}-" in test for each in MEASURED):
        yield
        return
    measure.stop()
    yield
    measure.start()


# Three stores are variants of Redis: each case runs there in one of the two APIs only, chosen by
# the case's name, unless CONFORMANCE=all.
REDIS_VARIANTS = {"cluster": 0, "sentinel": 1, "redlock": 0}
ALL = os.environ.get("CONFORMANCE") == "all"


def chosen(store, across):
    pairs = list(cases_for(across, LACKS.get(store, ())))
    names = [case.name for case, _ in pairs]
    for case, api in pairs:
        choice = (zlib.crc32(case.name.encode()) + REDIS_VARIANTS.get(store, 0)) % 2
        selected = api == ("blocking", "asyncio")[choice] or names.count(case.name) == 1
        if ALL or store not in REDIS_VARIANTS or selected:
            yield case, api


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "store, case, api",
    [
        pytest.param(store, case, api, id=f"{store}-{api}-{case.name}")
        for store, (across, _) in STORES.items()
        for case, api in chosen(store, across)
    ],
)
def test_conformance(store, case, api, tmp_path, request):
    run_case(case, api, STORES[store][1](tmp_path, request.getfixturevalue))


@pytest.mark.parametrize("store", STORES)
def test_capabilities_name_the_scope_of_a_store_and_the_features_it_refuses(
    store, tmp_path, request
):
    across, fresh_url = STORES[store]
    url = fresh_url(tmp_path, request.getfixturevalue)
    with lockfast.connect(url) as client:
        assert client.capabilities.across == across
        order = () if client.capabilities.fair else ("arrival order",)
        assert (*order, *sorted(client.capabilities.refuses)) == LACKS.get(store, ())

"""Every store and both APIs, through one set of cases."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator

import coverage
import pytest

import lockfast

pytest.register_assert_rewrite("lab.conformance")

from lab.conformance import cases_for, run_case  # noqa: E402

_number = itertools.count()

# A store takes part with one line: how far it reaches, and how to make the URL of a fresh one, from
# a folder and from the servers that are running. The slowest come first, for the sake of balance.
STORES = {
    "mariadb": ("network", lambda _, server: without_tables(server("mariadb_server")).url),
    "postgres": ("network", lambda _, server: without_tables(server("postgres_server")).url),
    "zookeeper": (
        "network",
        lambda _, server: f"{server('zookeeper_server').url}/conformance-{next(_number)}",
    ),
    "cluster": ("network", lambda _, server: server("redis_cluster").emptied().url),
    # With replicas counted, so that one run covers both.
    "sentinel": (
        "network",
        lambda _, server: f"{emptied(server('redis_sentinels')).url}?replicas=1",
    ),
    "redlock": ("network", lambda _, server: founded(emptied(server("redlock_servers"))).url),
    "redis": ("network", lambda _, server: emptied(server("redis_server")).url),
    "sqlite": ("host", lambda path, _: f"sqlite://{path}/locks.db"),
    "memory": ("process", lambda path, _: f"memory://conformance-{next(_number)}"),
}
# What a store does not give, as its capabilities say; that it refuses it is a case of its own.
LACKS = {
    "redlock": ("arrival order", "barrier", "latch", "once_every", "permits", "semaphore"),
}


# To measure costs as much again as to run: the law, the core and the APIs are the same everywhere,
# and a store's own tests measure the store.
MEASURED = (
    "memory-blocking", "memory-asyncio", "sqlite-blocking", "sqlite-asyncio", "redis-asyncio",
    "zookeeper-blocking", "postgres-asyncio", "mariadb-blocking", "mariadb-asyncio",
    "redlock-blocking", "redlock-asyncio",
)  # fmt: skip
# Of the many processes that the cases start, those of one store are measured.
WITH_CHILDREN = "sqlite-blocking"


@pytest.fixture(autouse=True)
def measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    measure = coverage.Coverage.current()
    said = request.node.name
    if f"[{WITH_CHILDREN}-" not in said:
        monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
    if measure is None or any(f"[{each}-" in said for each in MEASURED):
        yield
        return
    measure.stop()
    yield
    measure.start()


# Three stores are Redis in other clothes: there each case is run in one of the APIs, now this, now
# that, unless all are asked for.
CLOTHES = {"cluster": 0, "sentinel": 1, "redlock": 0}
ALL = os.environ.get("CONFORMANCE") == "all"


def chosen(store, across):
    pairs = list(cases_for(across, LACKS.get(store, ())))
    names = [case.name for case, _ in pairs]
    for case, api in pairs:
        turn = (zlib.crc32(case.name.encode()) + CLOTHES.get(store, 0)) % 2
        mine = api == ("blocking", "asyncio")[turn] or names.count(case.name) == 1
        if ALL or store not in CLOTHES or mine:
            yield case, api


def emptied(server):
    server.call("FLUSHALL")
    return server


def founded(servers):
    """Some cases have leases, and so budgets, that are too short to give all nodes their marks."""
    with lockfast.connect(servers.url) as client, client.lock("the first ever"):
        return servers


def without_tables(server):
    for table in ("lockfast_names", "lockfast_rows"):
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
    return server


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "store, case, face",
    [
        pytest.param(store, case, api, id=f"{store}-{api}-{case.name}")
        for store, (across, _) in STORES.items()
        for case, api in chosen(store, across)
    ],
)
def test_conformance(store, case, api, tmp_path, request):
    run_case(case, api, STORES[store][1](tmp_path, request.getfixturevalue))


@pytest.mark.parametrize("store", STORES)
def test_a_store_says_how_far_it_reaches_and_what_it_refuses(store, tmp_path, request):
    across, fresh_url = STORES[store]
    url = fresh_url(tmp_path, request.getfixturevalue)
    with lockfast.connect(url) as client:
        assert client.capabilities.across == across
        order = () if client.capabilities.fair else ("arrival order",)
        assert (*order, *sorted(client.capabilities.refuses)) == LACKS.get(store, ())

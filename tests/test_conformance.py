"""Every store and both faces, through one set of cases."""

from __future__ import annotations

import itertools

import pytest

import holdfast

pytest.register_assert_rewrite("holdfast.testing.conformance")

from holdfast.testing.conformance import cases_for, run_case  # noqa: E402

_number = itertools.count()

# A store takes part with one line: how far it reaches, and how to make the URL of a fresh one.
STORES = {
    "memory": ("process", lambda path: f"memory://conformance-{next(_number)}"),
    "sqlite": ("host", lambda path: f"sqlite://{path}/locks.db"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "store, case, face",
    [
        pytest.param(store, case, face, id=f"{store}-{face}-{case.name}")
        for store, (across, _) in STORES.items()
        for case, face in cases_for(across)
    ],
)
def test_conformance(store, case, face, tmp_path):
    run_case(case, face, STORES[store][1](tmp_path))


@pytest.mark.parametrize("store", STORES)
def test_a_store_says_how_far_it_reaches(store, tmp_path):
    across, fresh_url = STORES[store]
    assert holdfast.connect(fresh_url(tmp_path)).capabilities.across == across

"""Inspection while the server closes connections or is down: one retry, within a single budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import Agent, connections, took, until

from lockfast import BackendError

Make = Callable[..., Agent]
Inspection = Callable[[Any, str], Any]
SLACK = 0.1 + 0.6  # the promised bound, and the delay of a busy machine; less than a budget

INSPECTIONS: dict[str, Inspection] = {
    "inspect": lambda client, name: client.inspect(name),
    "locked": lambda client, name: client.lock(name).locked(),
    "plain locked": lambda client, name: client.lock(name, layout="simple").locked(),
    "names": lambda client, name: client.names(),
}


@pytest.fixture(params=list(INSPECTIONS))
def inspection(request: pytest.FixtureRequest) -> Inspection:
    return INSPECTIONS[request.param]


def test_an_inspection_is_retried_if_the_server_closes_the_connection_at_that_moment(
    agent: Make, new_redis: Callable[..., Any], name: str, inspection: Inspection
) -> None:
    server = new_redis()
    mine = agent(server.url)
    before = mine.do(lambda client: inspection(client, name))

    def inspect_after_close(client: Any) -> Any:
        """Run on the inspecting thread, so that nothing reads the end of the connection between."""
        assert server.call("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: not connections(server))
        return inspection(client, name)

    assert type(mine.do(inspect_after_close)) is type(before)


def test_a_server_that_is_down_is_named_each_time(
    agent: Make, new_redis: Callable[..., Any], name: str, inspection: Inspection
) -> None:
    server = new_redis()
    mine = agent(server.url)
    mine.do(lambda client: inspection(client, name))
    server.kill()
    for _ in range(2):
        with took() as time_of, pytest.raises(BackendError, match=str(server.port)) as caught:
            mine.do(lambda client: inspection(client, name))
        assert caught.value.transient and time_of.unstalled < 1.0


@pytest.mark.parametrize("connected", [True, False])
def test_a_silent_server_takes_one_budget_and_not_two(
    agent: Make,
    network: Any,
    proxied: str,
    name: str,
    inspection: Inspection,
    connected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = 1.0
    monkeypatch.setattr("lockfast.core.locks.MAX_BUDGET", budget)
    mine = agent(proxied)
    if connected:
        mine.do(lambda client: inspection(client, name))
    network.black_hole()
    with took() as time_of, pytest.raises(BackendError, match="not answer") as caught:
        mine.do(lambda client: inspection(client, name))
    assert caught.value.transient and time_of.unstalled < budget + SLACK

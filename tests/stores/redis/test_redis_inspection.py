"""Looking, while the server closes connections or is away: it is asked again once, and not for
longer than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_redis import Agent, connections, took, until

from lockfast import BackendError

Make = Callable[..., Agent]
Look = Callable[[Any, str], Any]
SLACK = 0.1 + 0.6  # what is promised, and what a noisy machine takes; two budgets would be more

LOOKS: dict[str, Look] = {
    "inspect": lambda client, name: client.inspect(name),
    "locked": lambda client, name: client.lock(name).locked(),
    "plain locked": lambda client, name: client.lock(name, layout="simple").locked(),
    "names": lambda client, name: client.names(),
}


@pytest.fixture(params=list(LOOKS))
def look(request: pytest.FixtureRequest) -> Look:
    return LOOKS[request.param]


def test_a_connection_that_the_server_closes_in_that_very_moment_is_no_trouble(
    agent: Make, new_redis: Callable[..., Any], name: str, look: Look
) -> None:
    server = new_redis()
    mine = agent(server.url)
    before = mine.do(lambda client: look(client, name))

    def closed_and_asked(client: Any) -> Any:
        """On the thread that asks: nobody reads the news between the two."""
        assert server.call("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: not connections(server))
        return look(client, name)

    assert type(mine.do(closed_and_asked)) is type(before)


def test_a_server_that_is_gone_is_told_with_the_same_error(
    agent: Make, new_redis: Callable[..., Any], name: str, look: Look
) -> None:
    server = new_redis()
    mine = agent(server.url)
    mine.do(lambda client: look(client, name))
    server.kill()
    for _ in range(2):
        with took() as time_of, pytest.raises(BackendError, match=str(server.port)) as caught:
            mine.do(lambda client: look(client, name))
        assert caught.value.transient and time_of.seconds < 1.0


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_is_silent_costs_one_budget_and_not_two(
    agent: Make,
    network: Any,
    far: str,
    name: str,
    look: Look,
    connected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = 1.0
    monkeypatch.setattr("lockfast.core.locks.MAX_BUDGET", budget)
    mine = agent(far)
    if connected:
        mine.do(lambda client: look(client, name))
    network.black_hole()
    with took() as time_of, pytest.raises(BackendError, match="not answer") as caught:
        mine.do(lambda client: look(client, name))
    assert caught.value.transient and time_of.seconds < budget + SLACK

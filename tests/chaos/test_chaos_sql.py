"""PostgreSQL and MariaDB under chaos: holders are killed and stopped, sessions killed, the server
restarts, crashes and freezes. No lost hold is valid, and every waiter is served.

A storm, as on Redis: processes with several threads or tasks run freely through every fault that
can be injected. The storm also measures the recovery from killed and stopped holders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lockfast

# Promise P4, in leases. The test runs on machines with two busy cores: SLACK seconds of a recovery
# are the machine's, whatever the lease. (Recoveries from faults of the server are only printed:
# they consist of the time that the machine takes to reconnect all clients.)
LIMIT = 1.25
SLACK = 0.25
HAND_OVERS = 500
SCHEDULE = {
    "kill_a_holder": 3,
    "stop_a_holder": 2,
    "stop_any_worker": 1,
    "cut_off_a_holder": 1,
    "cut_off_a_distant_holder": 1,
    "restart_with_data": 1,
    "crash": 1,
    "freeze_shortly": 1,
    "kill_sessions": 2,
    "kill_listeners": 1,
    "reset_connections": 1,
    "lose_replies": 3,
}


@pytest.fixture(params=["postgres", "mariadb"])
def own_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A server that the test may stop, with the name of its kind."""
    request.getfixturevalue(f"{request.param}_server")  # skips the test where the server is missing
    if request.param == "postgres":
        from lab.servers.postgres_server import PostgresServer as Server
    else:
        from lab.servers.mariadb_server import MariaDBServer as Server
    server = Server()
    # The storm recognizes requests on the wire, so they must not be encrypted.
    server.start(*(["--tls-version="] if getattr(server, "is_mysql", False) else []))
    yield request.param, server
    server.stop()


def test_in_a_storm_no_fence_repeats_no_lost_hold_is_valid_and_every_name_goes_on(
    own_server: tuple[str, Any],
) -> None:
    from holder_recovery import summary
    from storm_checker import check_history
    from storm_sql import LEASES, SqlStorm

    kind, server = own_server
    with lockfast.connect(server.url) as client:
        client.names()  # creates the tables
    storm = SqlStorm(kind, server, seed=1)
    with storm.running():
        storm.inject(SCHEDULE)
        codes, left, errors = storm.finish()
    verdict = check_history(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for fault, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        print(f"{fault}: {len(times)} recoveries, in leases {summary(times)}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Every worker that was stopped wrote in the end and was refused; no other write was refused.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["expired"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for fault in ("kill", "stop", "cut off"):
        for name, seconds in storm.recoveries[fault]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (fault, name, seconds)
    with lockfast.connect(server.url) as client:
        assert client.names() == []

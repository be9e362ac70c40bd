"""PostgreSQL and MariaDB under chaos: holders killed and stopped, sessions killed, a server that
restarts, crashes and freezes. Nobody who lost it is believed, and everybody who waits is served.

A storm, as on Redis: processes with many threads or tasks run freely through every fault that we
can make. What it takes until a killed or stopped holder's name goes on is measured in it, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lockfast

# Promise P4, in leases. It is tried on machines with two busy cores: SLACK seconds of a recovery
# are the machine's, whatever the lease. (What a server's own faults cost is printed only: it is the
# time that the machine takes to connect everybody anew.)
LIMIT = 1.25
SLACK = 0.25
HAND_OVERS = 500
PROGRAMME = {
    "kill_a_holder": 3,
    "stop_a_holder": 2,
    "stop_anybody": 1,
    "cut_off_a_holder": 1,
    "cut_off_a_distant_holder": 1,
    "restart_with_data": 1,
    "crash": 1,
    "freeze_shortly": 1,
    "kill_sessions": 2,
    "kill_ears": 1,
    "reset_connections": 1,
    "lose_replies": 3,
}


@pytest.fixture(params=["postgres", "mariadb"])
def own(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A server that this test may stop."""
    request.getfixturevalue(f"{request.param}_server")  # skips where there is none
    if request.param == "postgres":
        from lab.servers.postgres_server import PostgresServer as Server
    else:
        from lab.servers.mariadb_server import MariaDBServer as Server
    server = Server()
    # The storm reads what is on the wire.
    server.start(*(["--tls-version="] if getattr(server, "is_mysql", False) else []))
    yield request.param, server
    server.stop()


def test_in_a_storm_no_fence_repeats_nobody_lost_is_believed_and_every_name_goes_on(
    own: tuple[str, Any],
) -> None:
    from ordeal import spread
    from storm_sql import LEASES, SqlStorm
    from storm_verdict import judge

    kind, server = own
    with lockfast.connect(server.url) as client:
        client.names()  # the tables are there
    storm = SqlStorm(kind, server, seed=1)
    with storm.raging():
        storm.rage(PROGRAMME)
        codes, left, errors = storm.finish()
    verdict = judge(storm.records, LEASES, [])
    print(f"\n{dict(verdict.counts)}\n{dict(storm.faults)}")
    for fault, recoveries in storm.recoveries.items():
        times = [seconds / LEASES[name] for name, seconds in recoveries]
        said = "p50 {:.3f}, p99 {:.3f}, max {:.3f}".format(*spread(times))
        print(f"{fault}: {len(times)} recoveries, in leases {said}")

    assert verdict.violations == []
    assert "Traceback" not in errors, errors
    assert (set(codes), left) == ({0}, 0), errors
    assert verdict.counts["hand-overs"] >= HAND_OVERS
    # Who was stopped wrote in the end, and was refused; nobody else was.
    lost = storm.faults["stop"] + storm.faults["cut off"] + verdict.counts["fell"]
    assert lost >= verdict.counts["refused"] >= storm.faults["stop"]
    for fault in ("kill", "stop", "cut off"):
        for name, seconds in storm.recoveries[fault]:
            assert seconds <= LIMIT * LEASES[name] + SLACK, (fault, name, seconds)
    with lockfast.connect(server.url) as client:
        assert client.names() == []

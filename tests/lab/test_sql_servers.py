"""The MariaDB and PostgreSQL servers that tests start and stop: nothing of them is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from test_redis_server import PATIENCE, TESTS, is_alive, wait_until_gone

KINDS = {"mariadb": "MariaDBServer", "postgres": "PostgresServer"}
WRITTEN = "CREATE TABLE kept (word VARCHAR(10))"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(f"{request.param}_server")  # skips where the server is not installed
    return str(request.param)


@pytest.fixture
def new(kind: str) -> Iterator[Callable[[], Any]]:
    """Start a server for this test, with arguments of the program; stop it afterwards."""
    module = import_module(f"lab.servers.{kind}_server")
    servers = []

    def new(*extra_args: str) -> Any:
        server = getattr(module, KINDS[kind])()
        servers.append(server)
        return server.start(*extra_args)

    yield new
    for server in servers:
        server.stop()


def rows(server: Any, statement: str) -> list[tuple[Any, ...]]:
    connection = server.connect()
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())
    finally:
        connection.close()


def write(server: Any) -> None:
    connection = server.connect()
    cursor = connection.cursor()
    cursor.execute(WRITTEN)
    cursor.execute("INSERT INTO kept VALUES ('word')")
    connection.commit()
    connection.close()


def knows(server: Any) -> bool:
    found = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'kept'"
    if rows(server, found) == [(0,)]:
        return False
    return rows(server, "SELECT word FROM kept") == [("word",)]


@pytest.mark.parametrize("fixture", ["mariadb_server", "postgres_server"])
def test_a_server_answers_on_its_port_and_on_its_socket(fixture, request):
    server = request.getfixturevalue(fixture)
    assert rows(server, "SELECT 1") == list(server.call("SELECT 1")) == [(1,)]
    assert f"@127.0.0.1:{server.port}/" in server.url
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0


def test_psycopg_accepts_the_url_of_the_server(postgres_server):
    import psycopg

    with psycopg.connect(postgres_server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_stopped_server_leaves_neither_process_nor_folder_and_starts_again(new):
    server = new()
    write(server)
    pid, folder, port = server.pid, server.folder, server.port
    server.stop()
    assert not is_alive(pid) and not folder.exists()
    server.stop()
    server.start()
    assert server.port == port and not knows(server)


def test_a_port_in_use_is_not_taken(new, monkeypatch):
    from lab.servers import own_server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], own_server._free_port()])
        monkeypatch.setattr(own_server, "_free_port", lambda: next(ports))
        server = new()
        assert server.port != taken.getsockname()[1] and rows(server, "SELECT 1") == [(1,)]
        assert next(ports, None) is None


def test_an_invalid_argument_is_named_in_the_error(new):
    with pytest.raises(RuntimeError, match=r"no.such.option"):
        new("--no-such-option=1")


def test_a_restart_keeps_the_port_and_optionally_the_data(new):
    server = new()
    write(server)
    port, pid = server.port, server.pid
    server.restart(keep_data=True)
    assert server.port == port and server.pid != pid and knows(server)
    server.restart(keep_data=False)
    assert server.port == port and not knows(server)


def test_committed_data_survive_the_kill_of_a_paused_server(new):
    server = new()
    write(server)
    with_session = server.connect()  # its PostgreSQL store process must end too
    server.pause()
    server.kill()
    server.start()
    assert knows(server)
    with_session.close()


def test_a_paused_server_does_not_answer_in_open_sessions_until_it_is_resumed(new, kind):
    server = new()
    connection = server.connect()
    descriptor = connection._sock.fileno() if kind == "mariadb" else connection.fileno()
    wire = socket.socket(fileno=os.dup(descriptor))
    server.pause()
    send_query(kind, wire)
    wire.settimeout(0.2)
    with pytest.raises(TimeoutError):
        wire.recv(1)
    server.resume()
    wire.settimeout(PATIENCE)
    assert wire.recv(1)
    wire.close()
    connection.close()


def send_query(kind: str, wire: socket.socket) -> None:
    """Send SELECT 1 in the wire protocol: a driver would wait for the reply for too long."""
    if kind == "mariadb":
        wire.sendall(b"\x09\x00\x00\x00\x03SELECT 1")
    else:
        wire.sendall(b"Q\x00\x00\x00\x0dSELECT 1\x00")


START = """
import os, sys
from lab.servers.{kind}_server import {name}
server = {name}().start()
session = server.connect()
print(server.pid, server.folder, flush=True)
"""


@pytest.mark.parametrize(
    "ends", ["raise SystemExit", "os._exit(1)", "server.pause(); os.kill(os.getpid(), 9)"]
)
def test_a_server_ends_with_the_interpreter_however_that_ends(kind, ends):
    done = subprocess.run(
        [sys.executable, "-c", START.format(kind=kind, name=KINDS[kind]) + ends],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    pid, folder = done.stdout.split()
    wait_until_gone(int(pid), Path(folder))
    living = [path for path in Path("/proc").glob("[0-9]*/cwd") if leads_into(path, folder)]
    assert not living


def leads_into(path: Path, folder: str) -> bool:
    try:
        return os.readlink(path).startswith(folder)
    except OSError:
        return False

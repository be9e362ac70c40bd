"""The ZooKeeper servers that tests start: start, stop, pause, restart, and clean-up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_redis_server import PATIENCE, TESTS, is_alive, wait_until_gone


def write(server):
    with_client(server, lambda client: client.create("/kept", b"data"))


def knows(server):
    return with_client(server, lambda client: bool(client.exists("/kept")))


def with_client(server, does):
    client = server.client()
    try:
        return does(client)
    finally:
        client.stop()
        client.close()


def test_a_server_answers_on_its_port_and_counts_packets(zookeeper_server):
    before = int(zookeeper_server.counters()["packets_received"])
    path = "/zookeeper-server-test"
    with_client(zookeeper_server, lambda client: client.create(path, b"", ephemeral=True))
    assert int(zookeeper_server.counters()["packets_received"]) > before
    assert zookeeper_server.mode == "standalone" and zookeeper_server.command("ruok") == "imok"
    assert zookeeper_server.url == f"zookeeper://127.0.0.1:{zookeeper_server.port}"


def test_a_session_ends_after_its_timeout(zookeeper_server):
    """The client is stopped, so its connection stays open and silent."""
    code = (
        "import os, signal\n"
        "from lab.servers.zookeeper_server import started\n"
        f"client = started({zookeeper_server.host!r}, timeout=0.4)\n"
        "client.create('/short', b'', ephemeral=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": TESTS})
    try:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        until = time.monotonic() + PATIENCE
        while with_client(zookeeper_server, lambda client: client.exists("/short")):
            assert time.monotonic() < until
    finally:
        child.kill()
        child.wait()


def test_a_stopped_server_leaves_neither_process_nor_folder_and_starts_again(new_zookeepers):
    (server,) = new_zookeepers(1).nodes
    write(server)
    pid, folder, port = server.pid, server.folder, server.port
    server.stop()
    assert not is_alive(pid) and not folder.exists() and server.mode == ""
    server.stop()
    server.start()
    assert server.port == port and not knows(server)


def test_a_taken_port_is_not_used(new_zookeepers, monkeypatch):
    from lab.servers import own_server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], own_server._free_port()])
        monkeypatch.setattr(own_server, "_free_port", lambda: next(ports))
        (server,) = new_zookeepers(1).nodes
        assert server.port != taken.getsockname()[1] and server.mode == "standalone"
        assert next(ports, None) is None


def test_a_taken_port_of_an_ensemble_is_not_used(new_zookeepers, monkeypatch):
    from lab.servers import own_server

    free = own_server._free_port
    monkeypatch.setattr(own_server, "ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = []

        def some() -> int:
            asked.append(taken.getsockname()[1] if not asked else free())
            return asked[-1]

        monkeypatch.setattr(own_server, "_free_port", some)
        group = new_zookeepers(2)
        assert len(asked) > 6
        assert sorted(node.mode for node in group.nodes) == ["follower", "leader"]


def test_an_invalid_setting_is_named_in_the_error():
    from lab.servers.zookeeper_server import ZooKeeperServer

    server = ZooKeeperServer(tickTime="soon")
    with pytest.raises(RuntimeError, match="soon"):
        server.start()
    server.stop()


def test_settings_are_lines_of_the_configuration_file(new_zookeepers):
    (server,) = new_zookeepers(1, maxSessionTimeout=4000, **{"4lw__commands__whitelist": "*"}).nodes
    assert "maxSessionTimeout=4000" in server.command("conf")


def test_a_restart_keeps_the_port_and_keeps_the_data_on_request(new_zookeepers):
    (server,) = new_zookeepers(1).nodes
    write(server)
    port, pid = server.port, server.pid
    server.restart(keep_data=True)
    assert server.port == port and server.pid != pid and knows(server)
    server.restart(keep_data=False)
    assert server.port == port and not knows(server)


def test_data_survives_a_kill_of_a_paused_server(new_zookeepers):
    (server,) = new_zookeepers(1).nodes
    write(server)
    server.pause()
    server.kill()
    server.start()
    assert knows(server)


def test_a_paused_server_does_not_answer_until_it_is_resumed(new_zookeepers):
    (server,) = new_zookeepers(1).nodes
    server.pause()
    with pytest.raises(TimeoutError):
        server.command("ruok", timeout=0.2)
    server.resume()
    assert server.command("ruok") == "imok"


def test_an_ensemble_elects_another_leader_when_the_first_is_killed(new_zookeepers):
    group = new_zookeepers(3)
    client = group.client()
    client.create("/kept", b"data")
    first = group.leader()
    assert sorted(node.mode for node in group.nodes) == ["follower", "follower", "leader"]
    assert first not in group.followers() and len(group.followers()) == 2
    first.kill()
    second = group.leader()
    assert second is not first
    group.settle()
    assert knows(group.followers()[0] if group.followers()[0].is_running else second)
    first.start()
    group.settle()
    assert first.mode == "follower" and knows(first)
    client.stop()
    client.close()


def test_a_follower_restarted_without_data_copies_it_from_the_others(new_zookeepers):
    group = new_zookeepers(3)
    write(group)
    node = group.followers()[0]
    node.restart(keep_data=False)
    group.settle()
    assert knows(node)


START = """
import os, sys
from lab.servers.zookeeper_server import ZooKeepers
group = ZooKeepers(2).start()
for node in group.nodes:
    print(node.pid, node.folder, flush=True)
"""


@pytest.mark.parametrize(
    "ends", ["raise SystemExit", "os._exit(1)", "node.pause(); os.kill(os.getpid(), 9)"]
)
def test_servers_end_with_the_interpreter_however_that_ends(zookeeper_server, ends):
    done = subprocess.run(
        [sys.executable, "-c", START + ends],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        pid, folder = line.split()
        wait_until_gone(int(pid), Path(folder))

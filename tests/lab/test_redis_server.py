"""The Redis servers that tests start: start, stop, pause, restart, and clean-up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PATIENCE = 30.0


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int, folder: Path) -> None:
    until = time.monotonic() + PATIENCE
    while is_alive(pid) or folder.exists():
        assert time.monotonic() < until, f"process {pid} or folder {folder} still exists"
        time.sleep(0.01)


def test_a_server_answers_on_its_port_and_on_its_socket(redis_server):
    import redis

    assert redis_server.client().set("redis-server:port", "1")
    with redis.Redis.from_url(redis_server.unix_url) as client:
        assert client.get("redis-server:port") == b"1"
    assert redis_server.call("INFO", "server")["process_id"] == redis_server.pid
    assert redis_server.call("CONFIG", "GET", "save") in (
        [b"save", b""],
        {"save": ""},
        {b"save": b""},
    )
    assert redis_server.call("DEBUG", "SLEEP", "0")


def test_a_stopped_server_leaves_neither_process_nor_folder_and_starts_again(new_redis):
    server = new_redis()
    pid, folder, port = server.pid, server.folder, server.port
    server.call("SET", "a", "1")
    server.stop()
    assert not is_alive(pid) and not folder.exists()
    server.stop()
    server.start()
    assert server.port == port and server.client().get("a") is None


def test_a_taken_port_is_not_used(new_redis, monkeypatch):
    from lab.servers import own_server as module

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]] * 3 + [module._free_port()])
        monkeypatch.setattr(module, "_free_port", lambda: next(ports))
        server = new_redis()
        assert server.port != taken.getsockname()[1] and server.client().ping()
        assert next(ports, None) is None


def test_an_invalid_argument_is_named_in_the_error(new_redis):
    with pytest.raises(RuntimeError, match="no-such-option"):
        new_redis("--no-such-option", "1")


def test_a_restart_keeps_the_port_and_optionally_the_data(new_redis):
    server = new_redis()
    port, pid = server.port, server.pid
    server.call("SET", "a", "1")
    server.restart(keep_data=True)
    assert server.port == port and server.pid != pid
    assert server.client().get("a") == b"1"
    server.restart(keep_data=False)
    assert server.port == port and server.client().get("a") is None


def test_a_killed_server_loses_its_data_also_after_a_restart_that_kept_it(new_redis):
    server = new_redis()
    server.call("SET", "a", "1")
    server.restart(keep_data=True)
    server.kill()
    server.start()
    assert server.client().get("a") is None


def test_a_server_with_an_append_only_file_keeps_its_data_when_killed(new_redis):
    server = new_redis("--appendonly", "yes", "--appendfsync", "always")
    server.call("SET", "a", "1")
    server.kill()
    server.start()
    assert server.client().get("a") == b"1"
    server.restart(keep_data=True)
    assert server.client().get("a") == b"1"
    server.restart(keep_data=False)
    assert server.client().get("a") is None


def test_a_paused_server_does_not_answer_until_it_is_resumed(new_redis):
    import redis

    server = new_redis()
    with server.client(socket_timeout=0.1) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
    assert server.client().ping()
    server.pause()
    pid = server.pid
    server.stop()
    assert not is_alive(pid)


def test_clients_verify_the_certificate_of_a_tls_server(new_redis):
    import redis

    server = new_redis(tls=True)
    assert server.url.startswith("rediss://") and server.client().ping()
    named = server.url.replace("127.0.0.1", "localhost")
    with redis.Redis.from_url(named, ssl_ca_certs=str(server.ca_file)) as client:
        assert client.ping()
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        server.client(ssl_ca_certs=None).ping()


@pytest.mark.parametrize("users", [[], ["app on >apple ~lf:* -@all +get +ping"]])
def test_a_password_and_users_are_required(new_redis, users):
    import redis

    server = new_redis(password="pear", users=users)
    assert server.client().set("b", "1") and server.call("GET", "b") == b"1"
    with pytest.raises(redis.AuthenticationError):
        server.client(password=None).ping()
    if users:
        with server.client(username="app", password="apple") as app:
            assert app.get("lf:1") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                app.get("b")


START = """
import os, sys
from lab.servers.redis_server import RedisServer
server = RedisServer().start()
print(server.pid, server.folder, flush=True)
"""


@pytest.mark.parametrize(
    "ends", ["raise SystemExit", "1 / 0", "os._exit(1)", "os.kill(os.getpid(), 9)"]
)
def test_a_server_ends_with_the_interpreter_however_that_ends(redis_server, ends):
    done = subprocess.run(
        [sys.executable, "-c", START + ends],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    pid, folder = done.stdout.split()
    wait_until_gone(int(pid), Path(folder))


def test_a_forked_child_that_exits_does_not_stop_the_server(redis_server):
    code = START + "if not os.fork(): sys.exit()\nos.wait()\nassert server.call('PING')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


MISSING = """
import conftest
def test_here(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    conftest.need("no-such-server", driver="os")
def test_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    conftest.need("sh", driver="no_such_driver")
"""


def test_tests_without_their_server_are_skipped_with_a_summary_and_fail_in_ci(tmp_path):
    (tmp_path / "test_missing.py").write_text(MISSING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "1 failed, 1 skipped" in done.stdout, done.stdout
    assert "NOT TESTED: no module no_such_driver, no-such-server" in done.stdout

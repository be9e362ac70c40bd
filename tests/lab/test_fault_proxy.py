"""The fault proxy: each control takes effect at once, and has no other effect."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest
from fault_endpoints import (
    PATIENCE,
    RESET_ON_CLOSE,
    Server,
    exchanges,
    is_reset,
    is_silent,
    is_turned_away,
    read,
)

from lab.fault_proxy import FaultProxy

# -- No faults -------------------------------------------------------------------------------------


def test_a_proxy_without_faults_forwards_and_counts_all_bytes(network, server, connect):
    client, peer = connect(), server.accept()
    assert exchanges(client, peer)
    assert (network.connections, network.accepted) == (1, 1)
    assert (network.bytes_up, network.bytes_down) == (5, 4)
    other = connect()
    assert exchanges(other, server.accept())
    assert (network.connections, network.accepted) == (2, 2)
    assert (network.bytes_up, network.bytes_down, network.lost_replies) == (10, 8, 0)


def test_the_end_of_one_side_is_forwarded_and_the_other_may_go_on(network, pair):
    client, peer = pair
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert read(peer, 5) == b"last" and peer.recv(1) == b""
    peer.sendall(b"and yet")
    assert read(client, 7) == b"and yet" and network.connections == 1
    peer.close()
    assert client.recv(1) == b""
    until = time.monotonic() + PATIENCE
    while network.connections:
        assert time.monotonic() < until


def test_a_slow_reader_blocks_the_writer_and_gets_every_byte_in_order(network, pair):
    client, peer = pair
    sent = random.Random(1).randbytes(1_000_003) * 40  # twice what the kernel buffers
    network.latency = 0.001
    writer = threading.Thread(target=client.sendall, args=(sent,), daemon=True)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive() and network.bytes_up < len(sent), "the proxy buffers without limit"
    network.latency = 0.0
    assert read(peer, len(sent)) == sent
    writer.join(PATIENCE)
    assert network.bytes_up == len(sent)


def test_a_reset_by_a_peer_is_forwarded(network, server, connect):
    for ended in (0, 1):
        ends = connect(), server.accept()
        assert exchanges(*ends)
        ends[ended].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        ends[ended].close()
        assert is_reset(ends[1 - ended])
    assert network.connections == 0


def test_a_client_of_a_missing_server_is_reset_and_the_server_may_come_later(
    network, server, connect
):
    port = server.listener.getsockname()[1]
    server.close()
    assert is_turned_away(connect)
    with socket.create_server(("127.0.0.1", port)) as server.listener:
        assert exchanges(connect(), server.accept())


def test_a_server_on_a_unix_socket_is_reached(tmp_path):
    path = os.path.relpath(tmp_path / "s")  # a temporary folder may be too deep for a whole path
    server = Server(socket.AF_UNIX, path)
    with FaultProxy(path) as network:
        with socket.create_connection((network.host, network.port), timeout=PATIENCE) as client:
            peer = server.accept()
            assert exchanges(client, peer)
            assert network.reset() == 1 and is_reset(client) and peer.recv(1) == b""
        os.unlink(path)
        assert is_turned_away(lambda: socket.create_connection((network.host, network.port)))
    server.close()


def test_a_closed_proxy_refuses_connections_and_controls(server):
    with FaultProxy(("localhost", server.listener.getsockname()[1])) as network:
        address = network.host, network.port
        client = socket.create_connection(address, timeout=PATIENCE)
        assert exchanges(client, server.accept())
    assert is_reset(client) and is_reset(server.peers[0])
    client.close()
    network.close()
    assert (network.connections, network.accepted, network.bytes_up) == (0, 1, 5)
    with pytest.raises(RuntimeError, match=f"{network.port} is closed"):
        network.freeze()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert "FaultProxy" not in {thread.name for thread in threading.enumerate()}


def test_a_name_with_addresses_of_both_families_is_reached(server, monkeypatch):
    address = server.listener.getsockname()
    found = [(socket.AF_INET6, 1, 6, "", ("::1", 9)), (socket.AF_INET, 1, 6, "", address)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with FaultProxy(("localhost", address[1])) as network, socket.socket() as client:
        client.settimeout(PATIENCE)
        client.connect((network.host, network.port))
        assert exchanges(client, server.accept())


def test_invalid_arguments_are_refused(network):
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="latency"):
            network.latency = seconds
    with pytest.raises(ValueError, match="sideways"):
        network.black_hole("sideways")
    with pytest.raises(ValueError, match="-1"):
        network.lose_replies(-1)
    with pytest.raises(ValueError, match="shout"):
        network.lose_replies(then="shout")


# -- Latency ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["up", "down"])
def test_latency_is_added_in_each_direction(network, pair, way):
    source, sink = pair if way == "up" else reversed(pair)
    network.latency = 0.05
    assert network.latency == 0.05
    began = time.monotonic()
    source.sendall(b"late")
    assert read(sink, 4) == b"late" and time.monotonic() - began >= 0.05


def test_chunks_are_delayed_concurrently_and_keep_their_order(network, pair):
    client, peer = pair
    network.latency = 0.2
    for number in range(20):
        client.sendall(bytes([number]))
        assert network.connections == 1  # returns after the proxy read the byte: a chunk of its own
    began = time.monotonic()
    assert read(peer, 20) == bytes(range(20))
    assert time.monotonic() - began < 2.0  # one after the other would take 4 s


def test_a_lower_latency_applies_at_once_to_bytes_under_way(network, pair):
    client, peer = pair
    network.latency = 1000.0
    client.sendall(b"a")
    assert is_silent(peer)
    network.latency = 0.0
    client.sendall(b"b")
    assert read(peer, 2) == b"ab"


# -- Freeze ----------------------------------------------------------------------------------------


def test_a_frozen_proxy_forwards_nothing_until_it_thaws(network, server, connect, pair):
    client, peer = pair
    network.freeze()
    client.sendall(b"up")
    peer.sendall(b"down")
    new = connect()
    new.sendall(b"new")
    assert is_silent(client) and is_silent(peer) and is_silent(new)
    assert (network.bytes_up, network.bytes_down, network.accepted) == (0, 0, 1)
    network.thaw()
    assert read(peer, 2) == b"up" and read(client, 4) == b"down"
    assert read(server.accept(), 3) == b"new" and network.accepted == 2


def test_a_frozen_proxy_hides_the_end_of_a_peer(network, pair):
    client, peer = pair
    network.freeze()
    client.close()
    assert is_silent(peer)
    network.thaw()
    assert peer.recv(1) == b""


def test_a_frozen_proxy_hides_the_reset_of_a_peer(network, pair):
    client, peer = pair
    network.freeze()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.close()
    assert is_silent(peer)
    network.thaw()
    assert is_reset(peer)


def test_delayed_bytes_are_frozen_too(network, pair):
    client, peer = pair
    network.latency = 1000.0
    client.sendall(b"late")
    network.freeze()
    network.latency = 0.0
    assert is_silent(peer)
    network.thaw()
    assert read(peer, 4) == b"late"


# -- Black holes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_a_black_hole_swallows_its_direction_only(network, pair, way):
    client, peer = pair
    network.black_hole(way)
    client.sendall(b"up")
    peer.sendall(b"down")
    if way == "up":
        assert read(client, 4) == b"down"
    if way == "down":
        assert read(peer, 2) == b"up"
    assert is_silent(client) and is_silent(peer) and network.connections == 1
    assert network.bytes_up == (2 if way == "down" else 0)
    assert network.bytes_down == (4 if way == "up" else 0)


def test_a_black_hole_swallows_more_than_the_kernel_buffers(network, pair):
    client, _ = pair
    network.black_hole("up")
    client.sendall(b"x" * 20_000_000)


def test_healing_resets_only_connections_that_lost_bytes(network, server, connect):
    broken, unhurt = (connect(), server.accept()), (connect(), server.accept())
    network.black_hole("up")
    broken[0].sendall(b"lost")
    new = connect(), server.accept()
    assert is_silent(broken[1])
    network.heal()
    assert is_reset(broken[0]) and is_reset(broken[1])
    assert exchanges(*unhurt) and exchanges(*new) and exchanges(connect(), server.accept())
    assert network.connections == 3


def test_a_black_hole_swallows_bytes_under_way(network, pair):
    client, peer = pair
    network.latency = 1000.0
    client.sendall(b"late")
    network.black_hole("up")
    network.latency = 0.0
    assert is_silent(peer)
    network.heal()
    assert is_reset(client)


@pytest.mark.parametrize("linger", [b"\0" * 8, RESET_ON_CLOSE], ids=["end", "reset"])
def test_a_black_hole_hides_that_a_peer_is_gone(network, server, connect, linger):
    ends = [(connect(), server.accept(), gone) for gone in (0, 1)]
    network.black_hole("up")
    network.black_hole("down")
    for *pair, gone in ends:
        pair[gone].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        pair[gone].close()
        assert is_silent(pair[1 - gone])
        pair[1 - gone].sendall(b"anybody there?")
        assert is_silent(pair[1 - gone])
    network.heal()
    assert all(is_reset(pair[1 - gone]) for *pair, gone in ends) and network.connections == 0


def test_a_writer_to_a_dead_peer_behind_a_one_way_black_hole_gets_no_error(network, pair):
    client, peer = pair
    network.black_hole("up")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.close()
    for _ in range(3):
        peer.sendall(b"anybody there?")
        assert is_silent(peer)
    network.heal()
    assert is_reset(peer)


# -- Reset and refuse ------------------------------------------------------------------------------


def test_reset_ends_all_connections_towards_both_peers(network, server, connect):
    pairs = [(connect(), server.accept()) for _ in range(3)]
    assert network.reset() == 3 and network.connections == 0
    assert all(is_reset(client) and is_reset(peer) for client, peer in pairs)
    assert network.reset() == 0
    assert exchanges(connect(), server.accept())


def test_reset_ends_frozen_and_not_yet_accepted_connections(network, connect, pair):
    network.freeze()
    new = connect()
    assert network.reset() == 2
    assert is_reset(new) and is_reset(pair[0]) and is_reset(pair[1])


def test_a_refused_client_is_reset_at_once_and_others_stay(network, server, connect, pair):
    network.refuse()
    for _ in range(3):
        assert is_turned_away(connect)
    assert exchanges(*pair) and (network.connections, network.accepted) == (1, 1)
    network.accept()
    assert exchanges(connect(), server.accept()) and network.accepted == 2

"""`lose_replies`: requests that are executed and whose replies are lost."""

from __future__ import annotations

import time

import pytest
from fault_endpoints import PATIENCE, exchanges, is_reset, is_silent, read


def test_a_reply_is_counted_as_lost_and_the_connection_is_reset(network, server, connect, pair):
    client, peer = pair
    assert exchanges(client, peer)
    network.lose_replies()
    client.sendall(b"do it")
    assert read(peer, 5) == b"do it" and is_silent(client) and network.lost_replies == 0
    peer.sendall(b"done")
    assert is_reset(client) and is_reset(peer)
    assert network.lost_replies == 1 and network.bytes_down == 4
    assert exchanges(connect(), server.accept()) and network.lost_replies == 1


def test_a_connection_may_stay_silent_after_a_lost_reply(network, server, connect, pair):
    client, peer = pair
    network.lose_replies(then="silence")
    for _ in range(2):
        client.sendall(b"do it")
        assert read(peer, 5) == b"do it"
        peer.sendall(b"done")
        assert is_silent(client)
    assert network.lost_replies == 1 and network.connections == 1
    assert exchanges(connect(), server.accept())
    network.heal()
    assert is_reset(client) and network.connections == 1


def test_a_silent_connection_ends_when_both_peers_have_left(network, pair):
    client, peer = pair
    network.lose_replies(then="silence")
    client.sendall(b"do it")
    assert read(peer, 5) == b"do it"
    peer.sendall(b"done")
    client.close()
    assert peer.recv(1) == b""
    peer.close()
    until = time.monotonic() + PATIENCE
    while network.connections:
        assert time.monotonic() < until


def test_the_requested_number_of_replies_is_lost(network, server, connect):
    network.lose_replies(2)
    for _ in range(2):
        client, peer = connect(), server.accept()
        client.sendall(b"do it")
        assert read(peer, 5) == b"do it"
        peer.sendall(b"done")
        assert is_reset(client)
    assert exchanges(connect(), server.accept()) and network.lost_replies == 2
    network.lose_replies(1)
    network.lose_replies(0)
    assert exchanges(connect(), server.accept()) and network.lost_replies == 2


def test_only_requests_that_match_lose_their_reply(network, server, connect, pair):
    client, peer = pair
    network.lose_replies(match=b"EVAL")
    assert exchanges(client, peer) and exchanges(connect(), server.accept())
    client.sendall(b"1 EVALSHA x")
    assert read(peer, 11) == b"1 EVALSHA x"
    peer.sendall(b"done")
    assert is_reset(client) and network.lost_replies == 1


def test_the_reply_to_an_older_request_is_not_lost(network, pair):
    client, peer = pair
    client.sendall(b"first")
    assert read(peer, 5) == b"first"
    network.lose_replies()
    client.sendall(b"second")
    assert read(peer, 6) == b"second"
    peer.sendall(b"1")
    peer.sendall(b"2")
    assert read(client, 2) == b"12" and network.lost_replies == 0
    client.sendall(b"third")
    assert read(peer, 5) == b"third"
    peer.sendall(b"3")
    assert is_reset(client) and network.lost_replies == 1


@pytest.mark.parametrize("came", ["before", "after"])
def test_a_delayed_reply_is_not_lost_and_the_next_one_is(network, pair, came):
    client, peer = pair
    client.sendall(b"first")
    assert read(peer, 5) == b"first"
    network.lose_replies(then="silence")
    network.latency = 1000.0
    if came == "before":
        peer.sendall(b"1")
        assert network.bytes_down == 0  # returns after the proxy read the byte
    client.sendall(b"second")
    assert network.bytes_up == 5
    if came == "after":
        peer.sendall(b"1")
        assert network.bytes_down == 0
    network.latency = 0.0
    assert read(client, 1) == b"1" and read(peer, 6) == b"second"
    peer.sendall(b"2")
    assert is_silent(client) and network.lost_replies == 1


def test_a_server_that_closes_instead_of_answering_loses_no_reply(network, pair):
    client, peer = pair
    network.lose_replies()
    client.sendall(b"do it")
    assert read(peer, 5) == b"do it"
    peer.close()
    assert client.recv(1) == b"" and network.lost_replies == 0

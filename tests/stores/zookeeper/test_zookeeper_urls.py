"""URLs and kazoo clients: servers, users and options."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL

import lockfast
from lockfast.stores import open_endpoint


def address(url):
    return open_endpoint(url)._session.address


def test_a_url_names_hosts_chroot_user_and_options():
    seen = address("zookeeper://me:p%40ss@h1:2181,[::1]:2182/a/b?session_timeout=4.5")
    assert (seen.hosts, seen.chroot, seen.timeout) == ("h1:2181,[::1]:2182", "/a/b", 4.5)
    assert seen.options == {"auth_data": [("digest", "me:p@ss")]}
    assert list(seen.acl) == CREATOR_ALL_ACL
    assert seen.where == "zookeeper://h1:2181,[::1]:2182/a/b", "a password is shown"


def test_tls_is_on_by_its_own_scheme_and_checks_everything():
    seen = address("zookeeper+tls://me:word@h1:2281")
    assert seen.where == "zookeeper+tls://h1:2281"
    assert seen.options == {
        "auth_data": [("digest", "me:word")],
        "use_ssl": True,
        "ca": None,
        "certfile": None,
        "keyfile": None,
        "check_hostname": True,
    }


def test_a_url_needs_no_more_than_a_host():
    seen = address("zookeeper://localhost")
    assert (seen.hosts, seen.chroot, seen.timeout, seen.options) == ("localhost", "", 10.0, {})


@pytest.mark.parametrize(
    "url, expected",
    [
        ("zookeeper://", "not a ZooKeeper URL"),
        ("zookeeper://h1:port", "'h1:port'"),
        ("zookeeper://h1,,h2", "host:port"),
        ("zookeeper://h1:99999", "host:port"),
        ("zookeeper://h1/a//b", "not a path"),
        ("zookeeper://h1/../b", "not a path"),
        ("zookeeper://h1/a#b", "not a ZooKeeper URL"),
        ("zookeeper://user@h1", "a name and a password"),
        ("zookeeper://h1?session_timout=4", "did you mean session_timeout="),
        ("zookeeper://h1?flavor=mint", "session_timeout, acl"),
        ("zookeeper://h1?session_timeout=0", "session_timeout='0'"),
        ("zookeeper://h1?session_timeout=soon", "session_timeout='soon'"),
        ("zookeeper://h1?session_timeout=nan", "session_timeout='nan'"),
        ("zookeeper://h1?acl=mine", "acl='mine'"),
        ("zookeeper://h1?acl=creator", "needs a user"),
        ("zookeper://h1", "did you mean zookeeper"),
        ("zookeeper://h1?ssl_ca=/ca.pem", "it is for zookeeper+tls://"),
        ("zookeeper+tls://h1?ssl_cat=/ca.pem", "did you mean ssl_ca=?"),
        ("zookeeper+tls://h1?ssl_ca=/no/such.pem", "ssl_ca='/no/such.pem'"),
        ("zookeeper+tls://h1?ssl_cert=/no/such.pem", "cannot be used as certificates"),
        ("zookeeper+tls://h1?ssl_key=/a.key", "give ssl_cert="),
        ("zookeeper+tls://h1?ssl_check_hostname=no", "ssl_check_hostname='no'"),
        ("zookeeper+ssl://h1", "did you mean zookeeper+tls"),
    ],
)
def test_an_invalid_url_is_refused_with_a_hint(url, expected):
    with pytest.raises(lockfast.ConfigurationError) as caught:
        lockfast.connect(url)
    assert expected in str(caught.value)


def test_an_error_never_shows_a_password():
    for url in ("zookeeper://me:hidden@h1:x", "zookeeper://me:hid/den@h1", "zookeeper://:hidden@h"):
        with pytest.raises(lockfast.ConfigurationError) as caught:
            lockfast.connect(url)
        assert "hid" not in str(caught.value)


def test_a_kazoo_client_provides_its_servers_and_is_left_alone(zookeeper_server):
    theirs = KazooClient(f"{zookeeper_server.host}/client", timeout=7.0)
    client = lockfast.connect(theirs)
    with client.lock("a") as hold:
        assert hold.is_held and not theirs.connected, "lockfast started the caller's client"
    client.close()
    theirs.start()
    client = lockfast.connect(theirs)
    with client.lock("a"):
        assert theirs.get_children("/lockfast") == ["default:a"]
        assert client._endpoint._session.timeout == 7.0
    client.close()
    assert theirs.connected, "lockfast closed the caller's client"
    theirs.stop()
    theirs.close()


def test_the_nodes_of_a_user_are_closed_to_others(zookeeper_server):
    path = "/guarded"
    mine = lockfast.connect(f"zookeeper://me:secret@{zookeeper_server.host}{path}")
    hold = mine.lock("a").acquire()
    stranger = lockfast.connect(f"{zookeeper_server.url}{path}")
    with pytest.raises(lockfast.BackendError, match="no right") as caught:
        stranger.lock("a").acquire()
    assert not caught.value.transient and "secret" not in str(caught.value)
    wrong = lockfast.connect(f"zookeeper://me:wrong@{zookeeper_server.host}{path}")
    with pytest.raises(lockfast.BackendError, match="no right"):
        wrong.inspect("a")
    same = lockfast.connect(f"zookeeper://me:secret@{zookeeper_server.host}{path}")
    assert same.lock("a").try_acquire() is None and hold.is_held
    for client in (mine, stranger, wrong, same):
        client.close()


def test_an_unreachable_server_is_reported_in_bounded_time():
    client = lockfast.connect("zookeeper://127.0.0.1:1")
    with pytest.raises(lockfast.BackendError, match="cannot be reached"):
        client.lock("a").acquire(timeout=0.1)
    client.close()

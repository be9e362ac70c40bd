"""The rows: names are stored exactly, fences grow, the server's clock decides, old rows are
swept."""

from __future__ import annotations

import time
import unicodedata

import pytest

import lockfast
from lockfast import clock
from lockfast.errors import BackendError
from lockfast.model import Claim
from lockfast.stores.sql import store as rows_store
from lockfast.stores.sql.book import hash_of

NAMES = [
    "orders",
    "Orders",
    "orders ",
    "orders\t",
    unicodedata.normalize("NFC", "über"),
    unicodedata.normalize("NFD", "über"),
    "uber",
    "straße",
    "strasse",
    "'; DROP TABLE lockfast_names; --",
    "%s %d {} \\ \" ' `",
    "…😀",
    "x" * 1000,
    "x" * 999 + "y",
]


def test_names_that_a_collation_considers_equal_are_distinct(connect):
    client = connect()
    holds = [client.lock(name, timeout=0).acquire() for name in NAMES]
    assert len({hold.fence for hold in holds}) >= 1
    assert sorted(client.names()) == sorted(NAMES)
    assert client.names("orders") == ["orders", "orders\t", "orders "]
    for name, hold in zip(NAMES, holds, strict=True):
        assert client.inspect(name).holders[0].fence == hold.fence
        hold.release()
    assert client.names() == []


def test_a_fence_is_above_the_last_one_though_the_clock_was_set_back(connect, database):
    client = connect()
    with client.lock("a") as hold:
        first = hold.fence
    ahead = first + 3_600_000_000  # as if the clock had been an hour ahead
    database.call("UPDATE lockfast_names SET last_fence = %s", ahead)
    with client.lock("a") as hold:
        assert hold.fence == ahead + 1
    semaphore = client.semaphore("a", 2)
    with semaphore as one:
        assert one.fence == ahead + 2


def test_a_fence_is_the_servers_clock_in_microseconds(connect):
    with connect().lock("a") as hold:
        assert abs(hold.fence / 1e6 - time.time()) < 5


def test_the_clients_wall_clock_is_never_read(connect, monkeypatch):
    def wrong() -> float:
        raise AssertionError("the client's wall clock was read")

    monkeypatch.setattr(clock, "wall", wrong)
    client, other = connect(), connect()
    with client.lock("a", lease=1.5, renew=True):
        assert 1.0 < client.inspect("a").holders[0].remaining <= 1.5
        assert other.lock("a").try_acquire() is None
        time.sleep(2.0)
        assert other.lock("a").try_acquire() is None


def test_a_lease_ends_by_the_servers_clock(connect, database):
    client, other = connect(), connect()
    client.lock("a", lease=30, renew=False).acquire()
    assert other.lock("a").try_acquire() is None
    database.call(f"UPDATE lockfast_names SET ends = {database.ago(1)}")
    assert other.lock("a").try_acquire() is not None


def test_the_row_of_a_released_name_is_swept_after_90_seconds(connect, database, monkeypatch):
    monkeypatch.setattr(rows_store, "SWEEP_EVERY", 1)
    client = connect()
    for name in ("old", "young", "other"):
        with client.lock(name):
            pass
    held = client.lock("held").acquire()
    database.call(
        f"UPDATE lockfast_names SET ends = {database.ago(100)}, since = {database.ago(100)} "
        "WHERE hash = %s",
        hash_of("default:old"),
    )
    database.call(f"UPDATE lockfast_names SET since = {database.ago(100)} WHERE id <> ''")
    for _ in range(6):
        with client.lock("other"):
            pass
    kept = {name for (name,) in database.call("SELECT name FROM lockfast_names")}
    assert kept == {"default:young", "default:other", "default:held"}
    held.release()


def test_expired_rows_of_a_contended_name_are_swept_too(connect, database, monkeypatch):
    store = database.store()
    for number in range(40):
        store.claim((Claim("n", f"id-{number}", "host 1 t", 30.0),), 5.0)[0]
    for table in ("lockfast_names", "lockfast_rows"):
        database.call(f"UPDATE {table} SET ends = {database.ago(100)}, since = {database.ago(100)}")
    monkeypatch.setattr(rows_store, "SWEEP_EVERY", 1)
    client = connect()
    for _ in range(6):
        with client.lock("other"):
            pass
    assert database.call("SELECT count(*) FROM lockfast_rows") == [(0,)]
    assert database.call("SELECT count(*) FROM lockfast_names WHERE contended") == [(0,)]
    store.close()


def test_an_operator_can_select_the_holder(connect, database):
    client = connect()
    with client.lock("a", label="nightly"):
        ((name, who, fence),) = database.call("SELECT name, who, fence FROM lockfast_names")
        assert name == "default:a" and "nightly" in who and fence > 0


def test_dropped_tables_are_created_again_and_the_hold_is_reported_lost(connect, database):
    client = connect(lease=1.5)
    hold = client.lock("a").acquire()
    database.drop_tables()
    assert hold.wait_lost(3)
    with connect().lock("a", timeout=5) as again:
        assert again.fence > hold.fence
    with pytest.raises(lockfast.HoldLost):
        hold.release()


def test_a_table_of_another_program_with_the_same_name_is_not_touched(connect, database):
    database.call("CREATE TABLE lockfast_names (what int)")
    with pytest.raises(BackendError) as caught:
        connect().lock("a").acquire(timeout=1)
    assert not caught.value.transient


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cret@h/d?sslmod=x", "mysql://u:s3cret@h/d?ssl_c=x"]
)
def test_an_unknown_option_is_refused_with_a_suggestion(url):
    with pytest.raises(lockfast.ConfigurationError, match=r"did you mean ssl\w+\?") as caught:
        lockfast.connect(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h:x/d", "mariadb://u:s3cret@h", "postgresql://u:s3cret@h:x/d"]
)
def test_a_malformed_url_is_refused_without_showing_its_password(url):
    with pytest.raises(lockfast.ConfigurationError) as caught:
        lockfast.connect(url)
    assert "s3cret" not in str(caught.value)

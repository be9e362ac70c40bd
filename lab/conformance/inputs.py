"""User input: names that must stay distinct, values that are refused, ids that are never shown."""

from __future__ import annotations

import copy
import pickle
import re
import unicodedata
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from lab.conformance.adapters import maybe_await
from lab.conformance.cases import case, raises
from lab.conformance.worlds import World
from lockfast import AcquireTimeout, ConfigurationError, HoldLost, NotHeld, aio, sync

DISTINCT_NAMES = [
    *("a", "A", "a ", " a", "a\n", "a\r\n", "\r\na", "a\t", "{", "}", "{a}", "{a}{b}", "*", "a*"),
    *("/", "a/", "/a", "a/b", ".", "..", "../a", "a:b", ":", "::", "a:", "%", "%61", "a%", "_"),
    *(
        "\\",
        "'",
        '"',
        "a'--",
        ";",
        "\x7f",
        "\x01",
        "\u200b",
        "\ufeff",
        "🔒",
        "🔒🔒",
        "\U0001d49c",
        "ß",
        "SS",
    ),
    *("İ", "i", "I", "\u0131", "ｶ", "カ", "か\u3099", "が", "null", "None", "0", "00", "x" * 1000),
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
]

BAD_NAMES: list[Any] = [
    *("", "\0", "a\0b", "\ud800", "a\udfff", "x" * 1001, "é" * 501, "x" * 1_000_000),
    *(b"a", bytearray(b"a"), 1, 1.5, None, True, ["a"], ("a",), object()),
]
BAD_SECONDS: list[Any] = [
    *(-1, -0.001, float("nan"), float("inf"), float("-inf"), 1e18, 10**400, -(10**400)),
    *("5", "", True, False, b"5", [5], object(), 1j, Decimal("NaN"), timedelta(-1), timedelta.max),
]


class Named(str, Enum):  # noqa: UP042 (a StrEnum formats as its value, this one does not)
    REPORT = "report"


@case()
async def test_different_names_are_different_locks(world: World) -> None:
    assert len(set(DISTINCT_NAMES)) == len(DISTINCT_NAMES)
    client, other = world.client(), world.client()
    fences = {}
    for name in DISTINCT_NAMES:
        hold = await client.lock(name).try_acquire()
        assert hold is not None, f"{name!r} was mistaken for another name"
        assert hold.name == name
        fences[name] = hold.fence
    assert await other.names() == sorted(DISTINCT_NAMES)
    for name in DISTINCT_NAMES:
        (holder,) = (await other.inspect(name)).holders
        assert holder.fence == fences[name] and await other.lock(name).try_acquire() is None
        await client.lock(name).release()
        assert not await other.lock(name).locked()


@case()
async def test_a_subclass_of_str_is_a_name_by_its_text(world: World) -> None:
    client, other = world.client(), world.client()
    async with client.lock(Named.REPORT) as hold:
        assert hold.name == "report" and await other.names() == ["report"]
        assert await other.lock("report").try_acquire() is None


@case()
async def test_an_invalid_name_is_refused_before_any_io(world: World) -> None:
    client = world.client()
    for name in BAD_NAMES:
        for verb in (client.lock, client.inspect, client.raw.lock):
            with raises(ConfigurationError) as caught:
                await maybe_await(verb(name))
            assert len(str(caught)) < 400, "a long name was copied into the message"
        with raises(ConfigurationError):
            await client.break_hold(name, 1)
    assert client.statistics().acquired == 0


@case()
async def test_an_invalid_duration_is_refused_before_any_io(world: World) -> None:
    client = world.client()
    lock = client.lock("a")
    hold = await lock.acquire()
    for seconds in BAD_SECONDS:
        for option in ("lease", "timeout", "max_hold"):
            with raises(ConfigurationError, option):
                client.lock("a", **{option: seconds})
        for verb in (lock.acquire, lock.try_acquire):
            with raises(ConfigurationError, "timeout"):
                await verb(timeout=seconds)
        with raises(ConfigurationError, "lease"):
            await hold.renew(lease=seconds)
        with raises(ConfigurationError, "lease"):
            world.client(lease=seconds)
        with raises(ConfigurationError):
            await hold.wait_lost(seconds)
    for seconds in (0, 0.0, 0.0004, 1e-9, timedelta(0), timedelta(microseconds=400)):
        for option in ("lease", "max_hold"):
            with raises(ConfigurationError, option):
                client.lock("a", **{option: seconds})
    await hold.release()


@case()
async def test_durations_are_kept_exactly(world: World) -> None:
    client = world.client()
    most = min(1e6, client.capabilities.longest_lease)
    for duration, seconds in (
        (timedelta(seconds=2.5), 2.5),
        (7, 7.0),
        (0.0625, 0.0625),
        (most, most),
    ):
        hold = await client.lock("a", lease=duration, timeout=duration).acquire()
        assert hold.lease == seconds and hold.remaining() <= seconds
        await client.break_hold("a", hold.fence)
        with raises(HoldLost):
            await hold.release()


@case()
async def test_keywords_of_other_libraries_are_refused_with_a_suggestion(world: World) -> None:
    client = world.client()
    lock = client.lock("a")
    for foreign, ours in (
        *(("expire", "lease"), ("ttl", "lease"), ("px", "lease"), ("lease_time", "lease")),
        *(("blocking_timeout", "timeout"), ("wait_time", "timeout"), ("waitTime", "timeout")),
        *(
            ("auto_renewal", "renew"),
            ("token", "owner"),
            ("leas", "lease"),
            ("time_out", "timeout"),
        ),
    ):
        with raises(ConfigurationError, repr(foreign), f"{ours}="):
            client.lock("a", **{foreign: 5})
    for verb in (lock.acquire, lock.try_acquire):
        with raises(ConfigurationError, "'blocking_timeout'", "timeout="):
            await verb(blocking_timeout=5)
        with raises(ConfigurationError, "'blocking'", "try_acquire()"):
            await verb(blocking=False)
        with raises(ConfigurationError, "'whatever'", "timeout="):
            await verb(whatever=1)
    for connect in (sync.connect, aio.connect):
        with raises(ConfigurationError, "'prefix'", "namespace="):
            connect(world.url, prefix="x")  # type: ignore[arg-type]
    with raises(ConfigurationError, "'expire'"):
        await client.attach("a", "lf1:x:1:1.0", expire=5)
    assert not await client.names()


@case()
async def test_other_invalid_options_are_refused(world: World) -> None:
    client = world.client()
    bad_terms: tuple[dict[str, Any], ...] = (
        *({"fair": 1}, {"fair": None}, {"renew": "yes"}, {"owner": []}, {"on_lost": "explode"}),
        *({"label": 5}, {"label": None}, {"label": "\ud800"}),
    )
    for bad in bad_terms:
        with raises(ConfigurationError, next(iter(bad))):
            client.lock("a", **bad)
    for namespace in ("", "a:b", "a b", "é", "x" * 65, None, 5):
        with raises(ConfigurationError, "namespace"):
            world.client(namespace=namespace)  # type: ignore[arg-type]
    for text in ("", "lf1", "lf1:a:b:c", "lf2:a:1:1.0", "lf1:a:1:nan", "lf1:a:1:-1", None, 5, b"x"):
        with raises(ConfigurationError, "detach"):
            await client.attach("a", text)  # type: ignore[arg-type]
    with raises(TypeError):
        await maybe_await(client.raw.lock("a").acquire(5))  # type: ignore[call-arg]


@case()
async def test_invalid_urls_are_refused(world: World) -> None:
    for url in ("", "a", "locks.db", "nosuch://x", "memory", "memory://a/b", "memory://[", 5, b"x"):
        for connect in (sync.connect, aio.connect):
            with raises(ConfigurationError):
                connect(url)  # type: ignore[arg-type]
    with raises(ConfigurationError, "memory://") as caught:
        sync.connect("memroy://user:secret@host")
    assert "secret" not in str(caught)


@case()
async def test_a_hold_cannot_be_copied_or_pickled(world: World) -> None:
    async with world.client().lock("a") as hold:
        for forbidden in (copy.copy, copy.deepcopy, pickle.dumps):
            with raises(TypeError, "detach"):
                forbidden(hold.raw)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with raises(TypeError):
                pickle.dumps(hold.raw, protocol)


@case()
async def test_errors_can_be_pickled(world: World) -> None:
    client, other = world.client(), world.client()
    hold = await client.lock("a").acquire()
    with raises(AcquireTimeout) as busy:
        await other.lock("a").acquire(timeout=0)
    await other.break_hold("a", hold.fence)
    with raises(HoldLost) as lost:
        await hold.renew()
    with raises(NotHeld) as not_held:
        await other.lock("a").release()
    for caught in (busy, lost, not_held):
        again = pickle.loads(pickle.dumps(caught.error))
        assert type(again) is type(caught.error) and str(again) == str(caught)
        assert again.__dict__ == caught.error.__dict__
    with raises(HoldLost):
        await hold.release()


@case()
async def test_no_claim_id_appears_in_a_repr_or_message(world: World) -> None:
    client, other = world.client(), world.client()
    shown: list[object] = []
    hold = await client.lock("a").acquire()
    with raises(AcquireTimeout) as busy:
        await other.lock("a").acquire(timeout=0.02)
    shown += [client.raw, client.lock("a").raw, hold.raw, hold.raw._held, hold.raw._held.claim]
    shown += [busy, busy.error, busy.error.snapshot, await other.inspect("a")]
    shown += [client.statistics(), client.capabilities, client.raw._core, client.raw._core.ledger]
    await other.break_hold("a", hold.fence)
    with raises(HoldLost) as lost:
        await hold.renew()
    shown += [lost, lost.error, hold.raw]
    with raises(HoldLost):
        await hold.release()
    with raises(NotHeld) as not_held:
        await hold.release()
    shown += [not_held, not_held.error]
    text = await (await client.lock("a").acquire()).detach()
    with raises(NotHeld) as wrong:
        await other.attach("b", text)
    await (await other.attach("a", text)).release()
    shown += [wrong, wrong.error]
    for thing in shown:
        for text in (str(thing), repr(thing)):
            assert not re.search("[0-9a-f]{32}", text), (
                f"{type(thing).__name__} shows a claim id: {text}"
            )

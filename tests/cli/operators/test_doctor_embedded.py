"""`lockfast doctor` before ZooKeepers, files and memory, and what it says to whoever sits there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_reports import Verdict
from operator_commands import Operator

import lockfast
from lockfast.cli import doctor
from lockfast.cli.doctor import examine, judged_clock, judged_latency
from lockfast.stores.health_checks import Level, version_of
from lockfast.stores.sqlite import health
from lockfast.stores.sqlite.health import file_system_of, judged_place
from lockfast.stores.zookeeper.health import health_checks
from lockfast.stores.zookeeper.session import Address

# ---- ZooKeeper ------------------------------------------------------------------------------


def test_a_zookeeper_alone_is_a_warning(say: Operator, zookeeper_server: Any) -> None:
    found = Verdict(say, zookeeper_server.url)
    assert (found.code, found.levels("servers")) == (0, {"warn"})
    assert "one server alone" in found.text("servers")
    assert found.levels("version") == found.levels("session") == {"ok"}
    assert found.levels("rights") == {"ok", "note"}  # it works, and is open to everybody


def test_a_session_that_was_not_granted_as_asked_is_a_warning(
    say: Operator, zookeeper_server: Any
) -> None:
    found = Verdict(say, f"{zookeeper_server.url}?session_timeout=300")
    assert found.levels("session") == {"warn"}
    assert "gave 60.0 s" in found.text("session") and "300 s" in found.text("session")


def test_an_ensemble_is_fit_and_one_that_is_away_is_a_warning(
    say: Operator, new_zookeepers: Callable[..., Any]
) -> None:
    ensemble = new_zookeepers(3)
    away = ensemble.followers()[0]
    found = Verdict(say, ensemble.url)
    assert (found.faults, found.levels("servers")) == ([], {"ok"})
    one = Verdict(say, away.url)
    assert one.levels("servers") == {"warn"} and "names one server" in one.text("servers")
    away.kill()
    found = Verdict(say, ensemble.url)
    assert (found.code, found.levels("servers")) == (0, {"warn"})
    assert away.host in found.text("servers")


def test_who_does_not_answer_for_itself_is_not_judged() -> None:
    address = Address("zookeeper://here", "127.0.0.1:1", "", 10.0, {}, ())
    found = list(health_checks(address, 10.0))
    assert [one.level for one in found] == [Level.NOTE, Level.WARN, Level.OK]


# ---- files ----------------------------------------------------------------------------------

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /srv rw - tmpfs tmpfs rw
31 30 0:41 / /srv/app\\040data rw,relatime shared:7 - nfs4 filer:/export rw,vers=4.2
32 31 0:42 / /srv/app\\040data/local rw - xfs /dev/sdb1 rw
33 22 0:43 / /mnt rw - ext4 /dev/sdc1 rw
34 33 0:44 / /mnt rw - cifs //filer/share rw
35 22 0:45 / /home rw - fuse.somethingfs x rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "level"),
    [
        ("/var/lib/locks.db", "ext4", Level.OK),
        ("/srv/locks.db", "tmpfs", Level.OK),
        ("/srv/app data/locks.db", "nfs4", Level.BAD),
        ("/srv/app data/local/locks.db", "xfs", Level.OK),
        ("/srv/application/locks.db", "tmpfs", Level.OK),
        ("/mnt/locks.db", "cifs", Level.BAD),
        ("/home/me/locks.db", "fuse.somethingfs", Level.WARN),
    ],
)
def test_a_file_system_that_hosts_share_is_bad(path: str, kind: str, level: Level) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind
    assert judged_place(kind).level is level


def test_where_the_system_does_not_tell_nothing_is_claimed() -> None:
    assert file_system_of(Path("/x"), "") == "" == file_system_of(Path("/x"), "nonsense\n1 2")
    assert judged_place("").level is Level.OK


def test_a_file_is_fit_unless_others_may_write_to_it_or_there_is_no_room(
    say: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    found = Verdict(say, "--strict", url)
    assert (found.code, found.faults) == (0, [])
    (tmp_path / "locks.db").chmod(0o666)
    assert "warn" in Verdict(say, url).levels("rights")
    (tmp_path / "locks.db").chmod(0o660)
    assert "note" in Verdict(say, url).levels("rights")
    monkeypatch.setattr(health, "LEAST_ROOM", 2**62)
    full = Verdict(say, url)
    assert (full.code, full.levels("room")) == (1, {"bad"})


def test_memory_says_that_it_is_of_one_process(say: Operator) -> None:
    found = Verdict(say, "memory://")
    assert (found.code, found.levels("reach")) == (0, {"note"})


# ---- what is measured, and said --------------------------------------------------------------


def test_latency_and_clock_are_judged() -> None:
    assert judged_latency([0.001] * 50).level is Level.OK
    assert judged_latency([0.001] * 49 + [0.2]).level is Level.NOTE
    hiccup = judged_latency([0.001] * 49 + [0.7])
    assert hiccup.level is Level.NOTE and hiccup.facts["p99_ms"] == 700.0
    assert judged_latency([0.2] * 50).level is Level.WARN
    assert judged_clock(1.5, 1.0).level is Level.OK  # it took too long to tell
    assert [judged_clock(skew, 0.01).level for skew in (0.2, -0.2, 30.0, -30.0)] == [
        *(Level.OK, Level.OK),
        *(Level.WARN, Level.WARN),
    ]


def test_versions_are_compared_as_numbers() -> None:
    assert version_of("10.11.6-MariaDB") == (10, 11, 6) > version_of("9.9")
    assert version_of("15.3 (Debian 15.3-0)") >= (12,) and version_of("") == ()


def test_the_verdict_is_one_line_at_the_end(say: Operator, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    assert say("doctor", url).out.splitlines()[-1] == "fit for locks"
    (tmp_path / "locks.db").chmod(0o666)
    told = say("doctor", "--url", url)
    assert told.code == 0 and told.out.splitlines()[-1] == "1 to be warned of"
    assert say("doctor", "--strict", url).code == 1
    assert "-> chmod o-w" in told.out


def test_a_wrong_url_is_one_line(say: Operator) -> None:
    told = say("doctor", "rediss//oops")
    assert (told.code, told.out) == (2, "") and told.err.count("\n") == 1


class Bare:
    """A store that has no examination of its own."""

    def __init__(self, store: Any) -> None:
        self.url, self.blocking, self.tasks = store.url, store.blocking, store.tasks


def test_a_store_without_an_examination_is_tried_all_the_same() -> None:
    with lockfast.connect("memory://") as real:
        client = lockfast.Client.on(Bare(real.store), lease=30, namespace="default")
        found = {one.about: one.level for one in examine(client)}
    assert found["store"] is Level.NOTE and found["rights"] is found["latency"] is Level.OK


def test_a_store_that_lies_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://") as client:
        monkeypatch.setattr(client, "break_hold", lambda name, fence: False)
        (broken,) = [one for one in examine(client) if one.level is Level.BAD]
        assert "cannot be broken" in broken.found
        monkeypatch.setattr(doctor, "_broken", lambda client, name: 1)
        (fence,) = [one for one in examine(client) if one.level is Level.BAD]
        assert fence.about == "fence" and "no greater fence" in fence.found


def test_a_store_that_goes_away_while_it_is_examined_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*said: object) -> None:
        raise lockfast.BackendError("it is away")

    with lockfast.connect("memory://") as client:
        client.store.health_checks = away  # type: ignore[attr-defined]
        monkeypatch.setattr(client, "names", away)
        monkeypatch.setattr(doctor, "_broken", away)
        found = [one.found for one in examine(client) if one.level is Level.BAD]
    assert [text.split(":")[0] for text in found] == [
        "a lock cannot be listed",
        "a lock cannot be broken",
    ]

"""`lockfast doctor` on ZooKeeper, files and memory, and the text of its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_reports import Verdict
from operator_commands import Command

import lockfast
from lockfast.cli import doctor
from lockfast.cli.doctor import examine, judged_clock, judged_latency
from lockfast.stores import Endpoint
from lockfast.stores.health_checks import Level, version_of
from lockfast.stores.sqlite import endpoint
from lockfast.stores.sqlite.endpoint import check_location, file_system_of
from lockfast.stores.zookeeper.health import health_checks
from lockfast.stores.zookeeper.session import Address

# ---- ZooKeeper ------------------------------------------------------------------------------


def test_a_single_zookeeper_is_a_warning(command: Command, zookeeper_server: Any) -> None:
    found = Verdict(command, zookeeper_server.url)
    assert (found.code, found.levels("servers")) == (0, {"warn"})
    assert "one server alone" in found.text("servers")
    assert found.levels("version") == found.levels("session") == {"ok"}
    assert found.levels("rights") == {"ok", "note"}  # works, and is open to everybody


def test_a_session_that_was_not_granted_as_asked_is_a_warning(
    command: Command, zookeeper_server: Any
) -> None:
    found = Verdict(command, f"{zookeeper_server.url}?session_timeout=300")
    assert found.levels("session") == {"warn"}
    assert "gave 60.0 s" in found.text("session") and "300 s" in found.text("session")


def test_an_ensemble_is_fit_and_an_unreachable_server_is_a_warning(
    command: Command, new_zookeepers: Callable[..., Any]
) -> None:
    ensemble = new_zookeepers(3)
    away = ensemble.followers()[0]
    found = Verdict(command, ensemble.url)
    assert (found.faults, found.levels("servers")) == ([], {"ok"})
    one = Verdict(command, away.url)
    assert one.levels("servers") == {"warn"} and "names one server" in one.text("servers")
    away.kill()
    found = Verdict(command, ensemble.url)
    assert (found.code, found.levels("servers")) == (0, {"warn"})
    assert away.host in found.text("servers")


def test_a_server_without_srvr_is_not_judged() -> None:
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
def test_a_network_file_system_is_bad(path: str, kind: str, level: Level) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind
    assert check_location(kind).level is level


def test_an_unknown_file_system_is_ok() -> None:
    assert file_system_of(Path("/x"), "") == "" == file_system_of(Path("/x"), "nonsense\n1 2")
    assert check_location("").level is Level.OK


def test_a_file_is_fit_unless_others_may_write_to_it_or_the_disk_is_full(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    found = Verdict(command, "--strict", url)
    assert (found.code, found.faults) == (0, [])
    (tmp_path / "locks.db").chmod(0o666)
    assert "warn" in Verdict(command, url).levels("rights")
    (tmp_path / "locks.db").chmod(0o660)
    assert "note" in Verdict(command, url).levels("rights")
    monkeypatch.setattr(endpoint, "MIN_FREE", 2**62)
    full = Verdict(command, url)
    assert (full.code, full.levels("room")) == (1, {"bad"})


def test_memory_notes_that_it_works_within_one_process(command: Command) -> None:
    found = Verdict(command, "memory://")
    assert (found.code, found.levels("reach")) == (0, {"note"})


# ---- measurements and the report -------------------------------------------------------------


def test_latency_and_clock_are_judged() -> None:
    assert judged_latency([0.001] * 50).level is Level.OK
    assert judged_latency([0.001] * 49 + [0.2]).level is Level.NOTE
    hiccup = judged_latency([0.001] * 49 + [0.7])
    assert hiccup.level is Level.NOTE and hiccup.facts["p99_ms"] == 700.0
    assert judged_latency([0.2] * 50).level is Level.WARN
    assert judged_clock(1.5, 1.0).level is Level.OK  # measured too imprecisely to judge
    assert [judged_clock(skew, 0.01).level for skew in (0.2, -0.2, 30.0, -30.0)] == [
        *(Level.OK, Level.OK),
        *(Level.WARN, Level.WARN),
    ]


def test_versions_are_compared_as_numbers() -> None:
    assert version_of("10.11.6-MariaDB") == (10, 11, 6) > version_of("9.9")
    assert version_of("15.3 (Debian 15.3-0)") >= (12,) and version_of("") == ()


def test_the_summary_is_one_line_at_the_end(command: Command, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    assert command("doctor", url).out.splitlines()[-1] == "fit for locks"
    (tmp_path / "locks.db").chmod(0o666)
    result = command("doctor", "--url", url)
    assert result.code == 0 and result.out.splitlines()[-1] == "fit for locks, with 1 warning"
    assert command("doctor", "--strict", url).code == 1
    assert "-> chmod o-w" in result.out


def test_an_invalid_url_is_reported_in_one_line(command: Command) -> None:
    result = command("doctor", "rediss//oops")
    assert (result.code, result.out) == (2, "") and result.err.count("\n") == 1


class Bare(Endpoint):
    """A store without health checks of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.url, self._inner = endpoint.url, endpoint

    def blocking(self, signal: Any) -> Any:
        return self._inner.blocking(signal)

    def tasks(self, signal: Any) -> Any:
        return self._inner.tasks(signal)


def test_a_store_without_health_checks_is_tried_all_the_same() -> None:
    with lockfast.connect("memory://") as real:
        client = lockfast.Client._on(Bare(real._endpoint), lease=30, namespace="default")
        found = {one.about: one.level for one in examine(client)}
    assert found["store"] is Level.NOTE and found["rights"] is found["latency"] is Level.OK


def test_a_store_that_breaks_its_contract_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://") as client:
        monkeypatch.setattr(client, "break_hold", lambda name, fence: False)
        (broken,) = [one for one in examine(client) if one.level is Level.BAD]
        assert "cannot be broken" in broken.found
        monkeypatch.setattr(doctor, "_break", lambda client, name: 1)
        (fence,) = [one for one in examine(client) if one.level is Level.BAD]
        assert fence.about == "fence" and "fences do not grow" in fence.found


def test_an_outage_during_the_checks_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise lockfast.BackendError("unreachable")

    with lockfast.connect("memory://") as client:
        client._endpoint.health_checks = fail  # type: ignore[attr-defined]
        monkeypatch.setattr(client, "names", fail)
        monkeypatch.setattr(doctor, "_break", fail)
        found = [one.found for one in examine(client) if one.level is Level.BAD]
    assert [text.split(":")[0] for text in found] == [
        "a lock cannot be listed",
        "a lock cannot be broken",
    ]

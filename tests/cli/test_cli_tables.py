"""Tables, and what strangers wrote in them."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from cli_processes import LOCKFAST, run

import lockfast
from lockfast.cli.render import moment
from lockfast.cli.sanitize import cut, legible, quoted, shown, width_of
from lockfast.cli.table import Column, table
from lockfast.core.explain import ago


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("orders:42", "orders:42"),
        ("päivä 日本", "päivä 日本"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x9b", "\\u009b"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("\\x1b", "\\\\x1b"),
    ],
)
def test_what_is_not_printable_is_shown_as_an_escape(text: str, seen: str) -> None:
    assert shown(text) == seen
    assert shown(text).isprintable() and legible(text).isprintable()


@pytest.mark.parametrize(
    "name", ["job", "two words", "it's", "\x1b[31m'\\", "a\nb", "\x9b\u202e", "$(reboot)", "日本"]
)
def test_a_name_that_is_pasted_into_a_shell_is_that_name(name: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(name)}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.decode() == name
    assert quoted(name).isprintable()


def test_a_table_fits_and_cuts_the_middle_of_what_may_be_cut() -> None:
    columns = (Column("NAME", cuts=True), Column("EMPTY"), Column("N", right=True))
    rows = [["x" * 50 + "tail", "", "1"], ["short", "", "22"]]
    lines = table(columns, rows, 30)
    assert lines[0] == "NAME                         N"
    assert lines[1].startswith("xxx") and "…" in lines[1] and "tail   1" in lines[1]
    assert max(map(width_of, lines)) == 30
    assert "x" * 50 + "tail" in table(columns, rows, None)[1]


def test_wide_letters_count_twice() -> None:
    assert width_of("日本") == 4 and width_of("e\u0301") == 1
    assert cut("日本日本日本", 7) == "日本…本"
    lines = table((Column("A"), Column("B")), [["日本", "x"], ["ab", "y"]], 80)
    assert lines[1:] == ["日本  x", "ab    y"]


def test_durations_are_said_as_people_say_them() -> None:
    said = [ago(seconds) for seconds in (-1, 3.21, 192, 3 * 3600 + 60, 50 * 3600)]
    assert said == ["0.0 s", "3.2 s", "3 min 12 s", "3 h 1 min", "2 d 2 h"]


def test_an_encoding_that_lacks_a_letter_is_no_traceback(client: lockfast.Client) -> None:
    with client.lock("päivä日本"):
        done = run("ls", env={"PYTHONIOENCODING": "ascii", "LOCKFAST_URL": client.store.url})
        assert (done.returncode, done.stderr) == (0, "")
        assert "p\\xe4iv\\xe4\\u65e5\\u672c" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback(client: lockfast.Client) -> None:
    with client.lock("job"):
        command = f"{shlex.join(LOCKFAST)} ls | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 141) and done.stderr == ""


def test_what_has_no_room_is_cut_to_nothing_and_no_further() -> None:
    assert [cut("abcdef", width) for width in (0, 1, 2, 3, 6)] == ["", "…", "a…", "a…f", "abcdef"]
    lines = table((Column("A", cuts=True), Column("B")), [["x" * 20, "y" * 20]], 10)
    assert lines[1] == "xxxx…xxx  " + "y" * 20


def test_moments_that_no_calendar_has_are_none() -> None:
    assert moment(0.0) == "1970-01-01T00:00:00.000Z"
    assert moment(1e300) is None and moment(float("nan")) is None

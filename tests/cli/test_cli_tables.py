"""Tables, and foreign text in them."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from cli_processes import LOCKFAST, run

import lockfast
from lockfast.cli import escaped, printable, shell_quoted, shorten, table, width_of
from lockfast.cli.admin import moment
from lockfast.core.explain import ago


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_unprintable_characters_are_shown_as_escapes(text: str, expected: str) -> None:
    assert escaped(text) == expected
    assert escaped(text).isprintable() and printable(text).isprintable()


@pytest.mark.parametrize(
    "name", ["job", "two words", "it's", "\x1b[31m'\\", "a\nb", "\x9b\u202e", "$(reboot)", "日本"]
)
def test_a_quoted_name_survives_being_pasted_into_a_shell(name: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shell_quoted(name)}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.decode() == name
    assert shell_quoted(name).isprintable()


def test_a_table_shortens_the_middle_of_shortenable_columns_to_fit() -> None:
    columns = ("NAME…", "EMPTY", "N>")
    rows = [["x" * 50 + "tail", "", "1"], ["short", "", "22"]]
    lines = table(columns, rows, 30)
    assert lines[0] == "NAME                         N"
    assert lines[1].startswith("xxx") and "…" in lines[1] and "tail   1" in lines[1]
    assert max(map(width_of, lines)) == 30
    assert "x" * 50 + "tail" in table(columns, rows, None)[1]


def test_wide_characters_count_as_two_columns() -> None:
    assert width_of("日本") == 4 and width_of("e\u0301") == 1
    assert shorten("日本日本日本", 7) == "日本…本"
    lines = table(("A", "B"), [["日本", "x"], ["ab", "y"]], 80)
    assert lines[1:] == ["日本  x", "ab    y"]


def test_durations_are_formatted_for_people() -> None:
    texts = [ago(seconds) for seconds in (-1, 3.21, 192, 3 * 3600 + 60, 50 * 3600)]
    assert texts == ["0.0 s", "3.2 s", "3 min 12 s", "3 h 1 min", "2 d 2 h"]


def test_a_character_that_the_encoding_lacks_causes_no_traceback(client: lockfast.Client) -> None:
    with client.lock("päivä日本"):
        done = run("ls", env={"PYTHONIOENCODING": "ascii", "LOCKFAST_URL": client._endpoint.url})
        assert (done.returncode, done.stderr) == (0, "")
        assert "p\\xe4iv\\xe4\\u65e5\\u672c" in done.stdout


def test_a_closed_pipe_causes_no_traceback(client: lockfast.Client) -> None:
    with client.lock("job"):
        command = f"{shlex.join(LOCKFAST)} ls | true; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 141) and done.stderr == ""


def test_shortening_stops_at_the_least_width() -> None:
    assert [shorten("abcdef", width) for width in (0, 1, 2, 3, 6)] == [
        "",
        "…",
        "a…",
        "a…f",
        "abcdef",
    ]
    lines = table(("A…", "B"), [["x" * 20, "y" * 20]], 10)
    assert lines[1] == "xxxx…xxx  " + "y" * 20


def test_times_out_of_range_are_none() -> None:
    assert moment(0.0) == "1970-01-01T00:00:00.000Z"
    assert moment(1e300) is None and moment(float("nan")) is None

"""The command as people type it: without ``--``, with durations, and with slips of the keyboard."""

from __future__ import annotations

import argparse
import json

import pytest
from cli_processes import error_line, run

import lockfast
from lockfast.cli import duration


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["job", "echo", "ran"], "ran"),
        (["job", "echo", "--timeout", "-n", "--"], "--timeout -n --"),
        (["--timeout", "1m", "job", "--label", "x", "echo", "ran"], "ran"),
        (["job", "--label=x", "--read", "echo", "a", "--", "b"], "a -- b"),
        (["job", "--lease", "10s", "--", "echo", "--", "ran"], "-- ran"),
        (["job", "sh", "-c", "echo $LOCKFAST_NAME"], "job"),
    ],
)
def test_options_end_where_the_command_begins(url: str, arguments: list[str], output: str) -> None:
    done = run("run", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{output}\n", "")


def test_a_command_whose_name_begins_with_a_dash_needs_two_dashes(url: str) -> None:
    done = run("run", "job", "-x")
    assert done.returncode == 2 and "unknown argument -x" in error_line(done)
    done = run("run", "job", "--", "-x")
    assert done.returncode == 127 and "-x: command not found" in error_line(done)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["shwo", "job"], "there is no verb 'shwo': did you mean show?"),
        (["rnu", "job", "true"], "did you mean run?"),
        (["run", "job", "--tiemout", "3", "true"], "--tiemout: did you mean --timeout?"),
        (["run", "--tiemout=3", "job", "true"], "--tiemout: did you mean --timeout?"),
        (["ls", "--jsn"], "--jsn: did you mean --json?"),
        (["show", "job", "more"], "unknown argument more (see lockfast show --help)"),
        (["frobnicate"], "there is no verb 'frobnicate' (see lockfast --help)"),
    ],
)
def test_a_slip_gets_one_line_with_a_hint(url: str, arguments: list[str], hint: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in error_line(done)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("2.5", 2.5), ("10s", 10.0), ("500ms", 0.5), ("5m", 300.0), ("1h30m", 5400.0),
        ("2d", 172800.0), ("1m1.5s", 61.5), ("-1", -1.0), ("1d2h3m4s5ms", 93784.005),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_or_has_units(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "10x", "s", "1m2h", "1 h", "--", "1h 30m", "²s"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no duration"):
        duration(text)


def test_every_option_in_seconds_takes_durations(client: lockfast.Client) -> None:
    with client.lock("job"):
        assert run("run", "job", "--timeout", "20ms", "true").returncode == 75
        assert "0.5" in error_line(run("run", "job", "--lease", "500ms", "true"))
    done = run("run", "job", "--max-hold", "1.2s", "--lease", "1m", "sh", "-c", "sleep 60")
    assert done.returncode == 76
    assert "between 1 and 3600" in error_line(run("demo", "--seconds", "2h"))
    assert "between 0.1 and 600" in error_line(run("bench", "--seconds", "1h", "memory://"))
    assert "must be between 0.2" in error_line(run("top", "--interval", "100ms"))


def test_break_prints_one_document_with_json(client: lockfast.Client) -> None:
    hold = client.lock("job", label="import").acquire()
    broken = run("break", "job", "--fence", hold.fence, "--yes", "--json")
    document = json.loads(broken.stdout)
    assert (broken.returncode, broken.stderr) == (0, "")
    assert (document["name"], document["broken"]) == ("job", True)
    assert document["previous"]["fence"] == hold.fence
    assert document["previous"]["label"] == "import" and document["holders"] == []
    again = run("break", "job", "--fence", hold.fence, "--yes", "--json")
    assert (again.returncode, again.stdout) == (1, "") and "not held" in error_line(again)


def test_bench_and_demo_print_one_document_with_json(url: str) -> None:
    quick = ("--seconds", "100ms", "--rounds", "1", "--contenders", "1")
    done = run("bench", *quick, "--json", "-", url)
    assert done.returncode == 0
    (result,) = json.loads(done.stdout)["results"]
    assert result["handovers"] > 0
    done = run("demo", "--seconds", "1", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0 and len(document["claims"]) == 4
    assert all(claim["holds"] for claim in document["claims"])


@pytest.mark.parametrize("verb", ["ls", "show", "break", "watch", "doctor", "bench", "demo"])
def test_every_verb_that_prints_results_offers_json(verb: str) -> None:
    assert "--json" in run(verb, "--help").stdout

"""`lockfast break` on a terminal, and its errors. For all stores: tests/cli/operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from cli_processes import LOCKFAST, Start, error_line, line, run
from cli_terminal import Terminal

import lockfast
from lockfast.cli.main import main


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "Y\n"])
def test_yes_after_the_holder_is_shown_breaks_the_hold(
    client: lockfast.Client, answer: str
) -> None:
    hold = client.lock("job", label="import").acquire()
    with Terminal("break", "job") as terminal:
        text = terminal.wait_for("Break it? [y/N] ")
        assert "MainThread (import)" in text and str(hold.fence) in text
        assert "its lease ends in" in text
        terminal.type(answer)
        assert terminal.end() == 0
        assert f"broken, fence {hold.fence}" in terminal.text
        assert "not held now" in terminal.text
    with pytest.raises(lockfast.HoldLost):
        hold.renew()


@pytest.mark.parametrize("answer", ["n\n", "\n", "maybe\n", "\x04", "\x03"])
def test_any_other_answer_breaks_nothing(client: lockfast.Client, answer: str) -> None:
    with client.lock("job") as hold, Terminal("break", "job") as terminal:
        terminal.wait_for("Break it? [y/N] ")
        terminal.type(answer)
        assert terminal.end() == (130 if answer == "\x03" else 1)
        assert "Traceback" not in terminal.text
        hold.renew()


def test_a_hold_acquired_while_the_question_was_open_is_not_broken(
    client: lockfast.Client,
) -> None:
    seen = client.lock("job").acquire()
    with Terminal("break", "job", "--fence", seen.fence) as terminal:
        terminal.wait_for("Break it? [y/N] ")
        seen.release()
        heir = client.lock("job").acquire()
        terminal.type("y\n")
        assert terminal.end() == 1
        assert "has ended meanwhile, nothing was broken" in terminal.text
    heir.release()


def test_a_store_lost_while_breaking_leaves_the_outcome_unknown(
    url: str, new_redis: Callable[..., Any]
) -> None:
    server = new_redis()
    with lockfast.connect(server.url) as client:
        hold = client.lock("job").acquire()
        with Terminal("break", "job", "--url", server.url) as terminal:
            terminal.wait_for("Break it? [y/N] ")
            server.kill()
            terminal.type("y\n")
            assert terminal.end() == 69
            assert "whether it was broken is unknown: lockfast show job" in terminal.text
        server.start()
        with contextlib.suppress(lockfast.LockfastError):
            hold.release()


def test_with_more_than_one_holder_a_fence_is_required(client: lockfast.Client) -> None:
    holds = [client.semaphore("pool", 3).acquire() for _ in range(2)]
    with Terminal("break", "pool") as terminal:
        assert terminal.end() == 2
        assert "2 holders, choose one with --fence" in terminal.text
    for hold in holds:
        hold.release()


def test_without_a_terminal_yes_and_a_fence_are_required(start: Start) -> None:
    holder = start(*LOCKFAST, "run", "job", "--", "sh", "-c", "echo $LOCKFAST_FENCE; cat")
    fence = line(holder)
    for arguments in (["job"], ["job", "--fence", fence], ["job", "--yes"]):
        done = run("break", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        error_line(done)
    done = run("break", "job", "--fence", fence, "--yes")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ["ls", "--limit", "0"]),
        (2, ["ls", "a", "b"]),
        (2, ["ls", "--url", "rediss//oops"]),
        (2, ["ls", "--url", "redis://:se:cret@[::1/0"]),
        (2, ["show"]),
        (2, ["show", ""]),
        (2, ["show", "job", "--namespace", "a b"]),
        (2, ["show", "x" * 2000]),
        (2, ["break", "job", "--fence", "one", "--yes"]),
        (2, ["break", "", "--fence", "1", "--yes"]),
        (2, ["brake", "job"]),
        (69, ["ls", "--url", "redis://:sesame@127.0.0.1:1/0"]),
        (69, ["show", "job", "--url", "sqlite:///dev/null/locks.db"]),
        (69, ["break", "job", "--fence", "1", "--yes", "--url", "redis://127.0.0.1:1/0"]),
    ],
)
def test_an_error_is_one_line_without_the_password(
    url: str, code: int, arguments: list[str]
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    message = error_line(done)
    assert "sesame" not in message and "cret" not in message


NOT_UTF8 = b"\xff".decode(errors="surrogateescape")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        *((2, [verb, NOT_UTF8, *more]) for verb, more in (
            ("ls", []), ("show", []), ("watch", []), ("break", ["--fence", "1", "--yes"]),
        )),
        (2, ["run", "job", "--label", NOT_UTF8, "--", "true"]),
        *((2, ["ls", "--url", url]) for url in (
            "", "nonsense", "http://x", "redis://h:99999", "redis://localhost/sesame", "redis://[x",
            "postgresql://u:sesame@[x/d", "mysql://u:sesame@h/", "zookeeper://", "sqlite://here",
            "redis://h\x1b[31m", "memory://a/b",
        )),
        (69, ["ls", "--url", f"redis://:sesame@{'a' * 70}"]),
        (69, ["ls", "--url", f"mysql://u:sesame@{'a' * 70}/d"]),
        (69, ["ls", "--url", "postgresql://u:sesame@127.0.0.1:1/d"]),
    ],
)  # fmt: skip
def test_an_invalid_name_or_url_is_one_line_without_the_password(
    code: int, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("lockfast: ") and err.count("\n") == 1
    assert "sesame" not in err and "\x1b" not in err

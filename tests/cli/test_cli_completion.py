"""`lockfast completion`: its scripts in real shells."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_processes import LOCKFAST, PATIENCE, error_line, run

import lockfast
from lockfast.cli.main import VERBS

SHELL = ["bash", "--norc", "--noprofile", "-c"]


def completed(typed: str) -> list[str]:
    """Completions that bash offers for this command line."""
    script = f"""
        lockfast() {{ {shlex.join(LOCKFAST)} "$@"; }}
        source <(lockfast completion bash)
        COMP_LINE={shlex.quote(typed)} COMP_POINT={len(typed)}
        _lockfast && printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        [*SHELL, script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_and_options(url: str) -> None:
    assert completed("lockfast sh") == ["show"]
    assert set(VERBS) < set(completed("lockfast "))
    assert completed("lockfast run job --sk") == ["--skip"]
    assert completed("lockfast completion f") == ["fish"]
    assert "true" in completed("lockfast run job -- tru")


def test_bash_completes_names_from_the_store(
    client: lockfast.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with client.lock("orders:42"), client.lock("orders:43"), client.lock("other"):
        assert completed("lockfast show ot") == ["other"]
        # To bash a colon ends a word: only the part after it is completed.
        assert completed("lockfast show orders:4") == ["42", "43"]
        elsewhere = f"--url sqlite://{tmp_path}/another.db"
        assert completed(f"lockfast show {elsewhere} ot") == []
        monkeypatch.setenv("LOCKFAST_URL", f"sqlite://{tmp_path}/another.db")
        assert completed(f"lockfast show --url {client._endpoint.url} ot") == ["other"]


def test_a_hostile_name_is_not_offered_to_a_shell(client: lockfast.Client, tmp_path: Path) -> None:
    trap = f"x$(touch {tmp_path}/trap)"
    with client.lock(trap), client.lock("x`id`"), client.lock("x y"), client.lock("xyz"):
        assert completed("lockfast show x") == ["xyz"]
        assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("store", ["redis://127.0.0.1:1/0", "nonsense", "sqlite:///dev/null/x.db"])
def test_an_unreachable_store_offers_no_names_and_prints_nothing(url: str, store: str) -> None:
    done = run("completion", "names", "--prefix=x", "--url", store)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("shell", "command"),
    [
        ("zsh", ["zsh", "-f", "-c", "autoload -Uz compinit; compinit -u -D; source $1; "
                 "print $_comps[lockfast]", "-"]),
        ("fish", ["fish", "-N", "-c", f"function lockfast; {shlex.join(LOCKFAST)} $argv; end; "
                  "source $argv[1]; complete -C 'lockfast show --on'"]),
    ],
)  # fmt: skip
def test_other_shells_accept_their_script(
    url: str, tmp_path: Path, shell: str, command: list[str]
) -> None:
    script = tmp_path / f"script.{shell}"
    script.write_text(run("completion", shell).stdout)
    assert all(f"{verb}" in script.read_text() for verb in VERBS)
    if shutil.which(shell) is None:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"no {shell} on this machine")
    done = subprocess.run(
        [*command, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert done.stderr == "" and ("_lockfast" in done.stdout or "--once" in done.stdout)


def test_an_unknown_shell_is_reported_in_one_line(url: str) -> None:
    done = run("completion", "tcsh")
    assert done.returncode == 2
    error_line(done)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples_and_exit_codes(verb: str) -> None:
    done = run(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    if verb != "demo":
        assert "\nexamples:\n" in done.stdout and "\nexit codes:\n" in done.stdout

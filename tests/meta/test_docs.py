"""Every example in the docs and in examples/ runs, in a process and a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STORES = (
    "memory", "sqlite", "redis", "redis-sentinel", "redis-cluster", "redlock", "zookeeper",
    "postgresql", "mysql",
)  # fmt: skip
STORE_PAGES = [ROOT / "docs" / f"{store}.md" for store in STORES]
# What an example says, the server that stands there when it is run, and how it is reached.
SERVERS = {
    "redis://localhost:6379/0": ("redis_server", lambda server: server.url),
    "redis+cluster://localhost:7000,localhost:7001": ("redis_cluster", lambda server: server.url),
    "redis://localhost:7000": ("redis_cluster", lambda server: server.nodes[0].url),
    "redis+sentinel://localhost:26379,localhost:26380/mymaster/0": (
        "redis_sentinels",
        lambda servers: servers.url,
    ),
    '[("localhost", 26379), ("localhost", 26380)]': (
        "redis_sentinels",
        lambda servers: str([("127.0.0.1", sentinel.port) for sentinel in servers.sentinels]),
    ),
    "redlock://a:6379,b:6379,c:6379": ("redlock_servers", lambda servers: servers.url),
    '"redis://a:6379/0", "redis://b:6379/0", "redis://c:6379/0"': (
        "redlock_servers",
        lambda servers: ", ".join(repr(node.url) for node in servers.nodes),
    ),
    "zookeeper://localhost:2181": ("zookeeper_server", lambda server: server.url),
    "postgresql+psycopg://app@localhost/app": (
        "postgres_server",
        lambda server: server.url.replace("://", "+psycopg://"),
    ),
    "postgresql://app@localhost/app": ("postgres_server", lambda server: server.url),
    "mysql://app@localhost:3306/app": ("mariadb_server", lambda server: server.url),
    'host="localhost", port=3306, user="app", database="app"': (
        "mariadb_server",
        lambda server: (
            f'host="127.0.0.1", port={server.port}, user="root", database="{server.database}"'
        ),
    ),
}
REPOSITORY = "https://github.com/lockfast/lockfast/blob/main/"
PARTS = ["Example", "What it offers", "How it works, and what it guarantees", "Options"]


def examples():
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        for number, block in enumerate(blocks, 1):
            yield pytest.param(block, False, id=f"{page.name}-{number}")
    for script in sorted((ROOT / "examples").glob("*.py")):
        yield pytest.param(script.read_text(), True, id=script.name)


@pytest.mark.parametrize("example, may_log", list(examples()))
def test_an_example_runs(example, may_log, tmp_path, request):
    for written, (fixture, reached) in SERVERS.items():
        if written in example:
            example = example.replace(written, reached(request.getfixturevalue(fixture)))
    script = tmp_path / "example.py"
    script.write_text(example)
    environment = os.environ | {"LOCKFAST_URL": f"sqlite://{tmp_path}/locks.db"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert may_log or done.stderr == ""


@pytest.mark.parametrize("page", STORE_PAGES, ids=lambda page: page.name)
def test_a_store_has_a_page_with_the_same_four_parts(page):
    assert re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE) == PARTS


def test_links_between_pages_lead_somewhere():
    for page in (*PAGES, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING"))):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if target.startswith(REPOSITORY):
                assert (ROOT / target.removeprefix(REPOSITORY)).exists(), f"{page.name}: {target}"
            elif "://" not in target:
                # A package page shows the README alone: relative links lead nowhere there.
                assert page.name != "README.md", f"{target} is relative"
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for named in re.findall(r"`((?:src|lab|tests)/[\w/.]+)`", text):
        assert (ROOT / named).exists(), named
    for folder, contents in re.findall(r"^\| (`src/lockfast/stores/.*?) \| (.*) \|$", text, re.M):
        folders = re.findall(r"`(.*?)`", folder)
        for file in re.findall(r"`(\w+\.py|lua/)`", contents):
            assert any((ROOT / each / file).exists() for each in folders), f"{folder}: {file}"

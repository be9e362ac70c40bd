"""The sync API in the repository is what the generator makes of the async API."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("generator", ROOT / "tools" / "generate_sync.py")
assert _spec is not None and _spec.loader is not None
generator = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generator)


def test_the_sync_api_is_generated_from_the_async_api():
    files = generator.generate()
    for path, text in files.items():
        assert path.read_text() == text, f"{path}: run `make format`, or change the async API"
    ours = {path.name for path in (generator.API / "sync").glob("*.py")}
    assert ours - {path.name for path in files} == {"native.py"}


@pytest.mark.parametrize(
    "source, result",
    [
        ("async def f():\n    await core.close()\n", "def f():\n    run(core.close())\n"),
        (
            "async def f():\n    await self._client._core.inspect('ö', await self.name())\n",
            "def f():\n    run(self._client._core.inspect('ö', self.name()))\n",
        ),
        ("async def f():\n    await hold.release()\n", "def f():\n    hold.release()\n"),
        ("async def f(held):\n    held = await held\n", "def f(held):\n    held = run(held)\n"),
        (
            "from lockfast.core.multi import wait\n\nasync def f():\n    return await wait(1)\n",
            "from lockfast.core.multi import wait\n\ndef f():\n    return run(wait(1))\n",
        ),
        (
            "async def f():\n    async with a as b:  # why\n        return await b.c()\n",
            "def f():\n    with a as b:  # why\n        return b.c()\n",
        ),
        ("x: Coroutine[Any, Any, dict[str, int]]\n", "x: dict[str, int]\n"),
        ("x: Callable[[Hold], Awaitable[T]]\n", "x: Callable[[Hold], T]\n"),
        ("async def __aenter__(self): ...\n", "def __enter__(self): ...\n"),
        ("from lockfast.aio.hold import Hold\n", "from lockfast.sync.hold import Hold\n"),
    ],
)
def test_a_construct_is_translated(source, result):
    assert generator.translate(source, set()) == result


def test_a_text_that_no_file_has_is_reported(monkeypatch):
    monkeypatch.setitem(generator.TEXTS, "a sentence that nobody wrote", "")
    with pytest.raises(SystemExit, match="a sentence that nobody wrote"):
        generator.generate()

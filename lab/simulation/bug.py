"""A planted bug: how to plant it, and which seeds can show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Plant = Callable[[], AbstractContextManager[Any]]


class Bug(NamedTuple):
    """A planted bug. ``kind`` is the kind of name that shows it; seeds without that kind are
    skipped. ``store`` is the simulated store that shows it; '' is the default of its list."""

    plant: Plant
    kind: str = "lock"
    store: str = ""

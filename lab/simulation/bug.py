"""What a planted bug is: how to plant it, and which seeds can show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

Plant = Callable[[], AbstractContextManager[Any]]


class Bug(NamedTuple):
    """``kind`` is the kind of name that shows it: seeds about other kinds are passed over.
    ``store`` is the simulated store that does; '': the one whose bugs it stands among."""

    plant: Plant
    kind: str = "lock"
    store: str = ""

"""The command as tests call it, and its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]
Need = Callable[[str], None]

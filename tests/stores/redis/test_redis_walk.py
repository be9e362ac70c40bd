"""The length of the way through the code, as ``bench/walk.py`` counts it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
import walk

# Measured, and a few for what a reply at another moment adds.
UNCONTENDED, HANDOVER = (16, 33), (20, 64)


def test_a_cycle_and_a_hand_over_enter_few_functions(redis_server) -> None:
    steps = walk.walk(redis_server.url)
    for found, (files, functions) in (
        (steps.uncontended, UNCONTENDED),
        (steps.handover, HANDOVER),
    ):
        listed = "\n".join(found.functions)
        assert len(found.files) <= files and len(found.functions) <= functions, f"{found}\n{listed}"

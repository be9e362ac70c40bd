"""What the doctor found, for tests to ask."""

from __future__ import annotations

from typing import Any

from operator_commands import Operator


class Verdict:
    """``levels`` by what they are about; ``text(about)`` is all that was said of it."""

    def __init__(self, say: Operator, *words: object) -> None:
        told = say("doctor", "--json", *words)
        assert told.err == "", told.err
        self.document: dict[str, Any] = told.document
        self.health_checks: list[dict[str, Any]] = self.document["checks"]
        for health_check in self.health_checks:
            assert health_check["do"] or health_check["level"] in ("ok", "note"), health_check
        bad = {one["about"] for one in self.health_checks if one["level"] == "bad"}
        # The latency is that of a machine that may be busy.
        self.code = 0 if told.code == 1 and bad == {"latency"} else told.code

    @property
    def faults(self) -> list[str]:
        """What is not fit, but for the latency."""
        return [
            f"{one['about']}: {one['found']}"
            for one in self.health_checks
            if one["level"] in ("warn", "bad") and one["about"] != "latency"
        ]

    def levels(self, about: str) -> set[str]:
        return {one["level"] for one in self.health_checks if one["about"] == about}

    def text(self, about: str) -> str:
        said = [
            f"{one['found']} {one['do']}" for one in self.health_checks if one["about"] == about
        ]
        return " ".join(said)

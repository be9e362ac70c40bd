"""The report of `lockfast doctor`, for assertions."""

from __future__ import annotations

from typing import Any

from operator_commands import Command


class Verdict:
    """A report. ``levels(about)`` and ``text(about)`` select the checks of one subject."""

    def __init__(self, command: Command, *arguments: object) -> None:
        result = command("doctor", "--json", *arguments)
        assert result.err == "", result.err
        self.document: dict[str, Any] = result.document
        self.health_checks: list[dict[str, Any]] = self.document["checks"]
        for health_check in self.health_checks:
            assert health_check["do"] or health_check["level"] in ("ok", "note"), health_check
        bad = {one["about"] for one in self.health_checks if one["level"] == "bad"}
        # The test machine may be busy, so latency is not counted.
        self.code = 0 if result.code == 1 and bad == {"latency"} else result.code

    @property
    def faults(self) -> list[str]:
        """Warnings and bad checks, except latency."""
        return [
            f"{one['about']}: {one['found']}"
            for one in self.health_checks
            if one["level"] in ("warn", "bad") and one["about"] != "latency"
        ]

    def levels(self, about: str) -> set[str]:
        return {one["level"] for one in self.health_checks if one["about"] == about}

    def text(self, about: str) -> str:
        texts = [
            f"{one['found']} {one['do']}" for one in self.health_checks if one["about"] == about
        ]
        return " ".join(texts)

"""Metric labels: never lock names, of which there may be millions, but the templates that names are
made from, of which there are few, up to a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lockfast.errors import ConfigurationError
from lockfast.events import NameEvent

OTHER = "other"
MAX_LABELS = 100
MAX_LENGTH = 200

log = logging.getLogger("lockfast")


class Templates:
    """Labels of names: the key expression of a decorated function, or else the result of
    ``template(name)``, or else "other".

    From the hundred-and-first label on, every new one is "other" too: a bad ``template`` must cost
    detail in the metrics, not the memory of the metrics server.
    """

    def __init__(self, template: Callable[[str], str] | None) -> None:
        if template is not None and not callable(template):
            raise ConfigurationError(
                f"template={template!r} must be a function that maps names to a few labels, "
                "such as lambda name: name.split(':')[0]"
            )
        self._template = template
        self._known: set[str] = set()
        self._logged = False

    def label(self, event: NameEvent) -> str:
        text = event.template or self._from_name(event.name)
        if text not in self._known:
            if len(self._known) >= MAX_LABELS:
                return OTHER
            self._known.add(text)
        return text

    def _from_name(self, name: str) -> str:
        if self._template is None:
            return OTHER
        try:
            return str(self._template(name))[:MAX_LENGTH]
        except Exception:  # user code; a name that it cannot handle is labelled "other"
            if not self._logged:
                self._logged = True
                log.exception(
                    "lockfast: template= raised on %r, which is labelled 'other' (logged once)",
                    name,
                )
            return OTHER

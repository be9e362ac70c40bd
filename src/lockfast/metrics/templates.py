"""What a metric is labelled with: never a name, of which there may be millions, but what names are
made of, of which there are few, and never more than a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable

from lockfast.errors import ConfigurationError
from lockfast.events import NameEvent

OTHER = "other"
MOST = 100
LONGEST = 200

log = logging.getLogger("lockfast")


class Templates:
    """The label of a name: the expression of a decorated function; or else what ``template`` makes
    of the name; or else "other". So are all from the hundred-and-first on: a guess that was wrong
    must cost a blurred label, not a server of metrics."""

    def __init__(self, template: Callable[[str], str] | None) -> None:
        if template is not None and not callable(template):
            raise ConfigurationError(
                f"template={template!r}: a function that makes a label of a name, of which there "
                "are few, such as lambda name: name.split(':')[0]"
            )
        self._template = template
        self._known: set[str] = set()
        self._complained = False

    def label(self, event: NameEvent) -> str:
        text = event.template or self._made_of(event.name)
        if text not in self._known:
            if len(self._known) >= MOST:
                return OTHER
            self._known.add(text)
        return text

    def _made_of(self, name: str) -> str:
        if self._template is None:
            return OTHER
        try:
            return str(self._template(name))[:LONGEST]
        except Exception:  # foreign code: what it has nothing to say about is other
            if not self._complained:
                self._complained = True
                log.exception("lockfast: template= raised on %r (told once)", name)
            return OTHER

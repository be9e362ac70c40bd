"""Keys of ``@client.locked(key)``: from the arguments of a call to the name of its lock.

A key is a template, or a callable with the parameters of the decorated function. The template
grammar is our own and smaller than that of ``str.format``, which reaches ``__class__`` and formats
any object:

    template = { text | "{{" | "}}" | "{" parameter { step } "}" }
    step     = "." name | "[" integer "]" | "['" key "']" | '["' key '"]'

No parameter, name or key starts with an underscore; a key contains no space, quote, backslash or
brace. A template that does not parse is refused at decoration; a bad value, which only a call can
show, is refused in the call, before any I/O. The rules for values:

1. Only values that their text identifies become part of a name: str, int, UUID, Decimal, date,
   datetime, path, and Enum by its value. A default ``repr`` contains an address, so each call would
   get a lock of its own and exclude nobody.
2. An empty value is refused, and no value is escaped: separate the fields in the template.
3. Equal values with different text are two locks: Decimal("1.0") and Decimal("1.00").
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from inspect import BoundArguments, Parameter, iscoroutinefunction, signature
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import Any
from uuid import UUID

from lockfast.errors import ConfigurationError

Key = str | Callable[..., str]

NameOf = Callable[[tuple[object, ...], dict[str, object]], str]


def compile_key(
    key: str | Callable[..., str], function: Callable[..., object], *, prefix: str | None = None
) -> NameOf:
    """Return ``name_of(args, kwargs)``, which names the lock for one call of ``function``.

    Raises ConfigurationError for any mistake in ``key`` itself. ``name_of`` raises it for a value
    that cannot be part of a name, and TypeError for a call that ``function`` would not accept
    either; other exceptions of a property or of a key callable pass through. A key callable gets
    the function's arguments, defaults included. ``prefix="app"`` makes every name ``app:...``.
    """
    if prefix is not None and not (isinstance(prefix, str) and prefix):
        raise ConfigurationError(f"prefix must be a non-empty str or None, not {prefix!r}")
    head = f"{prefix}:" if prefix else ""
    call = _Call(function)
    if isinstance(key, str) and key:
        return _from_template(key, call, head)
    if callable(key):
        return _from_callable(key, call, head)
    raise ConfigurationError(
        f"the key for {call.label} must be a non-empty template such as 'orders:{{order_id}}', or "
        f"a callable that returns a str, not {key!r}"
    )


def _from_template(template: str, call: _Call, head: str) -> NameOf:
    parts = _parse(template, call)

    def name_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        if not call.fits(args, kwargs):
            args, kwargs = (), call.bind(args, kwargs).arguments
        name = head
        for part in parts:
            name += part if isinstance(part, str) else part.text(args, kwargs)
        return name

    return name_of


def _from_callable(key: Callable[..., str], call: _Call, head: str) -> NameOf:
    key_call = _Call(key)
    label = f"the key callable {key_call.label} for {call.label}"
    if iscoroutinefunction(key):
        raise ConfigurationError(f"{label} is async, but names are computed without I/O: use def")
    # Bound calls all have the same shape, so one trial call stands for all. Each argument of the
    # trial is its parameter's own name: an argument that arrives at another parameter would lock
    # the wrong name.
    trial = OrderedDict((n, _STARRED.get(p.kind, n)) for n, p in call.parameters.items())
    every = BoundArguments(call.signature, trial)
    try:
        found = key_call.signature.bind(*every.args, **every.kwargs).arguments
        for n, p in key_call.parameters.items():
            if p.kind not in _STARRED and found.get(n) != (n if n in trial else None):
                raise TypeError(f"{n!r} would not get the argument of that name")
    except TypeError as error:
        raise ConfigurationError(
            f"{label} takes {key_call.shown}, but is called with {call.shown}: {error}. Give it "
            "the same parameters in the same order, or the first of them and then *args, **kwargs"
        ) from None

    def name_of(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        bound = call.bind(args, kwargs)
        name: object = key(*bound.args, **bound.kwargs)
        if not (isinstance(name, str) and name):
            raise ConfigurationError(f"{label} must return a non-empty str, not {type(name)}")
        return head + str.__str__(name)  # str() of a subclass may return anything

    return name_of


_Get = Callable[[Any], object]
_STARRED: dict[object, object] = {
    Parameter.VAR_POSITIONAL: ("*",),
    Parameter.VAR_KEYWORD: {"*": "*"},
}
_TEXT = re.compile(r"(\{)\{|(\})\}|([^{}]+)")
_NAME = re.compile(r"[^\W\d_]\w*")
# No index needs more than eighteen digits; with thousands of digits int() itself raises.
_STEP = re.compile(
    r"\.(?P<attribute>[^\W\d_]\w*)|\[(?P<index>0|-?[1-9][0-9]{0,17})\]"
    r"""|\[(?P<quote>['"])(?P<key>[^'"\\\s{_][^'"\\\s{]*)(?P=quote)\]"""
)
_WHY = {
    "(": "calls are not allowed",
    "!": "conversions such as !r are not allowed",
    ":": "format specs are not allowed",
    " ": "spaces are not allowed inside braces",
    ".": "an attribute's name without a leading underscore must follow the dot",
    "[": "an index is an integer, or a quoted key without a space or a leading underscore",
}


def _parse(template: str, call: _Call) -> list[str | _Field]:
    parts: list[str | _Field] = []
    at = 0
    while at < len(template):
        if text := _TEXT.match(template, at):
            parts.append(text[text.lastindex or 0])
            at = text.end()
        elif template[at] == "}" or (end := template.find("}", at)) < 0:
            raise _refusal(template, at, len(template), "unmatched brace")
        else:
            parts.append(_parse_field(template, at + 1, end, call))
            at = end + 1
    return parts


def _parse_field(template: str, start: int, end: int, call: _Call) -> _Field:
    if not (name := _NAME.match(template, start, end)):
        why = "expected a parameter name without a leading underscore"
        raise _refusal(template, start, end, why)
    if not (parameter := call.parameters.get(name[0])):
        close = [f" (did you mean {n!r}?)" for n in get_close_matches(name[0], call.parameters, 1)]
        why = f"{call.label} has no such parameter{''.join(close)}; it takes {call.shown}"
        raise _refusal(template, start, name.end(), why)
    at = name.end()
    if parameter.kind in _STARRED and template[at] != "[":
        why = "this parameter collects several values: pick one with [0] or ['key']"
        raise _refusal(template, start, end, why)
    steps: list[tuple[str, str, _Get]] = []
    while at < end:
        if not (step := _STEP.match(template, at, end)):
            raise _refusal(template, at, end, _WHY.get(template[at], "unexpected character"))
        item = int(step["index"]) if step["index"] else step["key"]
        get: _Get = attrgetter(step["attribute"]) if step["attribute"] else itemgetter(item)
        steps.append((template[start:at], step[0], get))
        at = step.end()
    where = f"{template[start - 1 : end + 1]} in the key for {call.label}"
    return _Field(where, name[0], list(call.parameters).index(name[0]), parameter.default, steps)


def _refusal(template: str, start: int, end: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"key {template!r}, column {start + 1}, at {template[start:end]!r}: {why}. Allowed are "
        "text, {{ and }} for braces, and {parameter} followed by any of .attribute, [0], [-1] and "
        "['key']; for anything else pass a callable"
    )


class _Call:
    """Parameters of a function, inspected once: `Signature.bind` costs microseconds per call."""

    def __init__(self, function: Callable[..., object]):
        self.label = f"{getattr(function, '__qualname__', type(function).__name__)}()"
        try:
            self.signature = signature(function)
        except (TypeError, ValueError) as error:
            why = "has no signature: decorate a def or a lambda, below any @classmethod"
            raise ConfigurationError(f"{self.label} {why}") from error
        self.parameters = self.signature.parameters
        self.shown = f"({', '.join(self.parameters)})"
        # Parameters that may and must come by keyword after n positional arguments. A function with
        # *args or **kwargs always goes through bind.
        ps = list(self.parameters.values())
        most = sum(p.kind is not p.KEYWORD_ONLY for p in ps)
        ns = range(0 if any(p.kind in _STARRED for p in ps) else most + 1)
        self._may = [{p.name for p in ps[n:] if p.kind is not p.POSITIONAL_ONLY} for n in ns]
        self._must = [{p.name for p in ps[n:] if p.default is p.empty} for n in ns]

    def fits(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return True if the function accepts this call; False means that `bind` must decide."""
        n = len(args)
        return n < len(self._may) and self._must[n] <= kwargs.keys() <= self._may[n]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> BoundArguments:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            got = "got " if str(error).startswith(("too many", "multiple")) else ""
            raise TypeError(f"{self.label} {got}{error}") from None
        bound.apply_defaults()
        return bound


@dataclass(frozen=True, slots=True)
class _Field:
    """One ``{parameter.step...}``; a step is the text before it, its own text, and its getter."""

    where: str
    parameter: str
    position: int  # past every positional argument if the parameter is keyword-only
    default: object
    steps: list[tuple[str, str, _Get]]

    def text(self, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
        by_position = self.position < len(args)
        value = args[self.position] if by_position else kwargs.get(self.parameter, self.default)
        try:
            for step in self.steps:
                value = step[2](value)
        except (AttributeError, LookupError, TypeError) as error:
            found = f"{step[0]} is of type {type(value).__name__} and has no {step[1]}"
            raise ConfigurationError(f"{self.where}: {found}") from error
        if text := value if type(value) is str else _text(value):
            return text
        found = f"of type {type(value).__name__}{' and empty' if text == '' else ''}"
        raise ConfigurationError(
            f"{self.where} is {found}: its text does not identify it (True equals 1, an object "
            "prints its address). Name an attribute of it, e.g. {user.id}, or convert it to a str"
        )


def _text(value: object) -> str | None:
    if type(value) is not value.__class__:
        return None  # a mock or a proxy: its text is not that of the class it claims to be
    match value:
        case Enum():
            return _text(value.value)
        case str():
            return str.__str__(value)  # str() of a subclass may return anything
        case int() if type(value) is not bool and value.bit_length() < 2048:
            return int.__repr__(value)  # Python may refuse to print more than 640 digits
        case date():
            return value.isoformat()
        case UUID() | PurePath():
            return str(value)
        case Decimal() if value.is_finite():
            return str(value)
    return None

"""Spans and metrics for OpenTelemetry, made of events (``pip install 'lockfast[otel]'``).

    client.on_event(OtelEvents())

It needs the API package alone: where they go is decided by the SDK that your program sets up. A
span is made when what it tells of is over, with the time at which it began, so nothing is kept open
and a sampler that drops it has nothing to clean up. Its parent is the span in which the lock was
asked for, also if the keeper is the one who notices that it is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider

from lockfast.events import (
    Acquired,
    Detached,
    Event,
    Failed,
    Lost,
    NameEvent,
    Refused,
    Released,
    RenewFailed,
    TimedOut,
    WaitBegan,
    WaitEnded,
)
from lockfast.metrics import BUCKETS
from lockfast.metrics.templates import Templates

Attributes = dict[str, str | int | float]


class OtelEvents:
    """A listener for ``client.on_event``: the spans ``lockfast.acquire`` and ``lockfast.hold``, and
    metrics. ``template`` makes a label of a name that was not made by a decorated function's
    expression (default: all of them are "other"). ``names=True`` writes the name itself into
    spans, never into metrics. ``spans=False`` makes metrics alone."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        template: Callable[[str], str] | None = None,
        names: bool = False,
        spans: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer("lockfast", tracer_provider=tracer_provider)
        self._templates = Templates(template)
        self._names = names
        self._spans = spans
        # In which span what is held now was asked for.
        self._asked_in: dict[tuple[str, str, int], Context] = {}
        self._pid = os.getpid()
        self._make_instruments(meter_provider)

    def _make_instruments(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("lockfast", meter_provider=provider)

        def seconds(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=BUCKETS
            )

        up_down, counter = meter.create_up_down_counter, meter.create_counter
        self._wait = seconds("lockfast.wait", "From asking for a lock until it was held")
        self._hold = seconds("lockfast.hold", "From acquiring a lock until its end")
        self._held = up_down("lockfast.held", description="Holds now")
        self._waiting = up_down("lockfast.waiting", description="Claims that stand in a queue now")
        self._lost = counter("lockfast.lost", description="Holds that ended without their holder")
        self._timed_out = counter("lockfast.timed_out", description="Waits whose time was over")
        self._refused = counter("lockfast.refused", description="Asked once, and taken")
        self._failed = counter(
            "lockfast.failed", description="Cancelled, interrupted or refused by the store"
        )
        self._renew_errors = counter(
            "lockfast.renew_errors", description="Renewals that were not answered; repeated"
        )

    def __call__(self, event: Event) -> None:
        if isinstance(event, RenewFailed):
            self._renew_errors.add(1, {"lockfast.store": event.store})
        elif isinstance(event, NameEvent):
            label = self._templates.label(event)
            said: Attributes = {"lockfast.store": event.store, "lockfast.template": label}
            self._count(event, said)
            if self._spans:
                if self._pid != os.getpid():  # a fork's child holds nothing of its parent's
                    self._asked_in.clear()
                    self._pid = os.getpid()
                self._trace(event, said)

    def _count(self, event: NameEvent, said: Attributes) -> None:
        match event:
            case Acquired():
                self._wait.record(event.waited, said)
                self._held.add(1, said)
            case Released() | Detached() | Lost():
                self._hold.record(event.lasted, said)
                self._held.add(-1, said)
                if isinstance(event, Lost):
                    self._lost.add(1, said)
            case WaitBegan():
                self._waiting.add(1, said)
            case WaitEnded():
                self._waiting.add(-1, said)
            case TimedOut():
                self._timed_out.add(1, said)
            case Refused():
                self._refused.add(1, said)
            case Failed():
                self._failed.add(1, said)

    def _trace(self, event: NameEvent, said: Attributes) -> None:
        here = context.get_current()
        match event:
            case Acquired():
                self._asked_in[event.store, event.name, event.fence] = here
                said = {**said, "lockfast.fence": event.fence}
                self._span("lockfast.acquire", event, event.waited, here, said, "acquired")
            case TimedOut():
                self._span("lockfast.acquire", event, event.waited, here, said, "timed out", True)
            case Refused():
                self._span("lockfast.acquire", event, event.waited, here, said, "refused")
            case Failed():
                self._span("lockfast.acquire", event, event.waited, here, said, event.error, True)
            case Released() | Detached() | Lost():
                asked_in = self._asked_in.pop((event.store, event.name, event.fence), here)
                said = {**said, "lockfast.fence": event.fence}
                lost = isinstance(event, Lost)
                if isinstance(event, Lost):
                    said = {**said, "lockfast.cause": event.cause}
                outcome = type(event).__name__.lower()
                self._span("lockfast.hold", event, event.lasted, asked_in, said, outcome, lost)

    def _span(
        self,
        kind: str,
        event: NameEvent,
        lasted: float,
        parent: Context,
        said: Attributes,
        outcome: str,
        bad: bool = False,
    ) -> None:
        if self._names:
            said = {**said, "lockfast.name": event.name}
        now = time.time_ns()
        span = self._tracer.start_span(
            kind,
            parent,
            SpanKind.CLIENT if kind == "lockfast.acquire" else SpanKind.INTERNAL,
            said | {"lockfast.outcome": outcome},
            start_time=now - int(lasted * 1e9),
        )
        if bad:
            span.set_status(StatusCode.ERROR, outcome)
        span.end(now)

"""Spans and metrics for OpenTelemetry, built from events (``pip install 'lockfast[otel]'``).

    client.on_event(OtelEvents())

Needs only the API package; the SDK that your program configures decides where the data goes. A span
is created when the acquire or hold is over, with its start time, so no span stays open and a span
that the sampler rejects needs no clean-up. Its parent is the span in which the lock was requested,
even if the keeper's thread detects the loss.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from opentelemetry import context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider

from lockfast import events
from lockfast.metrics import BUCKETS
from lockfast.metrics.templates import Templates

Attributes = dict[str, str | int | float]


class OtelEvents:
    """Listener for ``client.on_event``: metrics, and spans ``lockfast.acquire`` and ``.hold``.

    - ``template``: function that maps a lock name to a label, for names that do not come from the
      key expression of a decorated function (default: their label is "other").
    - ``names=True``: adds the lock name to spans, never to metrics.
    - ``spans=False``: metrics only.
    """

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
        # The span context in which each current hold was requested.
        self._requested_in: dict[tuple[str, str, int], Context] = {}
        self._pid = os.getpid()
        self._make_instruments(meter_provider)

    def _make_instruments(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("lockfast", meter_provider=provider)

        def seconds(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=BUCKETS
            )

        up_down, counter = meter.create_up_down_counter, meter.create_counter
        self._wait = seconds("lockfast.wait", "Time from the request of a lock until it was held")
        self._hold = seconds(
            "lockfast.hold", "Time from acquiring a lock until the end of the hold"
        )
        self._held = up_down("lockfast.held", description="Current holds")
        self._waiting = up_down("lockfast.waiting", description="Claims waiting in a queue")
        self._lost = counter(
            "lockfast.lost", description="Holds that ended before they were released"
        )
        self._timed_out = counter("lockfast.timed_out", description="Acquires that timed out")
        self._refused = counter(
            "lockfast.refused", description="Acquires without waiting that found the lock held"
        )
        self._failed = counter(
            "lockfast.failed", description="Acquires that were cancelled, interrupted or failed"
        )
        self._renew_errors = counter(
            "lockfast.renew_errors", description="Renewals that failed and were repeated"
        )

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RenewFailed):
            self._renew_errors.add(1, {"lockfast.store": event.store})
        elif isinstance(event, events.NameEvent):
            label = self._templates.label(event)
            attributes: Attributes = {"lockfast.store": event.store, "lockfast.template": label}
            self._count(event, attributes)
            if self._spans:
                if self._pid != os.getpid():  # a forked child holds nothing of its parent's
                    self._requested_in.clear()
                    self._pid = os.getpid()
                self._trace(event, attributes)

    def _count(self, event: events.NameEvent, attributes: Attributes) -> None:
        match event:
            case events.Acquired():
                self._wait.record(event.waited, attributes)
                self._held.add(1, attributes)
            case events.Released() | events.Detached() | events.Lost():
                self._hold.record(event.lasted, attributes)
                self._held.add(-1, attributes)
                if isinstance(event, events.Lost):
                    self._lost.add(1, attributes)
            case events.WaitBegan():
                self._waiting.add(1, attributes)
            case events.WaitEnded():
                self._waiting.add(-1, attributes)
            case events.TimedOut():
                self._timed_out.add(1, attributes)
            case events.Refused():
                self._refused.add(1, attributes)
            case events.Failed():
                self._failed.add(1, attributes)

    def _trace(self, event: events.NameEvent, attributes: Attributes) -> None:
        here = context.get_current()
        match event:
            case events.Acquired():
                self._requested_in[event.store, event.name, event.fence] = here
                attributes = {**attributes, "lockfast.fence": event.fence}
                self._span("lockfast.acquire", event, event.waited, here, attributes, "acquired")
            case events.TimedOut():
                self._span(
                    "lockfast.acquire", event, event.waited, here, attributes, "timed out", True
                )
            case events.Refused():
                self._span("lockfast.acquire", event, event.waited, here, attributes, "refused")
            case events.Failed():
                self._span(
                    "lockfast.acquire", event, event.waited, here, attributes, event.error, True
                )
            case events.Released() | events.Detached() | events.Lost():
                requested_in = self._requested_in.pop((event.store, event.name, event.fence), here)
                attributes = {**attributes, "lockfast.fence": event.fence}
                if lost := isinstance(event, events.Lost):
                    attributes = {**attributes, "lockfast.cause": event.cause}
                outcome = type(event).__name__.lower()
                self._span(
                    "lockfast.hold", event, event.lasted, requested_in, attributes, outcome, lost
                )

    def _span(
        self,
        kind: str,
        event: events.NameEvent,
        lasted: float,
        parent: Context,
        attributes: Attributes,
        outcome: str,
        failed: bool = False,
    ) -> None:
        if self._names:
            attributes = {**attributes, "lockfast.name": event.name}
        now = time.time_ns()
        span = self._tracer.start_span(
            kind,
            parent,
            SpanKind.CLIENT if kind == "lockfast.acquire" else SpanKind.INTERNAL,
            attributes | {"lockfast.outcome": outcome},
            start_time=now - int(lasted * 1e9),
        )
        if failed:
            span.set_status(StatusCode.ERROR, outcome)
        span.end(now)

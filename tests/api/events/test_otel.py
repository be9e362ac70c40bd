"""Spans and metrics for OpenTelemetry, through its real SDK with exporters in memory."""

from __future__ import annotations

import asyncio
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import lockfast
from both_apis import APIS
from lockfast import AcquireTimeout, BackendError, HoldLost, aio
from lockfast.events import Event
from lockfast.metrics.otel import OtelEvents
from lockfast.testing import kit


class Telemetry:
    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.traces.get_tracer("test")

    def events(self, **options):
        return OtelEvents(tracer_provider=self.traces, meter_provider=self.meters, **options)

    def spans(self, name="lockfast.acquire"):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metrics(self):
        """Collect {(name, template): value, or (count, sum, first bound)}."""
        found = {}
        for resource in self.reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        key = (metric.name, point.attributes.get("lockfast.template", ""))
                        found[key] = getattr(point, "value", None)
                        if found[key] is None:
                            found[key] = (point.count, point.sum, point.explicit_bounds[0])
                        assert "lockfast.name" not in point.attributes
        return found


@pytest.fixture
def telemetry():
    telemetry = Telemetry()
    yield telemetry
    telemetry.traces.shutdown()
    telemetry.meters.shutdown()


def test_a_span_is_a_child_of_the_callers_span(telemetry, lockfast_client):
    lockfast_client.on_event(telemetry.events())
    with telemetry.tracer.start_as_current_span("request") as request, lockfast_client.lock("n"):
        pass
    (acquire,), (hold,) = telemetry.spans(), telemetry.spans("lockfast.hold")
    for span in (acquire, hold):
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.attributes["lockfast.store"] == "memory"
        assert span.attributes["lockfast.template"] == "other"
        assert "lockfast.name" not in span.attributes
        assert span.status.status_code is StatusCode.UNSET
    assert acquire.attributes["lockfast.outcome"] == "acquired"
    assert hold.attributes["lockfast.outcome"] == "released"
    assert hold.attributes["lockfast.fence"] == acquire.attributes["lockfast.fence"]


def test_spans_of_concurrent_tasks_have_their_own_parents(telemetry):
    async def main():
        client = aio.connect("memory://")
        client.on_event(telemetry.events())

        async def one(name):
            with telemetry.tracer.start_as_current_span(name):
                async with client.lock("n"):
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(one(f"task {number}") for number in range(5)))
        await client.close()

    asyncio.run(main())
    requests = {
        span.context.span_id for number in range(5) for span in telemetry.spans(f"task {number}")
    }
    assert {span.parent.span_id for span in telemetry.spans()} == requests
    assert {span.parent.span_id for span in telemetry.spans("lockfast.hold")} == requests


def test_a_span_lasts_as_long_as_its_hold(telemetry, lockfast_client, lockfast_clock):
    lockfast_client.on_event(telemetry.events())
    with lockfast_client.lock("n"):
        lockfast_clock.advance(3)
    (span,) = telemetry.spans("lockfast.hold")
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(3)


@pytest.mark.parametrize("api", APIS)
def test_a_timeout_is_an_error_in_the_trace_and_a_refusal_is_not(telemetry, api):
    agent = APIS[api]("memory://")
    agent.client.on_event(telemetry.events(template=lambda name: name))
    hold = agent.do(lambda client: client.lock("n").acquire())
    with pytest.raises(AcquireTimeout):
        agent.later(lambda client: client.lock("n", timeout=0.02).acquire()).result(15)
    agent.later(lambda client: client.lock("n").try_acquire()).result(15)
    agent.do(lambda client: hold.release())
    seen = {span.attributes["lockfast.outcome"]: span for span in telemetry.spans()}
    assert seen.keys() == {"acquired", "timed out", "refused"}
    assert seen["timed out"].status.status_code is StatusCode.ERROR
    assert seen["refused"].status.status_code is StatusCode.UNSET
    metrics = telemetry.metrics()
    assert metrics["lockfast.timed_out", "n"] == metrics["lockfast.refused", "n"] == 1
    assert metrics["lockfast.waiting", "n"] == metrics["lockfast.held", "n"] == 0
    agent.close()


def test_a_loss_appears_in_the_trace_of_the_holder(telemetry, lockfast_client):
    """Even if another thread, which has no span, notices the loss."""
    lockfast_client.on_event(telemetry.events())
    with (
        pytest.raises(HoldLost),
        telemetry.tracer.start_as_current_span("request") as request,
        lockfast_client.lock("n"),
    ):
        ids = request.get_span_context()
        keeper = threading.Thread(target=kit.lose, args=(lockfast_client, "n"))
        keeper.start()
        keeper.join()
    (span,) = telemetry.spans("lockfast.hold")
    assert span.context.trace_id == ids.trace_id and span.parent.span_id == ids.span_id
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["lockfast.outcome"] == "lost"
    assert span.attributes["lockfast.cause"] == "a test called lockfast.testing.lose()"
    assert telemetry.metrics()["lockfast.lost", "other"] == 1


def test_names_are_written_into_spans_only_with_names_true(telemetry, lockfast_client):
    lockfast_client.on_event(telemetry.events(names=True))
    with lockfast_client.lock("orders:42"):
        pass
    spans = telemetry.spans() + telemetry.spans("lockfast.hold")
    assert [span.attributes["lockfast.name"] for span in spans] == ["orders:42"] * 2
    telemetry.metrics()  # asserts that no metric has a name


def test_metrics_are_in_seconds_and_by_template(telemetry, lockfast_client, lockfast_clock):
    lockfast_client.on_event(telemetry.events(spans=False))

    @lockfast_client.locked("account:{user}")
    def work(user):
        assert telemetry.metrics()["lockfast.held", "account:{user}"] == 1
        lockfast_clock.advance(4)

    work("ann")
    metrics = telemetry.metrics()
    assert metrics["lockfast.hold", "account:{user}"] == (1, 4.0, 0.001)
    assert metrics["lockfast.wait", "account:{user}"][0] == 1
    assert metrics["lockfast.held", "account:{user}"] == 0
    assert telemetry.spans() == []


def test_failed_acquires_and_failed_renewals_are_counted(telemetry):
    client = lockfast.connect("memory://", lease=0.3)
    client.on_event(telemetry.events())

    async def away(*args):
        raise BackendError("away", transient=False)

    claim, client._core.store.claim = client._core.store.claim, away
    with pytest.raises(BackendError):
        client.lock("n").acquire()
    client._core.store.claim = claim
    client._core.store.renew = away
    assert client.lock("n").acquire().wait_lost(15)
    client.close()
    metrics = telemetry.metrics()
    assert metrics["lockfast.failed", "other"] == 1
    assert metrics["lockfast.renew_errors", ""] >= 1
    assert telemetry.spans()[0].attributes["lockfast.outcome"] == "BackendError"


def test_no_context_is_kept_after_a_hold_has_ended(telemetry, lockfast_client):
    events = telemetry.events()
    lockfast_client.on_event(events)
    with lockfast_client.multi_lock("a", "b", "c"):
        assert len(events._requested_in) == 3
        events._pid = 0  # as in a forked child
    assert events._requested_in == {}
    events(Event("memory"))  # an event of an unknown kind is ignored

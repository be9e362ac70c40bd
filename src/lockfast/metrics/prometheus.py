"""Metrics for Prometheus, made of events (``pip install 'lockfast[prometheus]'``).

    client.on_event(PrometheusEvents())

They are registered with ``prometheus_client``, which serves them as it does all others. Names do
not appear: see `lockfast.metrics.templates`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

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

LABELS = ("store", "template")


class _Families:
    """The metrics of one registry, whatever number of listeners feed them."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            # Of servers with many processes: the sum over those that live.
            return Gauge(name, text, LABELS, registry=registry, multiprocess_mode="livesum")

        def counter(name: str, text: str, labels: Sequence[str] = LABELS) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.wait = histogram("lockfast_wait_seconds", "From asking for a lock until it was held")
        self.hold = histogram("lockfast_hold_seconds", "From acquiring a lock until its end")
        self.held = gauge("lockfast_held", "Holds of this process now")
        self.waiting = gauge("lockfast_waiting", "Claims of this process that stand in a queue now")
        self.lost = counter("lockfast_lost", "Holds that ended without their holder")
        self.timed_out = counter("lockfast_timed_out", "Waits whose time was over")
        self.refused = counter("lockfast_refused", "Asked once, and taken")
        self.failed = counter("lockfast_failed", "Cancelled, interrupted or refused by the store")
        self.renew_errors = counter(
            "lockfast_renew_errors", "Renewals that were not answered; they are repeated", ["store"]
        )


_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
_mutex = threading.Lock()


def _families_of(registry: CollectorRegistry, buckets: Sequence[float]) -> _Families:
    with _mutex:
        if registry not in _families:
            _families[registry] = _Families(registry, buckets)
        return _families[registry]


class _Series:
    """The metrics of one label, found once."""

    __slots__ = ("failed", "held", "hold", "lost", "refused", "timed_out", "wait", "waiting")

    def __init__(self, of: _Families, store: str, template: str) -> None:
        self.wait = of.wait.labels(store, template)
        self.hold = of.hold.labels(store, template)
        self.held = of.held.labels(store, template)
        self.waiting = of.waiting.labels(store, template)
        self.lost = of.lost.labels(store, template)
        self.timed_out = of.timed_out.labels(store, template)
        self.refused = of.refused.labels(store, template)
        self.failed = of.failed.labels(store, template)


class PrometheusEvents:
    """A listener for ``client.on_event``. ``template`` makes a label of a name that was not made by
    a decorated function's expression (default: all of them are "other"). ``store`` is the label of
    the store (default: its kind), to tell two of a kind apart. ``buckets`` are those of both
    histograms; the first listener of a registry decides."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry = REGISTRY,
        template: Callable[[str], str] | None = None,
        store: str | None = None,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        self._of = _families_of(registry, buckets)
        self._templates = Templates(template)
        self._store = store
        self._series: dict[tuple[str, str], _Series] = {}
        self._pid = os.getpid()

    def __call__(self, event: Event) -> None:
        if self._pid != os.getpid():
            self._begin_anew()
        store = self._store or event.store
        if isinstance(event, NameEvent):
            self._count(self._found(store, self._templates.label(event)), event)
        elif isinstance(event, RenewFailed):
            self._of.renew_errors.labels(store).inc()

    def _count(self, series: _Series, event: NameEvent) -> None:
        match event:
            case Acquired():
                series.wait.observe(event.waited)
                series.held.inc()
            case Released() | Detached() | Lost():
                series.hold.observe(event.lasted)
                series.held.dec()
                if isinstance(event, Lost):
                    series.lost.inc()
            case WaitBegan():
                series.waiting.inc()
            case WaitEnded():
                series.waiting.dec()
            case TimedOut():
                series.timed_out.inc()
            case Refused():
                series.refused.inc()
            case Failed():
                series.failed.inc()

    def _found(self, store: str, template: str) -> _Series:
        series = self._series.get((store, template))
        if series is None:
            series = self._series[store, template] = _Series(self._of, store, template)
        return series

    def _begin_anew(self) -> None:
        """We are a fork's child, and hold nothing of what the parent holds. (With a folder for many
        processes prometheus_client sees to that itself.) Not in a hook of the fork: a mutex of
        prometheus_client that was held then would stop a child that locks nothing."""
        with _mutex:
            if self._pid != os.getpid():
                if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
                    self._of.held.clear()
                    self._of.waiting.clear()
                self._series.clear()
                self._pid = os.getpid()

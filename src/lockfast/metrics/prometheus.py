"""Metrics for Prometheus, built from events (``pip install 'lockfast[prometheus]'``).

    client.on_event(PrometheusEvents())

The metrics are registered with ``prometheus_client``, which serves them with all others. Lock names
do not appear in them: see `lockfast.metrics.templates`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lockfast import events
from lockfast.metrics import BUCKETS
from lockfast.metrics.templates import Templates

LABELS = ("store", "template")


class _Families:
    """Metrics of one registry, shared by all listeners that feed it."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            # For servers with several processes: the sum over the live ones.
            return Gauge(name, text, LABELS, registry=registry, multiprocess_mode="livesum")

        def counter(name: str, text: str, labels: Sequence[str] = LABELS) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.wait = histogram(
            "lockfast_wait_seconds", "Time from the request of a lock until it was held"
        )
        self.hold = histogram(
            "lockfast_hold_seconds", "Time from acquiring a lock until the end of the hold"
        )
        self.held = gauge("lockfast_held", "Current holds of this process")
        self.waiting = gauge("lockfast_waiting", "Claims of this process waiting in a queue")
        self.lost = counter("lockfast_lost", "Holds that ended before they were released")
        self.timed_out = counter("lockfast_timed_out", "Acquires that timed out")
        self.refused = counter(
            "lockfast_refused", "Acquires without waiting that found the lock held"
        )
        self.failed = counter(
            "lockfast_failed", "Acquires that were cancelled, interrupted or failed"
        )
        self.renew_errors = counter(
            "lockfast_renew_errors", "Renewals that failed and were repeated", ["store"]
        )


_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()
_mutex = threading.Lock()


def _families_of(registry: CollectorRegistry, buckets: Sequence[float]) -> _Families:
    with _mutex:
        if registry not in _families:
            _families[registry] = _Families(registry, buckets)
        return _families[registry]


class _Series:
    """Metrics of one pair of labels, looked up once."""

    __slots__ = ("failed", "held", "hold", "lost", "refused", "timed_out", "wait", "waiting")

    def __init__(self, families: _Families, store: str, template: str) -> None:
        self.wait = families.wait.labels(store, template)
        self.hold = families.hold.labels(store, template)
        self.held = families.held.labels(store, template)
        self.waiting = families.waiting.labels(store, template)
        self.lost = families.lost.labels(store, template)
        self.timed_out = families.timed_out.labels(store, template)
        self.refused = families.refused.labels(store, template)
        self.failed = families.failed.labels(store, template)


class PrometheusEvents:
    """Listener for ``client.on_event`` that feeds Prometheus metrics.

    - ``template``: function that maps a lock name to a label, for names that do not come from the
      key expression of a decorated function (default: their label is "other").
    - ``store``: label of the store (default: its kind), to distinguish two stores of one kind.
    - ``buckets``: buckets of both histograms; the first listener of a registry sets them.
    """

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

    def __call__(self, event: events.Event) -> None:
        if self._pid != os.getpid():
            self._reset_after_fork()
        store = self._store or event.store
        if isinstance(event, events.NameEvent):
            self._count(self._series_of(store, self._templates.label(event)), event)
        elif isinstance(event, events.RenewFailed):
            self._of.renew_errors.labels(store).inc()

    def _count(self, series: _Series, event: events.NameEvent) -> None:
        match event:
            case events.Acquired():
                series.wait.observe(event.waited)
                series.held.inc()
            case events.Released() | events.Detached() | events.Lost():
                series.hold.observe(event.lasted)
                series.held.dec()
                if isinstance(event, events.Lost):
                    series.lost.inc()
            case events.WaitBegan():
                series.waiting.inc()
            case events.WaitEnded():
                series.waiting.dec()
            case events.TimedOut():
                series.timed_out.inc()
            case events.Refused():
                series.refused.inc()
            case events.Failed():
                series.failed.inc()

    def _series_of(self, store: str, template: str) -> _Series:
        series = self._series.get((store, template))
        if series is None:
            series = self._series[store, template] = _Series(self._of, store, template)
        return series

    def _reset_after_fork(self) -> None:
        """Reset the gauges in a forked child, which holds nothing of its parent's. (With a
        multiprocess directory, prometheus_client does.) At the first event, not in a fork hook: a
        mutex of prometheus_client, held during the fork, would block a child without locks."""
        with _mutex:
            if self._pid != os.getpid():
                if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
                    self._of.held.clear()
                    self._of.waiting.clear()
                self._series.clear()
                self._pid = os.getpid()

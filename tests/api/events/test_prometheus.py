"""Metrics for Prometheus, as a scraping server sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import lockfast
from both_apis import APIS, until
from lockfast import AcquireTimeout, BackendError, ConfigurationError, HoldLost
from lockfast.metrics.prometheus import PrometheusEvents
from lockfast.metrics.templates import MAX_LABELS, OTHER


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def scrape(registry):
    """Scrape over HTTP; returns {(metric, template): value}."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def scraped(store="memory"):
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        return {
            (sample.name, sample.labels.get("template", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("store") == store and "le" not in sample.labels
        } | {"text": text}

    yield scraped
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_durations_and_the_number_of_holds_are_scraped(
    scrape, registry, lockfast_client, lockfast_clock
):
    lockfast_client.on_event(PrometheusEvents(registry=registry))

    @lockfast_client.locked("account:{user}")
    def work(user):
        seen = scrape()
        assert seen["lockfast_held", "account:{user}"] == 1
        lockfast_clock.advance(4)

    work("ann")
    work("bob")
    seen = scrape()
    assert seen["lockfast_held", "account:{user}"] == 0
    assert seen["lockfast_wait_seconds_count", "account:{user}"] == 2
    assert seen["lockfast_hold_seconds_count", "account:{user}"] == 2
    assert seen["lockfast_hold_seconds_sum", "account:{user}"] == 8
    assert 'lockfast_hold_seconds_bucket{le="2.5",store="memory"' in seen["text"]
    assert "ann" not in seen["text"] and "bob" not in seen["text"]


@pytest.mark.parametrize("api", APIS)
def test_waiters_and_timeouts_are_scraped(scrape, registry, api):
    agent = APIS[api]("memory://")
    agent.client.on_event(PrometheusEvents(registry=registry, template=lambda name: name[:1]))
    hold = agent.do(lambda client: client.lock("n1").acquire())
    waiter = agent.later(lambda client: client.lock("n1").acquire())
    until(lambda: scrape().get(("lockfast_waiting", "n")) == 1)
    assert agent.later(lambda client: client.lock("n1").try_acquire()).result(15) is None
    with pytest.raises(AcquireTimeout):
        agent.later(lambda client: client.lock("n1", timeout=0.02).acquire()).result(15)
    agent.do(lambda client: hold.release())
    held = waiter.result(15)
    agent.do(lambda client: held.release())
    seen = scrape()
    assert seen["lockfast_waiting", "n"] == seen["lockfast_held", "n"] == 0
    assert seen["lockfast_timed_out_total", "n"] == seen["lockfast_refused_total", "n"] == 1
    agent.close()


def test_losses_failures_and_failed_renewals_are_scraped(scrape, registry):
    client = lockfast.connect("memory://", lease=0.3)
    client.on_event(PrometheusEvents(registry=registry))

    async def away(*args):
        raise BackendError("away", transient=False)

    claim = client._core.store.claim
    client._core.store.claim = away
    with pytest.raises(BackendError):
        client.lock("n").acquire()
    client._core.store.claim = claim
    client._core.store.renew = away
    hold = client.lock("n").acquire()
    assert hold.wait_lost(15)
    until(lambda: scrape().get(("lockfast_lost_total", OTHER)) == 1)
    with pytest.raises(HoldLost):
        hold.release()
    seen = scrape()
    assert seen["lockfast_failed_total", OTHER] == 1
    assert seen["lockfast_renew_errors_total", ""] >= 1
    assert seen["lockfast_held", OTHER] == 0
    client.close()


def test_names_never_become_labels(scrape, registry, lockfast_client):
    """However many names there are."""
    lockfast_client.on_event(PrometheusEvents(registry=registry))
    for number in range(300):
        with lockfast_client.lock(f"secret-{number}"):
            pass
    seen = scrape()
    assert seen["lockfast_wait_seconds_count", OTHER] == 300
    assert "secret" not in seen["text"]


def test_there_are_at_most_a_hundred_labels(scrape, registry, lockfast_client):
    lockfast_client.on_event(PrometheusEvents(registry=registry, template=lambda name: name))
    for number in range(MAX_LABELS + 50):
        with lockfast_client.lock(f"name-{number}"):
            pass
    seen = scrape()
    labels = {key[1] for key in seen if key[0] == "lockfast_held"}
    assert len(labels) == MAX_LABELS + 1 and OTHER in labels
    assert seen["lockfast_wait_seconds_count", OTHER] == 50
    assert all(value == 0 for key, value in seen.items() if key[0] == "lockfast_held")


def test_a_template_function_that_raises_is_logged_once(registry, scrape, lockfast_client, caplog):
    lockfast_client.on_event(
        PrometheusEvents(registry=registry, template=lambda name: name.split(":")[1])
    )
    for name in ("orders:42", "plain", "plain"):
        with lockfast_client.lock(name):
            pass
    seen = scrape()
    assert seen["lockfast_wait_seconds_count", "42"] == 1
    assert seen["lockfast_wait_seconds_count", OTHER] == 2
    assert caplog.text.count("template= raised") == 1
    with pytest.raises(ConfigurationError, match="template="):
        PrometheusEvents(registry=registry, template="orders")


def test_two_stores_of_one_kind_can_have_different_labels(scrape, registry):
    with lockfast.connect("memory://") as one, lockfast.connect("memory://") as two:
        one.on_event(PrometheusEvents(registry=registry, store="orders"))
        two.on_event(PrometheusEvents(registry=registry, store="reports"))
        with one.lock("n"), two.lock("n"), two.lock("m"):
            assert scrape("orders")["lockfast_held", OTHER] == 1
            assert scrape("reports")["lockfast_held", OTHER] == 2


def test_a_forked_child_starts_its_gauges_at_zero(registry, tmp_path):
    client = lockfast.connect(f"sqlite://{tmp_path}/locks.db")
    client.on_event(PrometheusEvents(registry=registry))

    def held():
        return registry.get_sample_value("lockfast_held", {"store": "sqlite", "template": OTHER})

    with client.lock("parent"):
        child = os.fork()
        if child == 0:
            with client.lock("child"):
                os._exit(0 if held() == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert held() == 1
    assert held() == 0
    client.close()


def test_the_gauges_of_several_processes_are_summed(tmp_path):
    """The multiprocess mode of prometheus_client, for gunicorn and the like: a shared directory."""
    code = (
        "import os, sys, lockfast\n"
        "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
        "from lockfast.metrics.prometheus import PrometheusEvents\n"
        "client = lockfast.connect(f'sqlite://{sys.argv[1]}/l.db')\n"
        "client.on_event(PrometheusEvents())\n"
        "hold = client.lock('parent').acquire()\n"
        "there, here = os.pipe()\n"
        "done, end = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    client.lock('child').acquire()\n"
        "    os.write(here, b'x')\n"
        "    os.read(done, 1)\n"
        "    os._exit(0)\n"
        "os.read(there, 1)\n"
        "registry = CollectorRegistry()\n"
        "multiprocess.MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
        "os.write(end, b'x')\n"
        "os.wait()\n"
    )
    (tmp_path / "shared").mkdir()
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "shared")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert 'lockfast_held{store="sqlite",template="other"} 2.0' in done.stdout


def test_many_threads_leave_the_gauges_at_zero(registry):
    client = lockfast.connect("memory://")
    client.on_event(PrometheusEvents(registry=registry))

    def work():
        for _ in range(50):
            with client.lock("n"):
                pass

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    labels = {"store": "memory", "template": OTHER}
    assert registry.get_sample_value("lockfast_wait_seconds_count", labels) == 300
    assert registry.get_sample_value("lockfast_held", labels) == 0
    assert registry.get_sample_value("lockfast_waiting", labels) == 0

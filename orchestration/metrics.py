"""The streams' figures and the supervisor's counters for Prometheus, read from their files at each scrape."""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from settings import Settings
from streaming.catalog import STREAMS
from streaming.files import StreamFiles
from streaming.health import HealthState, StreamHealth
from streaming.lease import is_held
from streaming.progress import QueryProgress, StreamProgress

GAUGES = {
    "input_rows_per_second": "Rows a second that the last batch took up",
    "processed_rows_per_second": "Rows a second that the query can do",
    "arriving_rows_per_second": "Rows a second by which the hub grows",
    "batch_seconds": "How long the last batch took",
    "lag_records": "Records in the hub that are not read yet",
    "end_to_end_seconds": "Age of the newest record of the partition that is furthest behind when its batch was done",
    "lag_seconds": "Age of the newest record read while there are unread ones",
    "state_rows": "Rows in the state store",
    "state_bytes": "Memory of the state store",
    "watermark_delay_seconds": "How far the watermark is behind the clock",
}


class StreamCollector(Collector):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("tidewatch_stream_up", "1 while a host holds the stream's lease", labels=["stream"])
        state = GaugeMetricFamily(
            "tidewatch_stream_state",
            "1 for the state that the supervisor sees",
            labels=["stream", "state"],
        )
        attempt = GaugeMetricFamily(
            "tidewatch_stream_attempt", "The how-manieth try in a row runs or comes next", labels=["stream"]
        )
        looked = GaugeMetricFamily(
            "tidewatch_supervisor_look_age_seconds", "How long ago the supervisor last looked", labels=["stream"]
        )
        kept = GaugeMetricFamily(
            "tidewatch_stream_unread_kept_seconds",
            "How long the hub still keeps what a stream that does not read has not read",
            labels=["stream"],
        )
        done = CounterMetricFamily(
            "tidewatch_supervisor_actions", "What the supervisor did, by kind", labels=["stream", "action"]
        )
        for name in STREAMS:
            files = StreamFiles(self._settings.run_folder, name)
            up.add_metric([name], float(is_held(files.lease)))
            if health := StreamHealth.read(files.health):
                for each in HealthState:
                    state.add_metric([name, str(each)], float(each is health.state))
                attempt.add_metric([name], health.attempt)
                looked.add_metric([name], health.age_seconds(datetime.now(UTC)))
                if health.unread_kept_until:
                    left = datetime.fromisoformat(health.unread_kept_until) - datetime.now(UTC)
                    kept.add_metric([name], left.total_seconds())
                for action, count in sorted(health.counts.items()):
                    done.add_metric([name, action], count)
        return [up, state, attempt, looked, kept, done, *self._query_metrics()]

    def _query_metrics(self) -> Iterable[Metric]:
        """Of running hosts only: the figures of one that is gone say nothing about now."""
        labels = ["stream", "query"]
        gauges = {
            field: GaugeMetricFamily(f"tidewatch_query_{field}", told, labels=labels) for field, told in GAUGES.items()
        }
        left = GaugeMetricFamily(
            "tidewatch_query_retention_left_seconds",
            "How long until the hub deletes the oldest unread record, if nothing more were read",
            labels=labels,
        )
        rows = CounterMetricFamily("tidewatch_query_rows", "Rows read since the host started", labels=labels)
        batches = CounterMetricFamily("tidewatch_query_batches", "Batches since the host started", labels=labels)
        for stream, query, done in _running_queries(self._settings):
            for field, gauge in gauges.items():
                if (value := getattr(done, field)) is not None:
                    gauge.add_metric([stream, query], value)
            if (seconds := done.retention_left_seconds()) is not None:
                left.add_metric([stream, query], seconds)
            rows.add_metric([stream, query], done.total_rows)
            batches.add_metric([stream, query], done.total_batches)
        return [*gauges.values(), left, rows, batches]


def serve_metrics(settings: Settings) -> tuple[WSGIServer, threading.Thread]:
    """Answers `/metrics` in a thread until the server is shut down."""
    registry = CollectorRegistry()
    registry.register(StreamCollector(settings))
    return start_http_server(settings.metrics.port, addr=settings.metrics.host, registry=registry)


def _running_queries(settings: Settings) -> Iterable[tuple[str, str, QueryProgress]]:
    for name in STREAMS:
        files = StreamFiles(settings.run_folder, name)
        progress = StreamProgress.read(files.progress) if is_held(files.lease) else None
        for query, done in (progress.queries if progress else {}).items():
            yield name, query, done

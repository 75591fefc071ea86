"""Turns Spark's own progress events into the stream's progress file."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.listener import StreamingQueryProgress as SparkProgress

from streaming.progress import STARTING, QueryProgress, StreamProgress
from streaming.queries import NEWEST_RECORD


def utc_now() -> datetime:
    return datetime.now(UTC)


class ProgressWriter(StreamingQueryListener):
    """Writes the file whenever a batch ends, a query finds nothing to do, or the phase changes."""

    def __init__(self, file: Path, stream: str, run_id: str | None, clock: Callable[[], datetime] = utc_now) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        at = clock().isoformat()
        self._progress = StreamProgress(stream, STARTING, started_at=at, written_at=at, run_id=run_id)
        self._progress.write(file)

    def phase(self, phase: str, note: str | None = None) -> None:
        with self._lock:
            self._write(phase=phase, note=note)

    def expect(self, query: str, trigger_seconds: float) -> None:
        """Makes room for a query before it starts."""
        with self._lock:
            self._write(queries={**self._progress.queries, query: QueryProgress(trigger_seconds)})

    def recognise(self, query: str, run: str) -> None:
        """Ties a query's run to its name, which idle events lack."""
        with self._lock:
            self._names[run] = query

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._change(event.progress.name, lambda before: after_batch(before, event.progress, self._clock()))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        name = self._names.get(str(event.runId))
        self._change(name, lambda before: after_idleness(before, self._clock()))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    def _change(self, name: str | None, change: Callable[[QueryProgress], QueryProgress]) -> None:
        """One lock around reading and writing: events and the host's own calls come from different threads."""
        with self._lock:
            before = self._progress.queries.get(name) if name else None
            if name and before is not None:
                self._write(queries={**self._progress.queries, name: change(before)})

    def _write(self, **changes: Any) -> None:
        self._progress = replace(self._progress, written_at=self._clock().isoformat(), **changes)
        self._progress.write(self._file)


def after_idleness(before: QueryProgress, now: datetime) -> QueryProgress:
    return replace(
        before,
        idle_at=now.isoformat(),
        rows=0,
        input_rows_per_second=0.0,
        processed_rows_per_second=0.0,
        lag_records=0,
        lag_seconds=0.0,
    )


def after_batch(before: QueryProgress, event: SparkProgress, now: datetime) -> QueryProgress:
    lag = sum(unread_records(source.endOffset, source.latestOffset) for source in event.sources)
    newest = event.observedMetrics.get(NEWEST_RECORD)
    newest_time = newest["enqueued_time"] if newest is not None else None
    if newest_time is not None and newest_time.tzinfo is None:
        newest_time = newest_time.astimezone(UTC)
    states = event.stateOperators
    return replace(
        before,
        batch=event.batchId,
        batch_at=now.isoformat(),
        rows=event.numInputRows,
        batch_seconds=event.batchDuration / 1000,
        input_rows_per_second=_finite(event.inputRowsPerSecond),
        processed_rows_per_second=_finite(event.processedRowsPerSecond),
        lag_records=lag,
        lag_seconds=max(0.0, (now - newest_time).total_seconds()) if lag and newest_time else 0.0,
        state_rows=sum(state.numRowsTotal for state in states),
        state_bytes=sum(state.memoryUsedBytes for state in states),
        watermark=event.eventTime.get("watermark"),
        total_rows=before.total_rows + event.numInputRows,
        total_batches=before.total_batches + 1,
    )


def unread_records(end: str | None, latest: str | None) -> int:
    """How many records a Kafka source knew of and had not read when a batch ended."""
    read, known = _offsets(end), _offsets(latest)
    return sum(max(0, offset - read.get(place, 0)) for place, offset in known.items())


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    if not text:
        return {}
    try:
        return {(hub, part): offset for hub, parts in json.loads(text).items() for part, offset in parts.items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def _finite(rate: float | None) -> float:
    return rate if rate is not None and rate == rate and abs(rate) != float("inf") else 0.0

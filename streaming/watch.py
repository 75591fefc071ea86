"""Turns Spark's own progress events into the stream's progress file."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from lake.java import java_class
from processes.identity import boot_id
from streaming.echoes import Echo
from streaming.progress import STARTING, QueryProgress, StreamProgress
from streaming.sources import NEWEST_RECORDS
from streaming.table_watch import TableOffset, Unread

# Rates of the hub are evened out over about this long.
GROWTH_SECONDS = 20.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_now() -> datetime:
    return datetime.now(UTC)


SparkProgress = Mapping[str, Any]
"""What Spark tells when a batch has ended, as its JSON has it."""


class ProgressWriter:
    """Writes the file whenever a batch ends, a query finds nothing to do, the phase changes, or the host says that it
    lives."""

    def __init__(self, file: Path, stream: str, run_id: str | None, clock: Callable[[], datetime] = utc_now) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._away_since = 0.0
        self._ends: dict[str, dict[str, int]] = {}
        at = clock().isoformat()
        before = StreamProgress.read(file)
        self._progress = StreamProgress(
            stream,
            STARTING,
            started_at=at,
            written_at=at,
            run_id=run_id,
            boot=boot_id(),
            alive_clock=time.monotonic(),
            kept_before=before.unread_kept_until() if before else {},
        )
        self._progress.write(file)

    def phase(self, phase: str, note: str | None = None) -> None:
        """Each phase gives the queries their time anew."""
        now = time.monotonic()
        with self._lock:
            queries = {name: replace(query, sign_clock=now) for name, query in self._progress.queries.items()}
            self._write(phase=phase, note=note, alive_clock=now, queries=queries)

    def alive(self, *working: str) -> None:
        """The host and its JVM answer, and these queries got on with their running batches."""
        now = time.monotonic()
        with self._lock:
            queries = {
                name: replace(query, sign_clock=now) if name in working else query
                for name, query in self._progress.queries.items()
            }
            self._write(alive_clock=now, queries=queries)

    def expect(self, query: str, trigger_seconds: float, retention_seconds: float | None = None) -> None:
        """Makes room for a query before it starts."""
        expected = QueryProgress(trigger_seconds, retention_seconds=retention_seconds, sign_clock=time.monotonic())
        with self._lock:
            self._write(alive_clock=expected.sign_clock, queries={**self._progress.queries, query: expected})

    def hub_reaches(self, query: str, ends: dict[int, int]) -> None:
        """The hub was asked how far it reaches, so that the lag is known between batches too."""
        with self._lock:
            before = self._progress.queries.get(query)
            if before is not None:
                self._ends[query] = {str(partition): end for partition, end in ends.items()}
                after = with_lag(before, self._ends[query], self._clock())
                if before.echoed and time.monotonic() - before.sign_clock < 2 * before.trigger_seconds:
                    # It reads all the time, but tells only with each pulse how far it is.
                    after = replace(after, lag_records=before.lag_records, lag_seconds=before.lag_seconds)
                self._write(queries={**self._progress.queries, query: after})

    def echoed(self, query: str, echoes: dict[str, Echo], all_since: float | None, pulse_seconds: float) -> None:
        """Pulses passed through a query in real time, through all partitions since the moment given."""
        with self._lock:
            before = self._progress.queries.get(query)
            if before is not None:
                # From now on it is known at every pulse how far it is, not only when it notes it.
                after = replace(
                    before,
                    echoed=True,
                    trigger_seconds=before.trigger_seconds if all_since is None else pulse_seconds,
                    idle_at=before.idle_at if all_since is None else self._clock().isoformat(),
                    read_to=before.read_to | {part: echo.sequence_number + 1 for part, echo in echoes.items()},
                    read_up_to=before.read_up_to
                    | {part: echo.enqueued_at.isoformat() for part, echo in echoes.items()},
                    end_to_end_seconds=max(echo.seconds for echo in echoes.values()),
                    sign_clock=max(before.sign_clock, all_since or 0.0),
                )
                after = with_unread(after, self._ends.get(query, {}), self._clock())
                self._write(queries={**self._progress.queries, query: after})

    def hub_answers(self, answers: bool) -> None:
        """While the hub is away nobody knows the lag, and the time does not count for its queries."""
        now = time.monotonic()
        with self._lock:
            if self._progress.hub_away == (not answers):
                return
            away = now - self._away_since if answers else 0.0
            self._away_since = now
            queries = {
                name: replace(query, sign_clock=min(now, query.sign_clock + away))
                if answers
                else replace(query, lag_records=None, lag_seconds=None)
                for name, query in self._progress.queries.items()
            }
            self._write(hub_away=not answers, queries=queries)

    def table_offset(self, query: str) -> TableOffset | None:
        """How far the query has read its table; None until it told, and while it reads what was there at its start."""
        with self._lock:
            read_to = self._progress.queries[query].read_to if query in self._progress.queries else {}
        return TableOffset(read_to["version"], read_to["files"]) if "version" in read_to else None

    def table_reaches(self, query: str, unread: Unread) -> None:
        """The table that the query reads was asked how far it reaches."""
        with self._lock:
            before = self._progress.queries.get(query)
            if before is not None:
                after = with_table_lag(before, unread, self._clock())
                self._write(queries={**self._progress.queries, query: after})

    def recognise(self, query: str, run: str) -> None:
        """Ties a query's run to its name, which idle events lack."""
        with self._lock:
            self._names[run] = query

    def listen(self, spark: SparkSession) -> None:
        """To all queries of the session."""
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        listener = java_class(spark, "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper")
        spark._jsparkSession.streams().addListener(listener(_Events(self)))

    def batch_ended(self, event: SparkProgress) -> None:
        ends = self._ends.get(event["name"] or "", {})
        self._change(event["name"], lambda before: after_batch(before, event, self._clock(), ends))

    def found_nothing(self, run: str) -> None:
        """This run of a query had nothing to do."""
        self._change(self._names.get(run), lambda before: after_idleness(before, self._clock()))

    def rows_of_last_batch(self, query: str) -> int | None:
        """None before its first batch."""
        with self._lock:
            known = self._progress.queries.get(query)
        return known.rows if known is not None and known.batch is not None else None

    def _change(self, name: str | None, change: Callable[[QueryProgress], QueryProgress]) -> None:
        """One lock around reading and writing: events and the host's own calls come from different threads."""
        with self._lock:
            before = self._progress.queries.get(name) if name else None
            if name and before is not None:
                after = replace(change(before), sign_clock=time.monotonic())
                self._write(queries={**self._progress.queries, name: after})

    def _write(self, **changes: Any) -> None:
        self._progress = replace(self._progress, written_at=self._clock().isoformat(), **changes)
        self._progress.write(self._file)


class _Events:
    """What the JVM calls. PySpark's own listener asks for an event field by field, in hundreds of calls, which took a
    tenth of a stream's time; here it comes as one text."""

    def __init__(self, writer: ProgressWriter) -> None:
        self._writer = writer

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._writer.batch_ended(json.loads(event.json())["progress"])

    def onQueryIdle(self, event: Any) -> None:
        self._writer.found_nothing(json.loads(event.json())["runId"])

    def onQueryTerminated(self, event: Any) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def after_idleness(before: QueryProgress, now: datetime) -> QueryProgress:
    return replace(
        before,
        idle_at=now.isoformat(),
        rows=0,
        input_rows_per_second=0.0,
        processed_rows_per_second=0.0,
        lag_records=0,
        lag_seconds=0.0,
        caught_up_at=dict.fromkeys(before.read_to, now.isoformat()),
    )


def after_batch(
    before: QueryProgress, event: SparkProgress, now: datetime, asked: Mapping[str, int] | None = None
) -> QueryProgress:
    """`asked` is how far the hub reached when the host last asked it. Spark itself asks when a batch begins, which is
    long ago at the end of a long one."""
    states = event["stateOperators"]
    watermark = event.get("eventTime", {}).get("watermark")
    newest = newest_records(event)
    after = replace(
        before,
        batch=event["batchId"],
        batch_at=now.isoformat(),
        rows=event["numInputRows"],
        batch_seconds=event["batchDuration"] / 1000,
        input_rows_per_second=_finite(event.get("inputRowsPerSecond")),
        processed_rows_per_second=_finite(event.get("processedRowsPerSecond")),
        read_to=read_to(event) or before.read_to,
        read_up_to=before.read_up_to | newest,
        end_to_end_seconds=before.end_to_end_seconds if before.echoed else _age(newest, now),
        state_rows=sum(state["numRowsTotal"] for state in states),
        state_bytes=sum(state["memoryUsedBytes"] for state in states),
        watermark=watermark,
        watermark_delay_seconds=_delay(watermark, now),
        total_rows=before.total_rows + event["numInputRows"],
        total_batches=before.total_batches + 1,
    )
    if "version" in after.read_to:
        return after
    if before.echoed:
        return with_unread(after, dict(asked or {}), now)
    began = datetime.fromisoformat(event["timestamp"])
    asked_at = datetime.fromisoformat(before.source_asked_at) if before.source_asked_at else began
    if asked and asked_at > began:
        return with_unread(after, dict(asked), now, asked_at)
    ends = _hub_partitions(event["sources"][0].get("latestOffset")) if event["sources"] else {}
    return with_lag(after, ends, now, began)


def with_lag(
    query: QueryProgress, ends: dict[str, int], now: datetime, asked_at: datetime | None = None
) -> QueryProgress:
    """What is unread of a hub that reached to these ends when it was asked, now unless said otherwise, and how fast it
    grows; unknown until the query told how far it has read."""
    if not query.read_to or not ends:
        return query
    source_end, at = sum(ends.values()), asked_at or now
    return replace(
        with_unread(query, ends, now, at),
        source_end=source_end,
        source_asked_at=at.isoformat(),
        arriving_rows_per_second=_growth(query, source_end, at),
    )


def with_unread(
    query: QueryProgress, ends: dict[str, int], now: datetime, asked_at: datetime | None = None
) -> QueryProgress:
    if not ends:
        return query
    known = {partition: end for partition, end in ends.items() if partition in query.read_to or not query.echoed}
    unread = {partition: max(0, end - query.read_to.get(partition, 0)) for partition, end in known.items()}
    behind = [partition for partition, count in unread.items() if count]
    caught_up = {partition: (asked_at or now).isoformat() for partition, count in unread.items() if not count}
    return replace(
        query,
        lag_records=sum(unread.values()),
        lag_seconds=max((_waiting(query, partition, now) for partition in behind), default=0.0),
        caught_up_at=query.caught_up_at | caught_up,
    )


def with_table_lag(query: QueryProgress, unread: Unread, now: datetime) -> QueryProgress:
    end = query.total_rows + unread.records
    return replace(
        query,
        lag_records=unread.records,
        lag_seconds=max(0.0, (now - unread.since).total_seconds()) if unread.since else 0.0,
        source_end=end,
        source_asked_at=now.isoformat(),
        arriving_rows_per_second=_growth(query, end, now),
    )


def read_to(event: SparkProgress) -> dict[str, int]:
    """For each partition of the query's hub the sequence number to read next; of a table the version to read next and
    how many of its files were read, as soon as the query is beyond what was there at its start."""
    if not event["sources"]:
        return {}
    end = event["sources"][0]["endOffset"]
    return _table_offset(end) or _hub_partitions(end)


def _waiting(query: QueryProgress, partition: str, now: datetime) -> float:
    """The oldest unread record came after the newest read one, and after the query had last caught up."""
    known = (query.read_up_to.get(partition), query.caught_up_at.get(partition))
    times = [datetime.fromisoformat(at) for at in known if at]
    return max(0.0, (now - max(times)).total_seconds()) if times else 0.0


def newest_records(event: SparkProgress) -> dict[str, str]:
    """For each partition that the batch read the enqueued time of its newest record."""
    times = event.get("observedMetrics", {}).get(NEWEST_RECORDS, {})
    return {
        name.removeprefix("p"): (EPOCH + timedelta(microseconds=at)).isoformat()
        for name, at in times.items()
        if at is not None
    }


def _age(newest: dict[str, str], now: datetime) -> float | None:
    oldest = min((datetime.fromisoformat(at) for at in newest.values()), default=None)
    return None if oldest is None else max(0.0, (now - oldest).total_seconds())


def _growth(before: QueryProgress, source_end: int, now: datetime) -> float:
    """Records a second that the hub got since it was last asked, evened out over the last few times."""
    if before.source_asked_at is None:
        return 0.0
    seconds = (now - datetime.fromisoformat(before.source_asked_at)).total_seconds()
    if seconds <= 0:
        return before.arriving_rows_per_second
    latest = max(0, source_end - before.source_end) / seconds
    share = min(1.0, seconds / GROWTH_SECONDS)
    return before.arriving_rows_per_second * (1 - share) + latest * share


def _delay(watermark: str | None, now: datetime) -> float | None:
    """None before the first watermark, which Spark gives as the beginning of 1970."""
    if watermark is None or watermark.startswith("1970-01-01T00:00:00"):
        return None
    return (now - datetime.fromisoformat(watermark)).total_seconds()


def _hub_partitions(offsets: Any) -> dict[str, int]:
    """Of a Kafka source's offsets, by topic and partition; empty for those of other sources."""
    try:
        return {part: offset for parts in offsets.values() for part, offset in parts.items()}
    except (AttributeError, TypeError):
        return {}


def _table_offset(offset: Any) -> dict[str, int]:
    try:
        if offset["isStartingVersion"]:
            return {}
        return {"version": int(offset["reservoirVersion"]), "files": max(0, int(offset["index"]) + 1)}
    except (ValueError, KeyError, TypeError):
        return {}


def _finite(rate: float | None) -> float:
    return rate if rate is not None and rate == rate and abs(rate) != float("inf") else 0.0

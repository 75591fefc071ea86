"""The queries of the sensors stream: anomalous readings to the hub at once, and all readings to silver with samples of
their windows.

Open windows are kept nowhere but in silver's readings: a batch that closes windows reads back what belongs to them.
"""

import time
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hub import SENSOR_ALERTS, SENSOR_ECHOES
from lake.commit import append_once, bring_up_to_date, committed_version
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS
from lake.silver import quarantine_table
from lake.tables import Table
from streaming.appended import Appended, kept, onto_hub, rows_now
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sensor_readings import anomalous_readings, readings
from streaming.sensor_windows import MICROS, Windows
from streaming.sources import observe_newest, planned_records
from streaming.strict_json import PROVENANCE, TIMES, sql_text

# `current_timestamp` is one for a whole batch, which lasts for minutes in real time.
NOW = "java_method('java.time.Instant', 'now')"
ALERT = f"""named_struct(
    'alert_id', alert_id, 'device_id', device_id, 'sensor_freq', sensor_freq, 'event_time', event_time,
    'raised_at', {NOW}, 'anomaly', anomaly, 'partition', partition, 'sequence_number', sequence_number)"""
ECHO = """named_struct(
    'sender', {sender}, 'partition', partition, 'sequence_number', sequence_number, 'enqueued_time', enqueued_time)"""
ROWS_A_FILE = 100_000
# Brokers do not agree on the time to the second, and show a record only when it is safe.
ABOUT_TO_SHOW = 5 * MICROS


def alerts_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings.sensors
    if settings.alerts == "real-time":
        records = planned_records(context, query.hub, generation, None)
        rows = with_echoes(anomalous_readings(records, settings), context.sender)
        return QueryPlan(rows, None, real_time_seconds=settings.alert_interval_seconds)
    records = planned_records(context, query.hub, generation, settings.max_records)
    read = observe_newest(records, context.partitions[query.hub], "timestamp")
    return QueryPlan(as_alerts(anomalous_readings(read, settings)), onto_hub(context, SENSOR_ALERTS))


def as_alerts(anomalous: DataFrame) -> DataFrame:
    """For the hub: the key is the device."""
    return anomalous.where("NOT pulse").selectExpr(
        "cast(device_id AS BINARY) AS key", f"to_json({ALERT}, map({TIMES})) AS value"
    )


def with_echoes(anomalous: DataFrame, sender: str) -> DataFrame:
    """Alerts, and a word of each pulse that passed by, each for its own hub; see `streaming.echoes`."""
    echo = ECHO.format(sender=sql_text(sender))
    return anomalous.selectExpr(
        f"CASE WHEN pulse THEN '{SENSOR_ECHOES}' ELSE '{SENSOR_ALERTS}' END AS topic",
        "cast(device_id AS BINARY) AS key",
        f"CASE WHEN pulse THEN to_json({echo}, map({TIMES})) ELSE to_json({ALERT}, map({TIMES})) END AS value",
    )


def samples_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings.sensors
    records = planned_records(context, query.hub, generation, settings.max_records)
    read = observe_newest(readings(records, settings), context.partitions[query.hub])
    return QueryPlan(read, _Sampler(context, query.hub, generation).write, straight_from_hub=True)


class HubClock:
    """The time up to which everything that the hub took has been read."""

    def __init__(self, partitions: int | None) -> None:
        """`partitions` that get pulses; without pulses None."""
        self._partitions = partitions
        self._newest: dict[int, int] = {}

    def after(self, newest: Mapping[int, int], now: int) -> int | None:
        """After a batch with the newest records' times of its partitions; None while it is not known. Never after
        `now`: a hub's clock that is wrong must not close windows of days to come.

        With pulses every partition is heard of soon: until then it holds up the others. Without them one that has no
        record in a batch had none that could be read, but for those that the hub was about to show.
        """
        self._newest |= newest
        if not newest or (self._partitions is not None and len(self._newest) < self._partitions):
            return None
        known = newest.values() if self._partitions is None else self._newest.values()
        return min(*known, now) - (0 if self._partitions is not None else ABOUT_TO_SHOW)


class _Sampler:
    """Writes batches of readings, and samples of the windows that they close.

    The table of readings tells which batches are done. What is written before it is left out where it is there already;
    what is written after it is made up for by the next batch, after a new checkpoint generation too.
    """

    def __init__(self, context: QueryContext, hub: str, generation: Generation) -> None:
        self._spark, self._root = context.spark, context.settings.lake_root
        self._writer, self._windows = generation.writer, Windows.of(context.settings.sensors)
        self._ahead = context.settings.sensors.ahead_seconds * MICROS
        self._quarantine = Appended(context, quarantine_table(hub), generation, may_read_again=True)
        for table in (SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS):
            bring_up_to_date(context.spark, table, self._root)
        self._begun = committed_version(context.spark, SENSOR_READINGS, self._root, self._writer) is not None
        self._clock = HubClock(context.partitions[hub] if context.settings.sensors.pulse_seconds else None)
        self._closed_up_to = self._newest_window(SENSOR_WINDOWS)
        self._sampled_up_to = self._newest_window(SENSOR_SAMPLES)
        """Beyond what is closed where the last batch before the start was cut off between the two."""

    def write(self, batch: DataFrame, number: int) -> None:
        counted = ("unix_micros(max(enqueued_time))", "count(event_time)", "count(reason)")
        with kept(batch) as read:
            partitions = read.groupBy("partition").agg(*map(F.expr, counted)).collect()
            valid, malformed = sum(row[2] for row in partitions), sum(row[3] for row in partitions)
            if malformed:
                self._quarantine.append(_malformed(read), number)
            if valid or not self._begun:
                files = 1 + valid // ROWS_A_FILE
                rows = self._valid(read).coalesce(files)
                append_once(rows, SENSOR_READINGS, self._root, self._writer, number)
                self._begun = True
        clock = self._clock.after({row[0]: row[1] for row in partitions}, round(time.time() * MICROS))
        if clock is not None:
            self._close(self._windows.last_closed(clock), number)

    def _newest_window(self, table: Table) -> int | None:
        """Its end. Of the newest day alone, which Delta finds without reading rows."""
        rows = rows_now(self._spark, table, self._root)
        day = rows.agg(F.max("date")).first()
        found = (
            rows.where(F.col("date") == F.lit(day[0] if day else None)).agg(F.unix_micros(F.max("window_end"))).first()
        )
        return found[0] if found else None

    def _valid(self, read: DataFrame) -> DataFrame:
        columns = [column.name for column in SENSOR_READINGS.columns]
        return (
            read.where("event_time IS NOT NULL")
            .selectExpr("*", "enqueued_time AS processing_time", "to_date(enqueued_time) AS date")
            .selectExpr("*", f"{self._windows.missed(self._closed_up_to)} AS missed_windows")
            .select(*columns)
        )

    def _close(self, up_to: int, number: int) -> None:
        after = self._closed_up_to
        if after is not None and up_to <= after:
            return
        with kept(self._windows.sampled(self._readings_between(after, up_to), after, up_to)) as sampled:
            samples = self._windows.as_samples(sampled)
            if (self._sampled_up_to or 0) > (after or 0):
                there = rows_now(self._spark, SENSOR_SAMPLES, self._root)
                there = there.where(F.col("window_end") > F.timestamp_micros(F.lit(after or 0)))
                samples = samples.join(there.select("window_end").distinct(), "window_end", "left_anti")
            samples = samples.select(*(column.name for column in SENSOR_SAMPLES.columns))
            append_once(samples.coalesce(1), SENSOR_SAMPLES, self._root, self._writer, number)
            windows = self._windows.as_windows(sampled, up_to).coalesce(1)
            append_once(windows, SENSOR_WINDOWS, self._root, self._writer, number)
        self._closed_up_to = up_to

    def _readings_between(self, after: int | None, up_to: int) -> DataFrame:
        """All that may be in windows that end after the one and up to the other, with few others."""
        rows = rows_now(self._spark, SENSOR_READINGS, self._root)
        if after is not None:
            first = self._windows.first_moment(after)
            rows = rows.where(F.col("event_time") >= F.timestamp_micros(F.lit(first)))
            rows = rows.where(F.col("date") >= F.to_date(F.timestamp_micros(F.lit(first - self._ahead))))
        return rows.where(F.col("event_time") < F.timestamp_micros(F.lit(up_to)))


def _malformed(read: DataFrame) -> DataFrame:
    """Rows of quarantine."""
    return read.where("reason IS NOT NULL").selectExpr(
        "body",
        "reason",
        "sentence",
        *PROVENANCE,
    )

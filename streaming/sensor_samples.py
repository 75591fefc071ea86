"""Readings to silver, with samples of their windows.

Open windows are kept nowhere but in silver's readings: a batch that closes windows reads back what belongs to them.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Self

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from lake.commit import append_files, append_once, bring_up_to_date, committed_version
from lake.known_files import KnownFiles
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS
from lake.silver import quarantine_table
from lake.tables import Table
from streaming.appended import Appended, kept, rows_now
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sensor_readings import readings
from streaming.sensor_windows import MICROS, Windows
from streaming.sources import observe_newest, planned_records
from streaming.strict_json import PROVENANCE

# Fewer are read and written sooner by one task than by several, and in one file.
ROWS_A_TASK = 25_000
TOLD_SECONDS = 10.0
# Brokers do not agree on the time to the second, and show a record only when it is safe.
ABOUT_TO_SHOW = 5 * MICROS


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


@dataclass(frozen=True)
class Counted:
    """Records of a batch: readings, malformed ones, and when the hub took the newest of each partition."""

    valid: int = 0
    malformed: int = 0
    newest: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def expressions(partitions: int) -> list[str]:
        newest = "unix_micros(max(CASE WHEN partition = {0} THEN enqueued_time END)) AS p{0}"
        return [
            "count(event_time) AS valid",
            "count(reason) AS malformed",
            "max(partition) + 1 AS partitions",
            *(newest.format(number) for number in range(partitions)),
        ]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        newest = {int(name[1:]): at for name, at in row.items() if name[1:].isdigit() and at is not None}
        return cls(row["valid"], row["malformed"], newest)


class _Sampler:
    """Writes batches of readings, and samples of the windows that they close.

    The table of readings tells which batches are done. What is committed before it is left out where it is there
    already; what is committed after it is made up for by the next batch, after a new checkpoint generation too.
    """

    def __init__(self, context: QueryContext, hub: str, generation: Generation) -> None:
        self._spark, self._root = context.spark, context.settings.lake_root
        self._writer, self._windows = generation.writer, Windows.of(context.settings.sensors)
        self._ahead = context.settings.sensors.ahead_seconds * MICROS
        self._quarantine = Appended(context, quarantine_table(hub), generation, may_read_again=True)
        for table in (SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS):
            bring_up_to_date(context.spark, table, self._root)
        self._begun = committed_version(context.spark, SENSOR_READINGS, self._root, self._writer) is not None
        self._partitions = context.partitions[hub]
        self._clock = HubClock(self._partitions if context.settings.sensors.pulse_seconds else None)
        self._closed_up_to = self._newest_window(SENSOR_WINDOWS)
        self._sampled_up_to = self._newest_window(SENSOR_SAMPLES)
        """Beyond what is closed where the last batch before the start was cut off between the two."""
        self._files = KnownFiles(context.spark, SENSOR_READINGS, self._root, "event_time")
        self._files.look_up(self._first_day())
        self._before = Counted()

    def write(self, batch: DataFrame, number: int) -> None:
        # What is malformed is read twice: that is put up with once, and from then on the batch is kept for it.
        with kept(batch) if self._before.malformed else nullcontext(batch) as read:
            counted = self._append(read, number)
        self._before = counted
        clock = self._clock.after(counted.newest, round(time.time() * MICROS))
        if clock is not None:
            self._close(self._windows.last_closed(clock))

    def _append(self, read: DataFrame, number: int) -> Counted:
        """In one pass: rows are counted while they are written, and committed when what is malformed is."""
        observed = Observation()
        seen = read.observe(observed, *map(F.expr, Counted.expressions(self._partitions)))
        found: list[Counted] = []

        def wanted() -> bool:
            found.append(self._counted(_told(observed), read))
            self._put_aside(found[0], read, number)
            return bool(found[0].valid) or not self._begun

        tasks = -(-self._before.valid // ROWS_A_TASK)  # going by the last batch
        rows = self._valid(seen.coalesce(tasks) if tasks else seen)
        written = append_files(rows, SENSOR_READINGS, self._root, self._writer, number, wanted)
        if written is None:  # by the batch that was cut off here
            found.append(self._counted({}, read))
            self._put_aside(found[0], read, number)
        else:
            self._files.add(written)
        self._begun = True
        return found[0]

    def _counted(self, observed: Mapping[str, Any], read: DataFrame) -> Counted:
        """The rows are counted anew when nobody did, and for partitions that are new."""
        if observed and (observed["partitions"] or 0) <= self._partitions:
            return Counted.of(observed)
        partitions = read.agg(F.max("partition") + 1).first()
        self._partitions = max(self._partitions, (partitions and partitions[0]) or 0)
        row = read.agg(*map(F.expr, Counted.expressions(self._partitions))).first()
        return Counted.of(row.asDict() if row else {})

    def _put_aside(self, counted: Counted, read: DataFrame, number: int) -> None:
        if counted.malformed:
            self._quarantine.append(_malformed(read), number)

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

    def _close(self, up_to: int) -> None:
        """Both commits go by the end of what is closed, not by the batch: one that is done again may come to a later
        end, and what is between the two is then still to be closed."""
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
            append_once(samples.coalesce(1), SENSOR_SAMPLES, self._root, self._writer, up_to)
            windows = self._windows.as_windows(sampled, up_to).coalesce(1)
            append_once(windows, SENSOR_WINDOWS, self._root, self._writer, up_to)
        self._closed_up_to = up_to
        self._files.forget(self._windows.first_moment(up_to))

    def _readings_between(self, after: int | None, up_to: int) -> DataFrame:
        """All that may be in windows that end after the one and up to the other, with others."""
        first = None if after is None else self._windows.first_moment(after)
        return self._files.rows(first, up_to)

    def _first_day(self) -> date | None:
        """Of the hub's days the first with readings of open windows."""
        if self._closed_up_to is None:
            return None
        first = self._windows.first_moment(self._closed_up_to) - self._ahead
        return datetime.fromtimestamp(first // MICROS, UTC).date()


def _told(observed: Observation) -> Mapping[str, Any]:
    """Spark tells of what it counted in a message that it may drop when it has too many: then nothing."""
    told, deadline = observed._jo.future(), time.monotonic() + TOLD_SECONDS  # type: ignore[union-attr]
    while not told.isCompleted():
        if time.monotonic() > deadline:
            return {}
        time.sleep(0.002)
    return observed.get


def _malformed(read: DataFrame) -> DataFrame:
    """Rows of quarantine."""
    return read.where("reason IS NOT NULL").selectExpr(
        "body",
        "reason",
        "sentence",
        *PROVENANCE,
    )

"""The query `click_activity` of the silver stream: keeps the windows that new clicks fall into up to date.

A batch only says which windows have to be looked at. Each is computed whole from silver/clicks and put in place of what
stood there, so that a repeated batch, or one whose clicks came in any order, ends with the same rows.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import SchemaMismatch, bring_up_to_date, replace_days
from lake.days import any_of, bytes_by_day, slices, sql_any_of
from lake.lock import tables_locked
from lake.silver import CLICK_ACTIVITY
from lake.tables import Table
from settings import Settings
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.click_activity import click_activity, in_windows, windows_of
from streaming.click_tables import CLICKS, WINDOWS, StaleDays, activity_lock
from streaming.compilation import compiled
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import table_rows

WINDOW = ["window_start", "window_end"]


def activity_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    settings, spark = context.settings, context.spark
    assert isinstance(query.source, Table)
    bring_up_to_date(spark, query.table, settings.lake_root)
    refuse_other_windows(spark, settings)

    def catch_up() -> None:
        with tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds, context.check_lease):
            context.check_lease()
            restate_stale_days(spark, settings, now=datetime.now(UTC))

    catch_up()
    context.do_between_batches(query.name, catch_up)  # its next batch may be long in coming

    def commit(batch: DataFrame, number: int) -> None:
        with tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds, context.check_lease):
            context.check_lease()
            restate_stale_days(batch.sparkSession, settings, now=datetime.now(UTC))
            context.check_lease()
            restate_windows(batch, settings, now=datetime.now(UTC), as_batch=(generation.writer, number))

    rows = table_rows(
        spark, query.source, settings.lake_root, starts_at=generation.starts_at, max_mb=settings.silver.max_mb
    )
    return QueryPlan(rows, commit)


def refuse_other_windows(spark: SparkSession, settings: Settings) -> None:
    """Windows of two lengths in one table would count clicks twice."""
    minutes = settings.silver.window_minutes
    there = spark.read.format("delta").load(CLICK_ACTIVITY.path(settings.lake_root))
    other = there.where(f"unix_micros(window_end) - unix_micros(window_start) != {round(minutes * 60_000_000)}").first()
    if other is not None:
        length = (other.window_end - other.window_start).total_seconds() / 60
        raise SchemaMismatch(
            f"{CLICK_ACTIVITY.name} has windows of {length:g} minutes, but TIDEWATCH_SILVER_WINDOW_MINUTES is "
            f"{minutes:g}: set it back, or move the table away, and all windows are computed anew."
        )


def restate_windows(
    clicks: DataFrame,
    settings: Settings,
    *,
    now: datetime,
    as_batch: tuple[str, int] | None = None,
    closed_too: bool = False,
) -> None:
    """Computes the windows of these clicks anew, and closes those that the watermark has passed. Closed ones stay as
    they are, unless `closed_too`. Call it with the lock held."""
    there = _windows_there(clicks.sparkSession, settings)
    touched = windows_of(clicks, _length(settings))
    if not closed_too:
        touched = touched.join(there.where("closed"), WINDOW, "left_anti")
    wanted = touched.union(there.where("NOT closed").select(*WINDOW))
    _restate(wanted, settings, now, as_batch)


def restate_stale_days(spark: SparkSession, settings: Settings, *, now: datetime) -> bool:
    """Computes all windows of some stale days anew, closed or not, and takes away those without clicks. Returns False
    when there is none. Call it with the lock held."""
    stale = StaleDays(spark, settings, WINDOWS)
    noted = stale.all()
    if not noted:
        return False
    sizes = bytes_by_day(spark, CLICKS, settings.lake_root, sql_any_of(noted))
    first = slices({day: sizes.get(day, 0) for day in noted}, settings.silver.max_mb)[0]
    days = [day for day in first if day is not None]
    clicks = spark.read.format("delta").load(CLICKS.path(settings.lake_root)).where(any_of(days))
    # A window may begin on the day before.
    of_days = any_of(days) | F.to_date("window_end").isin(sorted(days))
    windows = _windows_there(spark, settings).where(of_days | ~F.col("closed")).select(*WINDOW)
    with compiled(spark):
        _restate(windows_of(clicks, _length(settings)).union(windows), settings, now)
    for day in days:
        stale.remove(day.isoformat())
    return True


def _restate(windows: DataFrame, settings: Settings, now: datetime, as_batch: tuple[str, int] | None = None) -> None:
    """Puts what the clicks give in the place of all rows of these windows, which have to be all open ones and any
    others."""
    spark, root, length = windows.sparkSession, settings.lake_root, _length(settings)
    wanted = windows.distinct().persist()
    try:
        span = _Span.of(wanted)
        if span is None:
            return
        of_windows = in_windows(span.clicks(spark, root), wanted, length)
        there = _windows_there(spark, settings)
        others = there.where(F.col("date").isin(sorted(span.days))).join(wanted, WINDOW, "left_anti")
        rows = click_activity(of_windows, length, _watermark(of_windows, settings, now))
        rows = others.unionByName(rows.select(*there.columns))
        replace_days(rows.coalesce(1), CLICK_ACTIVITY, root, span.days, as_batch)
    finally:
        wanted.unpersist()


@dataclass(frozen=True)
class _Span:
    """From when to when some windows are, and the days that they begin in."""

    first: datetime
    end: datetime
    days: frozenset[date]

    @classmethod
    def of(cls, windows: DataFrame) -> "_Span | None":
        found = windows.selectExpr(
            "min(window_start) AS first", "max(window_end) AS end", "collect_set(to_date(window_start)) AS days"
        ).first()
        if found is None or found.first is None:
            return None
        return cls(found["first"].astimezone(UTC), found["end"].astimezone(UTC), frozenset(found["days"]))

    def clicks(self, spark: SparkSession, root: str) -> DataFrame:
        """Those among which the windows' are. A window may end on the day after it began."""
        days = sorted({day + timedelta(days=more) for day in self.days for more in (0, 1)})
        clicks = spark.read.format("delta").load(CLICKS.path(root)).where(F.col("date").isin(days))
        return clicks.where(
            (F.col("processing_time") >= F.lit(self.first)) & (F.col("processing_time") < F.lit(self.end))
        )


def _windows_there(spark: SparkSession, settings: Settings) -> DataFrame:
    return spark.read.format("delta").load(CLICK_ACTIVITY.path(settings.lake_root))


def _length(settings: Settings) -> timedelta:
    return timedelta(minutes=settings.silver.window_minutes)


def _watermark(clicks: DataFrame, settings: Settings, now: datetime) -> datetime:
    """Behind the newest click, which is in an open window always, so among those to be restated; and never ahead of the
    clock: one record of a wrong time must not close windows."""
    newest = clicks.agg(F.max("processing_time")).first()
    at = newest[0].astimezone(UTC) if newest and newest[0] else now
    return min(at, now) - timedelta(minutes=settings.silver.watermark_minutes)

"""The query `click_activity` of the silver stream: keeps the windows that new clicks fall into up to date.

A batch only says which windows have to be looked at. Each is computed whole from silver/clicks and put in place of what
stood there, so that a repeated batch, or one whose clicks came in any order, ends with the same rows.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import SchemaMismatch, bring_up_to_date
from lake.lock import tables_locked
from lake.silver import CLICK_ACTIVITY, clicks_table
from lake.tables import Table
from settings import Settings
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.click_activity import click_activity, in_windows, windows_of
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import table_rows

TRANSACTION = "spark.databricks.delta.write"
SAME_ROW = (
    "old.date = new.date AND old.window_start = new.window_start AND old.window_end = new.window_end "
    "AND old.eventType <=> new.eventType AND old.platform <=> new.platform"
)


def activity_lock(settings: Settings) -> Path:
    """Held by whoever changes click_activity."""
    return settings.run_folder / "silver" / "click_activity.lock"


def activity_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    settings, spark = context.settings, context.spark
    assert isinstance(query.source, Table)
    bring_up_to_date(spark, query.table, settings.lake_root)
    refuse_other_windows(spark, settings)

    def commit(batch: DataFrame, number: int) -> None:
        with tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds, context.check_lease):
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
    """Computes the windows of these clicks anew, and closes those that the watermark has passed. What a closed window
    has is final: it is computed again only when `closed_too`. Call it with the lock held."""
    spark, root = clicks.sparkSession, settings.lake_root
    window = timedelta(minutes=settings.silver.window_minutes)
    there = spark.read.format("delta").load(CLICK_ACTIVITY.path(root))
    touched = windows_of(clicks, window)
    if not closed_too:
        touched = touched.join(there.where("closed"), ["window_start", "window_end"], "left_anti")
    wanted = touched.union(there.where("NOT closed").select("window_start", "window_end")).distinct().persist()
    try:
        days = {
            row["day"]
            for row in wanted.selectExpr("explode(array(to_date(window_start), to_date(window_end))) AS day").collect()
        }
        if not days:
            return
        silver = spark.read.format("delta").load(clicks_table({}).path(root))
        of_windows = in_windows(silver.where(F.col("date").isin(sorted(days))), wanted, window)
        rows = click_activity(of_windows, window, _watermark(silver, settings, now))
        _merge(rows.select(*there.columns), settings, as_batch)
    finally:
        wanted.unpersist()


def _watermark(clicks: DataFrame, settings: Settings, now: datetime) -> datetime:
    """Behind the newest click, and never ahead of the clock: one record of a wrong time must not close windows."""
    last_day = clicks.where(F.col("date") <= F.lit(now.date())).agg(F.max("date")).first()
    newest = (
        clicks.where(F.col("date") == F.lit(last_day[0] if last_day else None)).agg(F.max("processing_time")).first()
    )
    at = newest[0].astimezone(UTC) if newest and newest[0] else now
    return min(at, now) - timedelta(minutes=settings.silver.watermark_minutes)


def _merge(rows: DataFrame, settings: Settings, as_batch: tuple[str, int] | None) -> None:
    conf = rows.sparkSession.conf
    if as_batch is not None:
        conf.set(f"{TRANSACTION}.txnAppId", as_batch[0])
        conf.set(f"{TRANSACTION}.txnVersion", as_batch[1])
    try:
        (
            DeltaTable.forPath(rows.sparkSession, CLICK_ACTIVITY.path(settings.lake_root))
            .alias("old")
            .merge(rows.alias("new"), SAME_ROW)
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )
    finally:
        conf.unset(f"{TRANSACTION}.txnAppId")
        conf.unset(f"{TRANSACTION}.txnVersion")

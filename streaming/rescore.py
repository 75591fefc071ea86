"""Scores clicks of past days with a chosen model, into a table of its own: what it would have said."""

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake.anomalies import PAGE_LOAD_RESCORES
from lake.commit import bring_up_to_date, newest_version, replace_where, table_exists
from lake.days import any_of, bytes_by_day, files_for, slices, sql_any_of
from lake.lock import tables_locked
from ml.model import Model
from settings import Settings
from streaming.anomaly_query import OF_CLICKS, page_load_anomalies
from streaming.click_rebuild import Days
from streaming.click_tables import CLICKS

LOCK = "page_load_rescores.lock"


class NothingToScore(Exception):
    """There are no clicks of the days that were asked for."""


@dataclass(frozen=True)
class Rescored:
    table_version: int
    """Of silver/clicks."""
    days: int
    clicks: int
    anomalous: int


def rescore(spark: SparkSession, settings: Settings, model: Model, days: Days) -> Rescored:
    """What the table has of this model and these days is replaced, a few days at a time: one that was cut off is done
    again from its start."""
    root = settings.lake_root
    if not table_exists(spark, CLICKS, root):
        raise NothingToScore(f"There is no {CLICKS.name} yet: let the streams bronze and silver run first.")
    version = newest_version(spark, CLICKS, root)
    clicks = spark.read.format("delta").option("versionAsOf", version).load(CLICKS.path(root)).select(*OF_CLICKS)
    sizes = bytes_by_day(spark, CLICKS, root, days.where)
    sizes.pop(None, None)  # a click without a time is of no day
    if not sizes:
        raise NothingToScore(f"{CLICKS.name} has no clicks of {days}.")
    of_model = f"model_version = '{model.version}'"
    with tables_locked(spark, settings.run_folder / "silver" / LOCK, settings.silver.lock_seconds):
        bring_up_to_date(spark, PAGE_LOAD_RESCORES, root)
        # Of a day whose clicks are gone, what was scored before goes too.
        before = bytes_by_day(spark, PAGE_LOAD_RESCORES, root, " AND ".join(filter(None, (of_model, days.where))))
        for some in slices({**dict.fromkeys(before, 0), **sizes}, settings.silver.max_mb):
            known = [day for day in some if day is not None]
            files = files_for(sum(sizes.get(day, 0) for day in known), settings.silver.max_mb)
            scored = page_load_anomalies(clicks.where(any_of(known)), model).coalesce(files)
            replace_where(scored, PAGE_LOAD_RESCORES, root, f"{of_model} AND {sql_any_of(known)}")
    written = spark.read.format("delta").load(PAGE_LOAD_RESCORES.path(root))
    written = written.where(F.col("model_version") == model.version).where(any_of(list(sizes)))
    counts = written.agg(F.count("*"), F.count_if("anomalous")).first()
    assert counts is not None
    return Rescored(version, len(sizes), counts[0], counts[1])

"""Clicks drawn by chance from silver at one version of the table: the same clicks whenever the same are asked for."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake.commit import newest_version, table_exists
from lake.silver import BY_RECORD, clicks_table

CLICKS = clicks_table({})
LEAST_HASH, HASHES = -(2**63), 2**64


class NoClicks(Exception):
    """There is nothing to draw from; the message says where."""


@dataclass(frozen=True)
class DrawnClicks:
    rows: pa.Table
    """Of `hash`, `partition`, `sequence_number`, `enqueued_ms` and `page_loading_seconds`; about as many as were asked
    for."""
    table_version: int
    clicks: int
    """That there were to draw from."""


def draw_clicks(
    spark: SparkSession, lake_root: str, since: datetime, until: datetime, rows: int, seed: int, version: int | None
) -> DrawnClicks:
    """Of clicks with a page load time; memory is that of what is drawn, whatever the table has. Without a version it is
    the newest."""
    if not table_exists(spark, CLICKS, lake_root):
        raise NoClicks(f"There is no {CLICKS.name} yet: let the streams bronze and silver run first.")
    pinned = newest_version(spark, CLICKS, lake_root) if version is None else version
    try:
        table = spark.read.format("delta").option("versionAsOf", pinned).load(CLICKS.path(lake_root))
    except AnalysisException as error:
        raise NoClicks(f"Version {pinned} of {CLICKS.name} can't be read: {str(error).splitlines()[0]}") from None
    in_time = F.col("date").between(since.date(), until.date()) & (F.col("processing_time") >= F.lit(since))
    in_time &= F.col("processing_time") < F.lit(until)
    clicks = table.where(in_time & F.col("page_loading_seconds").isNotNull())
    count = clicks.count()
    if not count:
        raise NoClicks(
            f"{CLICKS.name} has no clicks with a page load time from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} "
            f"in version {pinned}."
        )
    hashed = clicks.select(
        F.xxhash64(F.lit(seed), *BY_RECORD).alias("hash"),
        "partition",
        "sequence_number",
        F.unix_millis("processing_time").alias("enqueued_ms"),
        "page_loading_seconds",
    )
    if rows < count:
        hashed = hashed.where(F.col("hash") < LEAST_HASH + round(HASHES * rows / count))
    return DrawnClicks(hashed.toArrow(), pinned, count)

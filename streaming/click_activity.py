"""Activity in windows of event time, always computed whole from the clicks of a window."""

from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

DISTINCT_DEVIATION = 0.02
PERCENTILE_ACCURACY = 1_000


def click_activity(clicks: DataFrame, window: timedelta, watermark: datetime | None) -> DataFrame:
    """One row for each window, event type and platform. `watermark`: windows that ended by then are closed."""
    return (
        clicks.withColumn("window_start", F.expr(_start(window)))
        .groupBy("window_start", "eventType", "platform")
        .agg(
            F.count("*").alias("clicks"),
            F.approx_count_distinct("productId", DISTINCT_DEVIATION).alias("products"),
            F.avg("page_loading_seconds").alias("page_loading_mean"),
            F.percentile_approx("page_loading_seconds", [0.5, 0.95], PERCENTILE_ACCURACY).alias("percentiles"),
        )
        .withColumn("window_end", F.expr(_end(window)))
        .select(
            "window_start",
            "window_end",
            "eventType",
            "platform",
            "clicks",
            "products",
            "page_loading_mean",
            F.col("percentiles")[0].alias("page_loading_p50"),
            F.col("percentiles")[1].alias("page_loading_p95"),
            (F.col("window_end") <= F.lit(watermark)).alias("closed") if watermark else F.lit(False).alias("closed"),
            F.to_date("window_start").alias("date"),
        )
    )


def windows_of(clicks: DataFrame, window: timedelta) -> DataFrame:
    """The windows that these clicks fall into."""
    starts = clicks.selectExpr(f"{_start(window)} AS window_start").distinct()
    return starts.selectExpr("window_start", f"{_end(window)} AS window_end")


def in_windows(clicks: DataFrame, windows: DataFrame, window: timedelta) -> DataFrame:
    """Those of the clicks that fall into one of these windows."""
    wanted = F.broadcast(windows.selectExpr("window_start AS wanted_start"))
    return clicks.join(wanted, F.expr(f"{_start(window)} = wanted_start"), "left_semi")


def _start(window: timedelta) -> str:
    """Windows follow each other from the beginning of 1970 (UTC) on."""
    return f"timestamp_micros(unix_micros(processing_time) - pmod(unix_micros(processing_time), {_micros(window)}))"


def _end(window: timedelta) -> str:
    return f"timestamp_micros(unix_micros(window_start) + {_micros(window)})"


def _micros(window: timedelta) -> int:
    return round(window.total_seconds() * 1_000_000)

"""The silver stream killed again and again under hostile traffic, and held against plain SQL over bronze."""

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.rig import wait_for
from streaming.lease import Holder
from streaming.progress import RUNNING
from tests.system import Host, System

pytestmark = pytest.mark.slow

WINDOW_MINUTES = 0.5


@pytest.mark.timeout(1500)
def test_killed_five_times_under_bad_repeated_and_late_clicks_the_audit_is_clean(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    environment = {
        "TIDEWATCH_SUPERVISOR_STREAMS": '["bronze", "silver"]',
        "TIDEWATCH_SILVER_TRIGGER_SECONDS": "1",
        # A whole backlog in one batch would take minutes on a busy machine, and kills would hit nothing else.
        "TIDEWATCH_SILVER_MAX_MB": "4",
        "TIDEWATCH_SILVER_ACTIVITY_TRIGGER_SECONDS": "3",
        "TIDEWATCH_SILVER_WINDOW_MINUTES": str(WINDOW_MINUTES),
        "TIDEWATCH_SILVER_WATERMARK_MINUTES": "1",
    }
    with System(tmp_path / "home", **environment) as system:
        system.start_host()
        silver = system.start_host(stream="silver")
        shares = ("--bad-fraction", "0.03", "--duplicate-fraction", "0.05", "--late-fraction", "0.02")
        enough = time.monotonic() + 210
        with system.traffic(ledger, 1000, "clicks", shares):
            for kill in range(5):
                wait_for_batches(system, silver, kill % 2)
                time.sleep(kill / 3)
                silver.kill()
                silver = system.start_host(stream="silver")
            time.sleep(max(0.0, enough - time.monotonic()))
        result = system.audit(ledger, wait=600)
        assert result["clean"], result
        assert result["acknowledged"] >= 200_000
        wait_for("click_activity has caught up", lambda: caught_up(system), 300)
        silver.stop()
        assert_equal_to_a_batch(spark, system.settings.lake_root)


def wait_for_batches(system: System, host: Host, count: int) -> None:
    """Until this host has begun its queries and done so many batches."""

    def done() -> bool:
        assert host.process.poll() is None, host.log.read_text()
        holder, progress = system.files("silver").lease, system.progress("silver")
        found = Holder.read(holder)
        if found is None or found.host.pid != host.process.pid or progress is None or progress.phase != RUNNING:
            return False
        return progress.queries["clicks"].total_batches >= count

    try:
        wait_for(f"{count} batches of silver", done, 300)
    except AssertionError as error:
        error.add_note(f"{system.progress('silver')}\n{host.log.read_text()[-3000:]}")
        raise


def caught_up(system: System) -> bool:
    progress = system.progress("silver")
    query = progress.queries["click_activity"] if progress else None
    return query is not None and query.lag_records == 0 and (query.idle_at or "") > (query.batch_at or "")


def assert_equal_to_a_batch(spark: SparkSession, root: str) -> None:
    """Against plain SQL over bronze that shares no code with the stream."""

    def table(name: str) -> DataFrame:
        return spark.read.format("delta").load(f"{root}/{name}")

    parsed = (
        table("bronze/clicks")
        .withColumn(
            "click",
            F.from_json(
                F.col("body").cast("string"),
                "eventType STRING, eventID STRING, productId STRING, userAgent STRUCT<platform: STRING>, "
                "extraPayload ARRAY<STRUCT<relatedProductId: STRING, relatedProductCategory: STRING>>, "
                "page_loading_seconds DOUBLE",
                {"mode": "PERMISSIVE"},
            ),
        )
        .where(
            "is_valid_utf8(cast(body AS STRING)) AND click.eventID IS NOT NULL "
            "AND click.page_loading_seconds BETWEEN 0 AND 3600 AND size(click.extraPayload) <= 1000"
        )
    )
    first = parsed.selectExpr(
        "*", "row_number() OVER (PARTITION BY click.eventID ORDER BY enqueued_time, partition, sequence_number) AS nth"
    ).where("nth = 1")
    wanted = first.selectExpr("click.*", "enqueued_time", "partition", "sequence_number").persist()
    path = wanted.selectExpr("eventID", "posexplode(extraPayload) AS (position, related)", "sequence_number")
    assert_same(
        path.selectExpr("eventID", "position", "related.*", "sequence_number"),
        table("silver/clickpath").select(
            "eventID", "position", "relatedProductId", "relatedProductCategory", "sequence_number"
        ),
    )
    window = F.window("enqueued_time", f"{round(WINDOW_MINUTES * 60)} seconds")["start"].alias("window_start")
    exact = wanted.groupBy(window, "eventType", "userAgent.platform").agg(
        F.count("*").alias("clicks"),
        F.avg("page_loading_seconds").alias("mean"),
        F.count_distinct("productId").alias("exact_products"),
    )
    found = table("silver/click_activity")
    assert_same(
        exact.select("window_start", "eventType", "platform", "clicks"),
        found.select("window_start", "eventType", "platform", "clicks"),
    )
    both = found.join(exact.drop("clicks"), ["window_start", "eventType", "platform"])
    assert both.where("abs(page_loading_mean - mean) > 1e-9").isEmpty()
    large = both.where("clicks >= 200")
    assert large.count() > 5
    assert not found.where("closed").isEmpty()
    assert large.where("abs(products - exact_products) > 0.08 * exact_products").isEmpty()
    assert_ranks(wanted.withColumn("window_start", window), found)


def assert_ranks(clicks: DataFrame, activity: DataFrame) -> None:
    """A percentile has its place among the values, give or take the 0.1% that the table states and one value."""
    place = ["window_start", "eventType", "platform"]
    values = clicks.select("window_start", "eventType", "userAgent.platform", "page_loading_seconds")
    ranked = (
        values.join(activity.select(*place, "page_loading_p50", "page_loading_p95"), place)
        .groupBy(*place)
        .agg(
            *(
                F.expr(f"count_if(page_loading_seconds {sign} page_loading_{name})").alias(f"{name}_{what}")
                for name in ("p50", "p95")
                for sign, what in (("<", "below"), ("<=", "up_to"))
            ),
            F.count("*").alias("all"),
        )
    )
    slack = "(0.001 * all + 1)"
    off = ranked.where(
        " OR ".join(
            f"NOT {share} * all BETWEEN {name}_below - {slack} AND {name}_up_to + {slack}"
            for name, share in (("p50", 0.5), ("p95", 0.95))
        )
    )
    assert off.isEmpty(), off.collect()


def assert_same(one: DataFrame, other: DataFrame) -> None:
    other = other.toDF(*one.columns)
    assert one.exceptAll(other).isEmpty(), one.exceptAll(other).limit(3).collect()
    assert other.exceptAll(one).isEmpty(), other.exceptAll(one).limit(3).collect()

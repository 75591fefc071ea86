"""Streaming reads of the hub and of tables."""

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hub.connection import HubConnection
from lake.commit import newest_version
from lake.tables import Table
from streaming.checkpoints import VERSION, Generation, Offsets
from streaming.query_plan import QueryContext

EARLIEST = -2
NEWEST_RECORDS = "newest_records"
# A task that has read its last record asks for more before it ends: at a hub's end it would wait for half a second.
FETCH_WAIT_MS = 20


def hub_records(
    spark: SparkSession, connection: HubConnection, hub: str, *, starts_at: Offsets | None, max_records: int | None
) -> DataFrame:
    """A hub's records with Kafka's columns and headers. `starts_at` counts only for a checkpoint without a batch. In
    real time there is no limit of records."""
    limits = {"maxOffsetsPerTrigger": max_records, "kafka.fetch.max.wait.ms": FETCH_WAIT_MS} if max_records else {}
    return (
        spark.readStream.format("kafka")
        .options(**connection.spark_options())
        .option("subscribe", hub)
        .option("startingOffsets", json.dumps(starts_at) if starts_at else "earliest")
        .options(**limits)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("kafka.reconnect.backoff.max.ms", 10_000)
        .load()
    )


def planned_records(context: QueryContext, hub: str, generation: Generation, max_records: int | None) -> DataFrame:
    """From where the generation begins."""
    starts_at = complete_offsets(generation.starts_at, context.partitions) if generation.starts_at else None
    return hub_records(context.spark, context.connection, hub, starts_at=starts_at, max_records=max_records)


def observe_newest(rows: DataFrame, partitions: int, time: str = "enqueued_time") -> DataFrame:
    """Has each batch tell the enqueued time of the newest record of each partition, in microseconds, in columns p0, p1,
    …"""
    newest = [
        F.unix_micros(F.max(F.when(F.col("partition") == number, F.col(time)))).alias(f"p{number}")
        for number in range(partitions)
    ]
    return rows.observe(NEWEST_RECORDS, *newest)


def complete_offsets(offsets: Offsets, partitions: dict[str, int]) -> Offsets:
    """Spark wants an offset for every partition: those that are new since begin at their start."""
    return {
        hub: {str(partition): known.get(str(partition), EARLIEST) for partition in range(partitions[hub])}
        for hub, known in offsets.items()
    }


def table_rows(
    spark: SparkSession, table: Table, lake_root: str, *, starts_at: Offsets | None, max_mb: int
) -> DataFrame:
    """What was appended to a table; first all that is there. Commits that change or delete rows are passed over.

    `starts_at` counts only for a checkpoint without a batch.
    """
    reader = (
        spark.readStream.format("delta").option("maxBytesPerTrigger", f"{max_mb}m").option("skipChangeCommits", "true")
    )
    if starts_at:
        # The next version may not be there yet, and Delta refuses to start at it.
        version = min(starts_at[table.name][VERSION], newest_version(spark, table, lake_root))
        reader = reader.option("startingVersion", version)
    return reader.load(table.path(lake_root))

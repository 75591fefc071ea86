"""Streaming reads of the hub."""

import json

from pyspark.sql import DataFrame, SparkSession

from hub.connection import HubConnection
from streaming.checkpoints import HubOffsets

EARLIEST = -2


def hub_records(
    spark: SparkSession, connection: HubConnection, hub: str, *, starts_at: HubOffsets | None, max_records: int
) -> DataFrame:
    """A hub's records with Kafka's columns and headers. `starts_at` counts only for a checkpoint without a batch."""
    return (
        spark.readStream.format("kafka")
        .options(**connection.spark_options())
        .option("subscribe", hub)
        .option("startingOffsets", json.dumps(starts_at) if starts_at else "earliest")
        .option("maxOffsetsPerTrigger", max_records)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("kafka.reconnect.backoff.max.ms", 10_000)
        .load()
    )


def complete_offsets(offsets: HubOffsets, partitions: dict[str, int]) -> HubOffsets:
    """Spark wants an offset for every partition: those that are new since begin at their start."""
    return {
        hub: {str(partition): known.get(str(partition), EARLIEST) for partition in range(partitions[hub])}
        for hub, known in offsets.items()
    }

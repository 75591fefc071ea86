"""Starts the queries of a stream: generation, source, transformation and exactly-once sink put together."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from hub.connection import HubConnection
from lake.commit import append_once, committed_version, create_if_missing, has_rows
from settings import Settings
from streaming.bronze import bronze_rows
from streaming.catalog import QuerySpec, StreamSpec
from streaming.checkpoints import CheckpointError, Generation, QueryCheckpoints
from streaming.sources import complete_offsets, hub_records

NEWEST_RECORDS = "newest_records"


class StopRequested(Exception):
    """Raised in place of a new batch once the stream is to stop; the batch is done after the next start."""


@dataclass(frozen=True)
class QueryContext:
    spark: SparkSession
    settings: Settings
    connection: HubConnection
    partitions: dict[str, int]
    """How many partitions each topic has now."""
    stopping: Callable[[], bool]
    check_lease: Callable[[], None]
    """Does not return when this host may write no more."""
    now: datetime


def start_query(context: QueryContext, stream: StreamSpec, query: QuerySpec) -> StreamingQuery:
    """Starts it in a FAIR pool of its own."""
    spark, settings = context.spark, context.settings
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, stream.name, query.name)
    generation = current_generation(context, checkpoints, stream, query)
    create_if_missing(spark, query.table, settings.lake_root)
    starts_at = complete_offsets(generation.starts_at, context.partitions) if generation.starts_at else None
    records = hub_records(
        spark, context.connection, query.hub, starts_at=starts_at, max_records=settings.bronze.max_records
    )
    rows = bronze_rows(records).observe(NEWEST_RECORDS, *newest_records(context.partitions[query.hub]))

    def commit(batch: DataFrame, number: int) -> None:
        if context.stopping():
            raise StopRequested
        context.check_lease()
        append_once(batch, query.table, settings.lake_root, generation.writer, number)

    spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{stream.name}.{query.name}")
    return (
        rows.writeStream.queryName(query.name)
        .foreachBatch(commit)
        .trigger(processingTime=f"{round(settings.bronze.trigger_seconds * 1000)} milliseconds")
        .option("checkpointLocation", checkpoints.location(generation))
        .start()
    )


def current_generation(
    context: QueryContext, checkpoints: QueryCheckpoints, stream: StreamSpec, query: QuerySpec
) -> Generation:
    """The generation to run: the latest, or the next where the plan changed or none was there yet."""
    spark, root = context.spark, context.settings.lake_root
    latest = checkpoints.latest()
    if latest is None:
        if has_rows(spark, query.table, root):
            raise CheckpointError(
                f"{stream.name}/{query.name} has no checkpoint, but its table {query.table.name} has rows: reading the "
                "hub from its start would write them twice. Restore the checkpoint from a backup, or move the table "
                "away to begin anew."
            )
        return checkpoints.begin(query.plan, None, context.now)
    version = committed_version(spark, query.table, root, latest.writer)
    if version is None and checkpoints.has_commits(latest):
        raise CheckpointError(
            f"{stream.name}/{query.name} has a checkpoint, but {query.table.path(root)} does not have what it wrote: "
            "going on would leave out all records before. Point TIDEWATCH_LAKE at the lake that it belongs to, or "
            "restore the table; to fill a new lake from the hub's start, set TIDEWATCH_CHECKPOINTS to a new place too."
        )
    if latest.plan == query.plan:
        return latest
    return checkpoints.begin(query.plan, checkpoints.end_offsets(latest, version), context.now)


def newest_records(partitions: int) -> list[Column]:
    """The enqueued time of the newest record of each partition, in columns p0, p1, …"""
    return [
        F.max(F.when(F.col("partition") == number, F.col("enqueued_time"))).alias(f"p{number}")
        for number in range(partitions)
    ]

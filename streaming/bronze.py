"""The bronze stream: a hub's records as rows, every byte kept."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake.commit import append_once, bring_up_to_date
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import complete_offsets, hub_records

NEWEST_RECORDS = "newest_records"


def bronze_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings
    bring_up_to_date(context.spark, query.table, settings.lake_root)
    starts_at = complete_offsets(generation.starts_at, context.partitions) if generation.starts_at else None
    records = hub_records(
        context.spark, context.connection, query.hub, starts_at=starts_at, max_records=settings.bronze.max_records
    )

    def commit(batch: DataFrame, number: int) -> None:
        append_once(batch, query.table, settings.lake_root, generation.writer, number)

    observed = newest_records(context.partitions[query.hub])
    return QueryPlan(bronze_rows(records).observe(NEWEST_RECORDS, *observed), commit)


def bronze_rows(records: DataFrame) -> DataFrame:
    """From Kafka's columns to bronze's."""
    return records.select(
        F.col("value").alias("body"),
        F.col("key"),
        F.col("headers"),
        F.col("topic").alias("hub"),
        F.col("partition"),
        F.col("offset").alias("sequence_number"),
        F.col("timestamp").alias("enqueued_time"),
        F.current_timestamp().alias("ingest_time"),
        F.to_date("timestamp").alias("date"),
    )


def newest_records(partitions: int) -> list[Column]:
    """The enqueued time of the newest record of each partition, in columns p0, p1, …"""
    return [
        F.max(F.when(F.col("partition") == number, F.col("enqueued_time"))).alias(f"p{number}")
        for number in range(partitions)
    ]

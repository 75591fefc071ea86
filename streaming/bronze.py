"""The bronze stream: a hub's records as rows, every byte kept."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake.commit import append_once, bring_up_to_date
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import observe_newest, planned_records


def bronze_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings
    bring_up_to_date(context.spark, query.table, settings.lake_root)
    records = planned_records(context, query.hub, generation, settings.bronze.max_records)

    def commit(batch: DataFrame, number: int) -> None:
        append_once(batch, query.table, settings.lake_root, generation.writer, number)

    rows = observe_newest(bronze_rows(records), context.partitions[query.hub])
    return QueryPlan(rows, commit, straight_from_hub=True)


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

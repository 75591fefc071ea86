"""The bronze stream's transformation: a hub's records as rows, every byte kept."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


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

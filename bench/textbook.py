"""Silver as the guides show it: from_json, dropDuplicatesWithinWatermark, one Delta query a table, default settings."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = """eventType STRING, eventID STRING, productId STRING, userAgent STRUCT<platform: STRING, browser: STRING>,
    extraPayload ARRAY<STRUCT<relatedProductId: STRING, relatedProductCategory: STRING>>, page_loading_seconds DOUBLE"""
VALID = """click IS NOT NULL AND click.eventID IS NOT NULL AND is_valid_utf8(cast(body AS STRING))
    AND click.page_loading_seconds BETWEEN 0 AND 3600 AND size(click.extraPayload) <= 1000"""
TUNED = "spark.sql.streaming.stateStore.", "spark.databricks.delta.", "spark.sql.shuffle."


def textbook_silver(spark: SparkSession, bronze: str, folder: Path) -> list[StreamingQuery]:
    """Started in this session, whose settings of state, of Delta and of shuffles become the defaults; others, like the
    way local files are written, stay and speed it up too. Ends with what is there."""
    for name in [name for name in spark.conf.getAll if name.startswith(TUNED)]:
        spark.conf.unset(name)

    def parsed() -> DataFrame:
        rows = spark.readStream.format("delta").load(bronze)
        return rows.withColumn("click", F.from_json(F.col("body").cast("string"), SCHEMA))

    def kept() -> DataFrame:
        good = parsed().where(VALID).select("click.*", "enqueued_time", "partition", "sequence_number", "date")
        return good.withWatermark("enqueued_time", "10 minutes").dropDuplicatesWithinWatermark(["eventID"])

    tables = {
        "clicks": kept().select("*", "userAgent.*", F.size("extraPayload").alias("related_products")).drop("userAgent"),
        "clickpath": kept()
        .select("eventID", "eventType", "productId", F.posexplode("extraPayload"), "enqueued_time", "date")
        .select("*", "col.*")
        .drop("col"),
        "quarantine": parsed().where(f"NOT coalesce({VALID}, false)").drop("click"),
    }
    return [
        rows.writeStream.format("delta")
        .partitionBy("date")
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .trigger(availableNow=True)
        .start(str(folder / name))
        for name, rows in tables.items()
    ]

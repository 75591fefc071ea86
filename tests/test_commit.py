"""Exactly-once appends, on real Delta tables."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from delta import DeltaTable
from delta.exceptions import ConcurrentTransactionException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import (
    SchemaMismatch,
    append_once,
    bring_up_to_date,
    committed_version,
    create_if_missing,
    has_rows,
)
from lake.tables import Column, Table, bronze_table

TABLE = Table(
    "test/numbers",
    "Numbers",
    (Column("number", "BIGINT", "A number"), Column("parity", "STRING", "Even or odd")),
    partitioned_by=("parity",),
    properties={"delta.checkpointInterval": "100"},
)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> str:
    create_if_missing(spark, TABLE, str(tmp_path))
    return str(tmp_path)


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(v, "odd" if v % 2 else "even") for v in values], "number BIGINT, parity STRING")


def stored(spark: SparkSession, lake: str) -> list[int]:
    rows = spark.read.format("delta").load(TABLE.path(lake)).orderBy("number").collect()
    return [row["number"] for row in rows]


def test_a_created_table_is_empty_and_says_what_it_is(spark: SparkSession, lake: str) -> None:
    described = DeltaTable.forPath(spark, TABLE.path(lake)).detail().collect()[0]
    assert described["partitionColumns"] == ["parity"]
    assert described["description"] == "Numbers"
    assert described["properties"]["delta.checkpointInterval"] == "100"
    schema = spark.read.format("delta").load(TABLE.path(lake)).schema
    assert [field.metadata["comment"] for field in schema] == ["A number", "Even or odd"]
    assert not has_rows(spark, TABLE, lake)
    create_if_missing(spark, TABLE, lake)  # leaves it alone
    assert len(DeltaTable.forPath(spark, TABLE.path(lake)).history().collect()) == 1


def test_a_version_is_written_once(spark: SparkSession, lake: str) -> None:
    assert append_once(numbers(spark, 1, 2), TABLE, lake, "w", 0)
    assert append_once(numbers(spark, 3), TABLE, lake, "w", 1)
    assert not append_once(numbers(spark, 3), TABLE, lake, "w", 1)
    assert not append_once(numbers(spark, 1, 2), TABLE, lake, "w", 0)
    assert stored(spark, lake) == [1, 2, 3]
    assert committed_version(spark, TABLE, lake, "w") == 1
    assert has_rows(spark, TABLE, lake)


def test_writers_do_not_know_each_other(spark: SparkSession, lake: str) -> None:
    append_once(numbers(spark, 1), TABLE, lake, "a", 5)
    assert committed_version(spark, TABLE, lake, "b") is None
    assert append_once(numbers(spark, 2), TABLE, lake, "b", 0)
    assert stored(spark, lake) == [1, 2]


def test_batches_of_another_kind_of_writer_count_too(spark: SparkSession, lake: str) -> None:
    def plain_write(value: int, version: int) -> None:
        write = numbers(spark, value).write.format("delta").mode("append")
        write.option("txnAppId", "w").option("txnVersion", version).save(TABLE.path(lake))

    append_once(numbers(spark, 1), TABLE, lake, "w", 0)
    plain_write(1, 0)
    plain_write(2, 1)
    assert not append_once(numbers(spark, 2), TABLE, lake, "w", 1)
    assert stored(spark, lake) == [1, 2]


def test_without_checksums_the_versions_are_still_known(spark: SparkSession, lake: str) -> None:
    append_once(numbers(spark, 1), TABLE, lake, "w", 0)
    for checksum in Path(TABLE.path(lake), "_delta_log").glob("*.crc"):
        checksum.unlink()
    assert spark._jvm is not None
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert not append_once(numbers(spark, 1), TABLE, lake, "w", 0)
    assert append_once(numbers(spark, 2), TABLE, lake, "w", 1)
    assert stored(spark, lake) == [1, 2]


def test_two_commits_of_one_writer_at_once_are_refused(spark: SparkSession, lake: str) -> None:
    """The second reads the table before the first commits: without the conflict both would be in."""
    append_once(numbers(spark, 1), TABLE, lake, "w", 0)
    slow = numbers(spark, 2)

    class CommitsInBetween:
        """Hands the slow writer's rows to Delta only after another commit of the same batch."""

        sparkSession = spark
        schema = slow.schema

        @property
        def _jdf(self) -> object:
            append_once(numbers(spark, 2), TABLE, lake, "w", 1)
            return slow._jdf

    with pytest.raises(ConcurrentTransactionException):
        append_once(CommitsInBetween(), TABLE, lake, "w", 1)  # type: ignore[arg-type]
    assert stored(spark, lake) == [1, 2]


def test_rows_of_another_shape_are_refused(spark: SparkSession, lake: str) -> None:
    with pytest.raises(SchemaMismatch, match="test/numbers has no such columns: color string"):
        append_once(numbers(spark, 1).withColumn("color", F.lit("red")), TABLE, lake, "w", 0)
    with pytest.raises(SchemaMismatch, match="no such columns: number int"):
        append_once(numbers(spark, 1).withColumn("number", F.col("number").cast("int")), TABLE, lake, "w", 0)
    assert stored(spark, lake) == []


def test_columns_are_added_but_never_changed(spark: SparkSession, lake: str) -> None:
    append_once(numbers(spark, 1), TABLE, lake, "w", 0)
    wider = replace(TABLE, columns=(*TABLE.columns, Column("color", "STRING", "The number's color")))
    bring_up_to_date(spark, wider, lake)
    bring_up_to_date(spark, TABLE, lake)
    append_once(numbers(spark, 2), TABLE, lake, "w", 1)
    append_once(numbers(spark, 3).selectExpr("'red' AS color", "*"), wider, lake, "w", 2)
    rows = spark.read.format("delta").load(TABLE.path(lake)).collect()
    assert {row.number: row.color for row in rows} == {1: None, 2: None, 3: "red"}
    for other in (Column("color", "INT", ""), Column("Color", "STRING", "")):
        with pytest.raises(SchemaMismatch, match="has a column color string, so that it can't have one"):
            bring_up_to_date(spark, replace(TABLE, columns=(*TABLE.columns, other)), lake)


def test_files_hold_statistics_and_the_partition(spark: SparkSession, lake: str) -> None:
    append_once(numbers(spark, 1, 2, 3), TABLE, lake, "w", 0)
    log = Path(TABLE.path(lake), "_delta_log", f"{1:020}.json").read_text().splitlines()
    added = [json.loads(line)["add"] for line in log if '"add"' in line]
    assert {one["partitionValues"]["parity"] for one in added} == {"odd", "even"}
    assert sum(json.loads(one["stats"])["numRecords"] for one in added) == 3
    assert max(json.loads(one["stats"])["maxValues"]["number"] for one in added) == 3


def test_bronze_tables_differ_in_their_name_only() -> None:
    clicks, sensors = bronze_table("clicks"), bronze_table("sensors")
    assert replace(sensors, name=clicks.name, description=clicks.description) == clicks

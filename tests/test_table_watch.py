"""How much of a table is unread, told from its log."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from lake.commit import append_once, create_if_missing
from lake.tables import Column, Table
from streaming.table_watch import TableOffset, Unread, UnreadOfTable

TABLE = Table("test/numbers", "Numbers", (Column("number", "BIGINT", "A number"),))


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> str:
    """Version 0 is empty, version 1 has files of 3 and 3 rows, version 2 one of 5."""
    create_if_missing(spark, TABLE, str(tmp_path))
    for version, (rows, files) in enumerate([(6, 2), (5, 1)]):
        numbers = spark.range(0, rows, 1, files).withColumnRenamed("id", "number")
        append_once(numbers, TABLE, str(tmp_path), "w", version)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("offset", "records"),
    [
        (TableOffset(0, 0), 11),
        (TableOffset(1, 0), 11),
        (TableOffset(1, 1), 8),
        (TableOffset(2, 0), 5),
        (TableOffset(2, 1), 0),
        (TableOffset(3, 0), 0),
    ],
)
def test_what_comes_after_an_offset_is_unread(
    spark: SparkSession, lake: str, offset: TableOffset, records: int
) -> None:
    unread = UnreadOfTable(spark, TABLE, lake).after(offset)
    assert unread.records == records
    assert (unread.since is None) == (records == 0)
    if unread.since is not None:
        assert abs((datetime.now(UTC) - unread.since).total_seconds()) < 600


def test_a_new_commit_is_seen_and_one_that_only_rewrites_does_not_count(spark: SparkSession, lake: str) -> None:
    watched = UnreadOfTable(spark, TABLE, lake)
    assert watched.after(TableOffset(3, 0)) == Unread(0, None)
    DeltaTable.forPath(spark, TABLE.path(lake)).optimize().executeCompaction()
    DeltaTable.forPath(spark, TABLE.path(lake)).delete("number = 0")
    assert watched.after(TableOffset(3, 0)).records == 0
    append_once(spark.range(4).withColumnRenamed("id", "number"), TABLE, lake, "w", 2)
    assert watched.after(TableOffset(3, 0)).records == 4

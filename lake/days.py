"""Days, by which tables are partitioned: how much a table has of each, and how to take a few at a time."""

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import date

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from lake.delta_api import delta_log, files_where
from lake.tables import Table

Day = date | None
"""None for rows without a time."""
MB = 1024 * 1024


def any_of(days: Collection[Day]) -> Column:
    """That a row is of one of these days."""
    known = F.col("date").isin(sorted(day for day in days if day))
    return known | F.col("date").isNull() if None in days else known


def sql_any_of(days: Collection[date]) -> str:
    literals = ", ".join(f"date'{day}'" for day in sorted(days))
    return f"date IN ({literals})"


def bytes_by_day(spark: SparkSession, table: Table, lake_root: str, where: str | None) -> dict[Day, int]:
    """How much the table has of each day, where a condition on the day holds; told from its log."""
    transaction = delta_log(spark, table, lake_root).startTransaction()
    found: Counter[Day] = Counter()
    for file in files_where(spark, transaction, where):
        text = file.partitionValues().apply("date")
        found[date.fromisoformat(text) if text else None] += file.size()
    return dict(found)


def files_for(size: int, most_mb: int) -> int:
    """How many files of at most so much to write for what takes about this many bytes."""
    return max(1, -(-size // (most_mb * MB)))


def slices(sizes: Mapping[Day, int], most_mb: int) -> list[set[Day]]:
    """The days in their order, so many together as have no more than that, or a single one that has more."""
    found: list[set[Day]] = []
    room = 0
    for day in sorted(sizes, key=lambda day: day or date.min):
        if not found or sizes[day] > room:
            found.append(set())
            room = most_mb * MB
        found[-1].add(day)
        room -= sizes[day]
    return found

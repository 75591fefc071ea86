"""What several queries do with a batch's rows: keep them while they are used, and append them where there are any."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import append_once, bring_up_to_date, committed_version
from lake.silver import BY_RECORD
from lake.tables import Table
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext


class Appended:
    """A table that not every batch has rows for: the others make no commit, but for a generation's first, by which it
    is known later that the table belongs to the checkpoint."""

    def __init__(
        self, context: QueryContext, table: Table, generation: Generation, *, may_read_again: bool = False
    ) -> None:
        """With `may_read_again` records that are there already are left out."""
        self._table, self._root, self._writer = table, context.settings.lake_root, generation.writer
        self._may_read_again = may_read_again
        bring_up_to_date(context.spark, table, self._root)
        self._known = committed_version(context.spark, table, self._root, self._writer) is not None

    def append(self, batch: DataFrame, number: int) -> None:
        with kept(batch) as rows:
            if not self._known or not rows.isEmpty():
                new = self._not_there(rows) if self._may_read_again else rows
                append_once(new.coalesce(1), self._table, self._root, self._writer, number)
                self._known = True

    def _not_there(self, rows: DataFrame) -> DataFrame:
        ends = rows.agg(F.min("processing_time"), F.max("processing_time"), F.min("date"), F.max("date")).first()
        if ends is None or ends[0] is None:
            return rows
        there = rows_now(rows.sparkSession, self._table, self._root).where(F.col("date").between(ends[2], ends[3]))
        there = there.where(F.col("processing_time").between(*(end.astimezone(UTC) for end in ends[:2])))
        return rows.join(there.select(*BY_RECORD), list(BY_RECORD), "left_anti").select(*rows.columns)


def onto_hub(context: QueryContext, hub: str) -> Callable[[DataFrame, int], None]:
    """Sends a batch's rows; a batch that is done again is sent again."""
    options = context.connection.spark_options()

    def commit(batch: DataFrame, number: int) -> None:
        batch.write.format("kafka").options(**options).option("topic", hub).save()

    return commit


def rows_now(spark: SparkSession, table: Table, root: str) -> DataFrame:
    return spark.read.format("delta").load(table.path(root))


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """In memory or on disk, so that they are computed once."""
    if rows.is_cached:
        yield rows
        return
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()

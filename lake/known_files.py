"""Files of a table that a stream may have to read back, known since they were written.

Asked for rows of some time, Delta looks through the table's whole log with a job of Spark's. A stream that wrote the
rows itself can name their files.
"""

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lake.delta_api import delta_log, none, sequence
from lake.tables import Table

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
# Delta cuts off what is below a millisecond.
ROUNDING = 1_000


class KnownFiles:
    """By the least and the greatest time that each has in a column, in microseconds. The table has no other writer;
    files that were rewritten into others stay readable for as long as Delta keeps them."""

    def __init__(self, spark: SparkSession, table: Table, lake_root: str, column: str) -> None:
        self._spark, self._column = spark, column
        self._log = delta_log(spark, table, lake_root)
        self._files: list[tuple[int | None, int | None, Any]] = []

    def look_up(self, since: date | None) -> None:
        """Takes what the table has now, of that day on."""
        files = self._log.update(False, none(self._spark), none(self._spark)).allFiles()
        if since is not None:
            files = files.filter(f"partitionValues['date'] >= '{since}'")
        self._files = []
        self.add(list(files.collect()))

    def add(self, files: list[Any]) -> None:
        self._files += [(*self._times(file.stats()), file) for file in files]

    def forget(self, before: int) -> None:
        """What is not of this time or later."""
        self._files = [each for each in self._files if each[1] is None or each[1] >= before]

    def rows(self, first: int | None, up_to: int) -> DataFrame:
        """Of the files that have any from `first` to `up_to`, which is not among them; others of these files too."""
        chosen = [
            file
            for least, greatest, file in self._files
            if (first is None or greatest is None or greatest >= first) and (least is None or least < up_to)
        ]
        snapshot, files = self._log.unsafeVolatileSnapshot(), sequence(self._spark, chosen)
        return DataFrame(self._log.createDataFrame(snapshot, files, False, none(self._spark)), self._spark)

    def _times(self, stats: str | None) -> tuple[int | None, int | None]:
        told = json.loads(stats or "{}")
        least, greatest = (told.get(name, {}).get(self._column) for name in ("minValues", "maxValues"))
        return (
            None if least is None else _micros(least),
            None if greatest is None else _micros(greatest) + ROUNDING,
        )


def _micros(at: str) -> int:
    return (datetime.fromisoformat(at) - EPOCH) // MICRO

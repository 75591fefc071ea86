import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.work import WorkMeter

pytestmark = pytest.mark.slow

JOBS = 5


class LongBatch:
    """A batch that does a few jobs, one after the other, and then does nothing until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.jobs = 0

    def __call__(self, batch: DataFrame, number: int) -> None:
        for _ in range(JOBS):
            batch.count()
            self.jobs += 1
            time.sleep(0.5)
        self.may_end.wait(60)


@pytest.fixture
def batch() -> Iterator[LongBatch]:
    made = LongBatch()
    yield made
    made.may_end.set()


def test_a_batch_gets_on_while_its_tasks_end_and_not_when_it_is_stuck(
    spark: SparkSession, tmp_path: Path, batch: LongBatch
) -> None:
    query: StreamingQuery = (
        spark.readStream.format("rate")
        .load()
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        meter = WorkMeter(spark.sparkContext)
        while working := batch.jobs < JOBS:
            time.sleep(0.2)
            if meter.got_on(query):
                break
        assert working, "no job was seen as work"
        while batch.jobs < JOBS:
            time.sleep(0.1)
        time.sleep(1)
        meter.got_on(query)
        assert not any(meter.got_on(query) for _ in range(5))
    finally:
        batch.may_end.set()
        query.stop()

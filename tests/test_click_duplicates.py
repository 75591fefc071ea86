"""Which records repeat a click."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from streaming.click_duplicates import Suspects, repeats, suspect_hashes

START = datetime(2026, 3, 1, 23, 55, tzinfo=UTC)
HORIZON = timedelta(minutes=10)
Records = list[tuple[str, float, int, int]]
"""eventID, minutes since the start, partition, sequence number."""
COLUMNS = "eventID STRING, processing_time TIMESTAMP, partition INT, sequence_number BIGINT"

CASES: dict[str, tuple[Records, Records, set[tuple[int, int, int, int]]]] = {
    "all different": ([("a", 0, 0, 1), ("b", 0, 0, 2)], [("c", 0, 0, 0)], set()),
    "twice in a batch": ([("a", 1, 0, 2), ("a", 0, 0, 1)], [], {(0, 2, 0, 1)}),
    "of one moment, the first place is kept": ([("a", 0, 1, 5), ("a", 0, 0, 9)], [], {(1, 5, 0, 9)}),
    "kept in an earlier batch": ([("a", 5, 0, 2)], [("a", 0, 0, 1)], {(0, 2, 0, 1)}),
    "kept before, but later in time": ([("a", 0, 1, 2)], [("a", 5, 0, 1)], {(1, 2, 0, 1)}),
    "exactly the horizon away": ([("a", 10, 0, 2)], [("a", 0, 0, 1)], {(0, 2, 0, 1)}),
    "beyond the horizon": ([("a", 10.001, 0, 2)], [("a", 0, 0, 1)], set()),
    "beyond the horizon of what was kept, not of its repeat": (
        [("a", 9, 0, 2), ("a", 11, 0, 3), ("a", 12, 0, 4)],
        [("a", 0, 0, 1)],
        {(0, 2, 0, 1), (0, 4, 0, 3)},
    ),
    "itself": ([("a", 0, 0, 1), ("a", 1, 0, 2)], [("a", 0, 0, 1)], {(0, 1, 0, 1), (0, 2, 0, 1)}),
    "itself beside another that was kept": (
        [("a", 11, 0, 3)],
        [("a", 0, 0, 1), ("a", 11, 0, 3)],
        {(0, 3, 0, 3)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_repeats(spark: SparkSession, case: str) -> None:
    new, kept, expected = CASES[case]
    new_frame, kept_frame = (
        spark.createDataFrame([(i, START + timedelta(minutes=m), p, s) for i, m, p, s in records], COLUMNS)
        for records in (new, kept)
    )
    for count in (10, 10_000_000):  # few hashes are sent to every executor, many are shuffled
        suspects = Suspects(suspect_hashes(new_frame, kept_frame), count)
        found = repeats(new_frame, kept_frame, suspects, HORIZON).collect()
        assert {(r.partition, r.sequence_number, r.kept_partition, r.kept_sequence_number) for r in found} == expected
        assert len(found) == len(expected)
        times = {(p, s): START + timedelta(minutes=m) for _, m, p, s in new}
        for row in found:
            assert row.processing_time.astimezone(UTC) == times[row.partition, row.sequence_number]
            assert row.date == times[row.partition, row.sequence_number].date()


def test_an_id_that_everybody_uses_takes_no_longer_than_others(spark: SparkSession) -> None:
    new = spark.range(100_000).selectExpr(
        "'unknown' AS eventID",
        "timestamp_millis(1772366400000 + id) AS processing_time",
        "0 AS partition",
        "id AS sequence_number",
    )
    before = time.monotonic()
    suspects = Suspects(suspect_hashes(new, new.limit(0)), 1)
    assert repeats(new, new.limit(0), suspects, HORIZON).count() == 99_999
    assert time.monotonic() - before < 60, "quadratic, it would take hours"

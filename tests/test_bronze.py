from datetime import UTC, date, datetime

from pyspark.sql import Row, SparkSession

from lake.tables import BRONZE_COLUMNS
from streaming.bronze import bronze_rows

KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
LATE_EVENING = datetime(2026, 3, 1, 23, 59, 59, 999000, tzinfo=UTC)


def test_every_byte_and_its_provenance_are_kept(spark: SparkSession) -> None:
    odd = bytearray(b"\xff\x00{")
    records = spark.createDataFrame(
        [
            (bytearray(b"k"), odd, "clicks", 3, 42, LATE_EVENING, 1, [Row(key="h", value=odd)]),
            (None, None, "clicks", 0, 43, LATE_EVENING, 1, None),
            (bytearray(b""), bytearray(b""), "clicks", 1, 44, LATE_EVENING, 1, [Row(key="n", value=None)]),
        ],
        KAFKA,
    )
    rows = bronze_rows(records).orderBy("sequence_number").collect()
    assert [(r.body, r.key, r.hub, r.partition, r.sequence_number) for r in rows] == [
        (odd, b"k", "clicks", 3, 42),
        (None, None, "clicks", 0, 43),
        (b"", b"", "clicks", 1, 44),
    ]
    assert rows[0].headers == [Row(key="h", value=odd)]
    assert rows[1].headers is None
    assert {r.date for r in rows} == {date(2026, 3, 1)}
    assert all(r.enqueued_time.astimezone(UTC) == LATE_EVENING for r in rows)


def test_the_columns_are_those_of_the_table(spark: SparkSession) -> None:
    rows = bronze_rows(spark.createDataFrame([], KAFKA))
    table = spark.createDataFrame([], ", ".join(f"{c.name} {c.type}" for c in BRONZE_COLUMNS))
    assert [(f.name, f.dataType) for f in rows.schema] == [(f.name, f.dataType) for f in table.schema]

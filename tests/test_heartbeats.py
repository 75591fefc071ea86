"""Every record of the hub is a heartbeat, a pulse or malformed, and both readings of it agree."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from hub.pulses import pulse
from streaming.heartbeats import LONGEST_NAME, beats, malformed
from streaming.machine_queries import to_buckets
from streaming.machine_state import bucket_keys

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KAFKA = "value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
PULSE = pulse("run-1", NOW)


def body(name: object, **more: object) -> bytes:
    return json.dumps({"machine_name": name, "sent_at": "2026-03-01T12:00:00.000Z", **more}).encode()


CASES: list[tuple[bytes | None, str | None, str | None]] = [
    (body("press-1"), "press-1", None),
    (body("Presse Köln"), "Presse Köln", None),
    (json.dumps({"machine_name": "Köln", "sent_at": "x"}, ensure_ascii=False).encode(), "Köln", None),
    (b'{"machine_name":"a","sent_at":"b"}', "a", None),
    (b'{ "sent_at": null, "machine_name": "a" }', "a", None),
    (b'{"machine_name": "a"}', "a", None),
    (body('quo"ted\\'), 'quo"ted\\', None),
    (body("a", zone={"hall": 3}), "a", None),
    (json.dumps({"machine_name": "skewed", "sent_at": "1970-01-01"}).encode(), "skewed", None),
    (json.dumps({"machine_name": "odd", "sent_at": [1]}).encode(), "odd", None),
    (body("x" * LONGEST_NAME), "x" * LONGEST_NAME, None),
    (body("x" * (LONGEST_NAME + 1)), None, "name_too_long"),
    (body(" "), None, "missing_machine"),
    (body(""), None, "missing_machine"),
    (body(None), None, "missing_machine"),
    (b"{}", None, "missing_machine"),
    (body(7), None, "wrong_type"),
    (body({"a": 1}), None, "wrong_type"),
    (b"[1, 2]", None, "not_an_object"),
    (b'"a"', None, "not_an_object"),
    (b"this is no JSON", None, "malformed_json"),
    (body("a") + body("b"), None, "malformed_json"),
    (body("a")[:-1], None, "malformed_json"),
    (b'{"machine_name": "\xff", "sent_at": "b"}', None, "invalid_utf8"),
    (b"", None, "empty_body"),
    (None, None, "empty_body"),
    (PULSE, None, None),
    (PULSE[:-1] + b', "machine_name": "a"}', "a", None),
    (b'{"pulse": 1}', None, "missing_machine"),
]


def read(spark: SparkSession, bodies: list[bytes | None]) -> tuple[dict[int, str], dict[int, str]]:
    """By their places: the names of heartbeats, and the reasons of malformed records."""
    rows = [(None if each is None else bytearray(each), 3, number, NOW) for number, each in enumerate(bodies)]
    records = spark.createDataFrame(rows, KAFKA).coalesce(1)
    names = {row["sequence_number"]: row["machine"] for row in beats(records).collect() if row["machine"] is not None}
    bad = malformed(records).collect()
    assert all(row["sentence"] and row["processing_time"].astimezone(UTC) == NOW for row in bad)
    assert [row["body"] for row in bad] == [rows[row["sequence_number"]][0] for row in bad]
    return names, {row["sequence_number"]: row["reason"] for row in bad}


def test_what_each_record_is(spark: SparkSession) -> None:
    names, reasons = read(spark, [case[0] for case in CASES])
    found = [(case[0], names.get(number), reasons.get(number)) for number, case in enumerate(CASES)]
    assert found == CASES


HOSTILE = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=40).map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["machine_name", "a"]), inner),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
    st.text(max_size=300).map(body),
    st.tuples(st.sampled_from([body("a"), PULSE]), st.binary(max_size=3)).map(b"".join),
)


@pytest.mark.slow
def test_of_hostile_bodies_each_is_one_of_the_three(spark: SparkSession) -> None:
    bodies: list[bytes | None] = []

    @given(HOSTILE)
    def collect(one: bytes) -> None:
        bodies.append(one)

    for _ in range(20):
        collect()
    names, reasons = read(spark, bodies)
    assert len(bodies) >= 2000
    for number, one in enumerate(bodies):
        kinds = (number in names) + (number in reasons) + (one == PULSE)
        assert kinds == 1, (one, names.get(number), reasons.get(number))


@pytest.mark.parametrize("buckets", [1, 2, 7])
def test_every_bucket_has_a_task_of_its_own(spark: SparkSession, buckets: int) -> None:
    keys = bucket_keys(spark, buckets)
    rows = spark.createDataFrame([(key,) for key in keys], "bucket INT").repartition(buckets, "bucket")
    assert sorted(len(part) for part in rows.rdd.glom().collect()) == [1] * buckets


@pytest.mark.parametrize(("pulses", "times"), [(True, [0, 16, 32]), (False, list(range(40)))])
def test_every_bucket_is_told_the_time_of_a_partition(spark: SparkSession, pulses: bool, times: list[int]) -> None:
    """Without pulses by every heartbeat: nothing else shows a bucket that its own machines are silent."""
    columns = "machine STRING, partition INT, at LONG, sequence_number LONG"
    read = spark.createDataFrame([("a", 3, number, number) for number in range(40)], columns)
    rows = to_buckets(read, [5, 7], pulses=pulses).collect()
    clocks = sorted((row["bucket"], row["partition"], row["at"]) for row in rows if row["machine"] is None)
    assert clocks == [(key, 3, at) for key in (5, 7) for at in times]
    assert sorted(row["at"] for row in rows if row["machine"] == "a") == list(range(40)), "to its own bucket once"

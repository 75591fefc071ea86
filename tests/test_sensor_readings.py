"""Every record of the hub is a reading, a pulse or malformed; and which readings are anomalous."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql import Row, SparkSession

from hub.pulses import pulse
from settings import SensorSettings, SettingsError
from streaming.sensor_readings import LONGEST_DEVICE, anomalous_readings, readings
from streaming.sensor_rules import judge

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KAFKA = "value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP"
PULSE = pulse("run-1", NOW)
NOON = "2026-03-01T12:00:00.000Z"


def body(device: object = "pump", frequency: object = 50.5, at: object = NOON, **more: object) -> bytes:
    return json.dumps({"device_id": device, "sensor_freq": frequency, "event_time": at, **more}).encode()


def read(spark: SparkSession, bodies: list[bytes | None], **settings: Any) -> list[Row]:
    """As samples read them. What alerts read has to be the same of anomalous ones."""
    rows = [(None if each is None else bytearray(each), 3, number, NOW) for number, each in enumerate(bodies)]
    records, chosen = spark.createDataFrame(rows, KAFKA).coalesce(1), SensorSettings(**settings)
    found = readings(records, chosen).orderBy("sequence_number").collect()
    told = anomalous_readings(records, chosen).orderBy("sequence_number").collect()
    of_alerts = [row for row in found if row["anomaly"] is not None or row["pulse"]]
    assert [row["sequence_number"] for row in told] == [row["sequence_number"] for row in of_alerts]
    for one, other in zip(told, of_alerts, strict=True):
        assert one["pulse"] or one.asDict() == {name: other[name] for name in one.asDict()}
    return found


GOOD: list[tuple[bytes, str, float, datetime]] = [
    (body(), "pump", 50.5, NOW),
    (body(frequency=-3), "pump", -3.0, NOW),
    (body(frequency=0), "pump", 0.0, NOW),
    (body(frequency=1e-7), "pump", 1e-7, NOW),
    (body(frequency=123456789012345678), "pump", 123456789012345678.0, NOW),
    (body(at="2026-03-01T13:00:00+01:00"), "pump", 50.5, NOW),
    (body(at="2026-03-01 12:00:00"), "pump", 50.5, NOW),
    (body(at="2026-03-01T11:59:59.123456Z"), "pump", 50.5, NOW - timedelta(microseconds=876544)),
    (body(at="1970-01-01T00:00:00Z"), "pump", 50.5, datetime(1970, 1, 1, tzinfo=UTC)),
    (body(at="2026-03-01T12:01:00Z"), "pump", 50.5, NOW + timedelta(minutes=1)),
    (body(device="Pumpe Köln"), "Pumpe Köln", 50.5, NOW),
    (body(device='quo"ted\\'), 'quo"ted\\', 50.5, NOW),
    (body(device="x" * LONGEST_DEVICE), "x" * LONGEST_DEVICE, 50.5, NOW),
    (body(unit="Hz"), "pump", 50.5, NOW),
    (b'{"event_time":"2026-03-01T12:00:00Z","sensor_freq":7.25,"device_id":"pump"}', "pump", 7.25, NOW),
    (b'{"device_id":"pump","sensor_freq":-7.25,"event_time":"2026-03-01T12:00:00Z"}', "pump", -7.25, NOW),
]
BAD: list[tuple[bytes | None, str]] = [
    (body(device=None), "missing_device"),
    (body(device=" "), "missing_device"),
    (b'{"sensor_freq": 1, "event_time": "2026-03-01T12:00:00Z"}', "missing_device"),
    (body(device=7), "wrong_type"),
    (body(device="x" * (LONGEST_DEVICE + 1)), "device_too_long"),
    (body(frequency=None), "missing_frequency"),
    (body(frequency="high"), "wrong_type"),
    (body(frequency="50.5"), "wrong_type"),
    (body(frequency=[1]), "wrong_type"),
    (b'{"device_id": "pump", "sensor_freq": 1e400, "event_time": "2026-03-01T12:00:00Z"}', "frequency_not_finite"),
    (body(at=None), "missing_time"),
    (body(at=1772366400), "wrong_type"),
    (body(at="yesterday"), "impossible_time"),
    (body(at="2026"), "impossible_time"),
    (body(at="T12:00:00"), "impossible_time"),
    (body(at="2026-02-30T12:00:00Z"), "impossible_time"),
    (body(at="2026-03-01T25:00:00Z"), "impossible_time"),
    (body(at="1969-12-31T23:59:59Z"), "impossible_time"),
    (body(at="0000-01-01T00:00:00Z"), "impossible_time"),
    (body(at="2026-03-01T12:01:00.001Z"), "time_ahead"),
    (body(at="9999-12-31T23:59:59Z"), "time_ahead"),
    (b"[1, 2]", "not_an_object"),
    (b"this is no JSON", "malformed_json"),
    (body() + body(), "malformed_json"),
    (body()[:-1], "malformed_json"),
    (b'{"device_id": "pump", "sensor_freq": NaN, "event_time": "2026-03-01T12:00:00Z"}', "malformed_json"),
    (b"\xff" + body(), "invalid_utf8"),
    (b"", "empty_body"),
    (None, "empty_body"),
]


def test_what_readings_say(spark: SparkSession) -> None:
    found = read(spark, [case[0] for case in GOOD])
    told = [(row["device_id"], row["sensor_freq"], row["event_time"].astimezone(UTC)) for row in found]
    assert told == [case[1:] for case in GOOD]
    assert all(row["reason"] is None and row["body"] is None and not row["pulse"] for row in found)


def test_why_others_are_none(spark: SparkSession) -> None:
    found = read(spark, [case[0] for case in BAD])
    assert [(row["reason"], row["body"]) for row in found] == [(reason, body) for body, reason in BAD]
    assert all(row["sentence"] and row["event_time"] is None and row["anomaly"] is None for row in found)


def test_a_pulse_is_neither(spark: SparkSession) -> None:
    (row,) = read(spark, [PULSE])
    assert row["pulse"] and row["reason"] is None and row["event_time"] is None


HOSTILE = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["device_id", "a"]), inner),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
    st.builds(body, st.text(max_size=5), st.floats() | st.integers(), st.datetimes().map(datetime.isoformat)),
    st.builds(body, st.text(max_size=5), st.floats(), st.text(alphabet="0123456789-:TZ+. ", max_size=26)),
    st.tuples(st.sampled_from([body(), PULSE]), st.binary(max_size=3)).map(b"".join),
)


@pytest.mark.slow
def test_of_hostile_bodies_each_is_one_of_the_three(spark: SparkSession) -> None:
    bodies: list[bytes | None] = []

    @given(HOSTILE)
    def collect(one: bytes) -> None:
        bodies.append(one)

    for _ in range(20):
        collect()
    found = read(spark, bodies)
    assert len(found) == len(bodies) >= 2000
    for row, one in zip(found, bodies, strict=True):
        assert (row["event_time"] is not None) + (row["reason"] is not None) + (one == PULSE) == 1, (one, row)


def anomalies(spark: SparkSession, readings: list[tuple[str, float]], **settings: Any) -> list[str | None]:
    found = [row["anomaly"] for row in read(spark, [body(*reading) for reading in readings], **settings)]
    anomalous = judge(SensorSettings(**settings))
    assert [anomaly is not None for anomaly in found] == [anomalous(*reading) for reading in readings]
    return found


def test_a_range_tells_what_is_anomalous(spark: SparkSession) -> None:
    told = [("a", -0.001), ("a", 0.0), ("a", -0.0), ("a", 99.0), ("a", 99.001)]
    assert anomalies(spark, told) == ["below_range", None, None, None, None]
    assert anomalies(spark, told, highest=99.0) == ["below_range", None, None, None, "above_range"]
    assert anomalies(spark, told, lowest=None) == [None] * 5


def test_a_device_may_have_a_normal_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    named = {"it's": {"mean": 50, "deviation": 2}, "b": {"mean": 10, "deviation": 1, "limit": 0.5}}
    file.write_text(json.dumps({"limit": 3, "devices": named}))
    told = [("it's", 56.0), ("it's", 56.01), ("it's", 43.9), ("b", 10.5), ("b", 10.6), ("c", 1e9), ("b", -1.0)]
    assert anomalies(spark, told, rules=file) == [None, "z_score", "z_score", None, "z_score", None, "below_range"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "Invalid JSON"),
        ('{"devices": {"a": {"mean": 1}}}', "devices.a.deviation: Field required"),
        ('{"devices": {"a": {"mean": 1, "deviation": 0}}}', "devices.a.deviation"),
        ('{"devices": {"a": {"mean": "NaN", "deviation": 1}}}', "devices.a.mean"),
        ('{"device": {}}', "device: Extra inputs"),
        (json.dumps({"devices": {str(n): {"mean": 1, "deviation": 1} for n in range(1001)}}), "at most 1000"),
    ],
)
def test_rules_that_are_none_are_refused(spark: SparkSession, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "rules.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="TIDEWATCH_SENSORS_RULES") as refused:
        read(spark, [], rules=file)
    assert says in str(refused.value)


def test_rules_that_are_not_there_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read(spark, [], rules=tmp_path / "none.json")


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match="multiple of TIDEWATCH_SENSORS_SLIDE_SECONDS"):
        SensorSettings(window_seconds=60, slide_seconds=45)
    with pytest.raises(ValidationError, match="TIDEWATCH_SENSORS_LOWEST"):
        SensorSettings(lowest=2, highest=1)


def test_an_alert_has_the_id_of_its_reading(spark: SparkSession) -> None:
    bodies = [
        body(frequency=-1),
        body(frequency=-1, unit="Hz"),
        body(frequency=-2),
        body("b", -1),
        body(at="2026-03-01T11:00:00Z", frequency=-1),
        body(),
    ]
    ids = [row["alert_id"] for row in read(spark, list(bodies))]
    assert ids[0] == ids[1] and len(set(ids[:5])) == 4 and ids[5] is None

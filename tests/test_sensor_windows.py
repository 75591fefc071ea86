"""What is sampled of a window, against the same told plainly; and which readings are late."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lake.sensor_audit import Reading, Sample, WindowRules, samples_of
from streaming.sensor_windows import MICROS, Windows

COLUMNS = (
    "device_id STRING, sensor_freq DOUBLE, event_time TIMESTAMP, anomaly STRING, alert_id STRING, "
    "processing_time TIMESTAMP, partition INT, sequence_number BIGINT"
)
START = 1_772_366_400 * MICROS
"""Noon of the first of March 2026."""


def frame(spark: SparkSession, readings: list[Reading]) -> DataFrame:
    rows = [
        (
            reading.device_id,
            reading.sensor_freq,
            _at(reading.event_time),
            "below_range" if reading.anomalous else None,
            "id" if reading.anomalous else None,
            _at(reading.enqueued),
            *reading.place,
        )
        for reading in readings
    ]
    return spark.createDataFrame(rows, COLUMNS).coalesce(1)


def _at(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def sampled(
    spark: SparkSession, readings: list[Reading], windows: Windows, after: int | None, up_to: int
) -> list[Sample]:
    rows = windows.as_samples(windows.sampled(frame(spark, readings), after, up_to)).collect()
    return [
        (
            round(row["window_end"].timestamp() * MICROS),
            row["of_device"],
            (row["partition"], row["sequence_number"]),
            tuple(row["roles"]),
        )
        for row in rows
    ]


def reading(seconds: float, place: int, frequency: float = 50.0, device: str = "a", late: float = 0.0) -> Reading:
    event = START + round(seconds * MICROS)
    return Reading(event, device, frequency, (0, place), event + round(late * MICROS), frequency < 0)


PLAIN = Windows(60 * MICROS, 30 * MICROS, 30 * MICROS)


def roles(spark: SparkSession, readings: list[Reading], end: float) -> dict[int, tuple[str, ...]]:
    """By sequence number, of the window that ends so many seconds after the start."""
    wanted = START + round(end * MICROS)
    found = sampled(spark, readings, PLAIN, wanted - PLAIN.slide, wanted)
    assert len({place for _, _, place, _ in found}) == len(found)
    return {place[1]: roles for _, _, place, roles in found}


def test_first_middle_last_and_every_anomaly(spark: SparkSession) -> None:
    times = [5, 1, 3, 2, 4, 30, 59.999999, 60]
    readings = [reading(at, place, -1.0 if place in (0, 2) else 50.0) for place, at in enumerate(times)]
    assert roles(spark, readings, 60) == {1: ("first",), 4: ("middle",), 6: ("last",), 0: ("anomaly",), 2: ("anomaly",)}


def test_a_single_reading_is_all_of_them(spark: SparkSession) -> None:
    assert roles(spark, [reading(1, 7, -1.0)], 60) == {7: ("first", "middle", "last", "anomaly")}
    assert roles(spark, [reading(1, 7), reading(2, 8)], 60) == {7: ("first", "middle"), 8: ("last",)}


def test_what_is_sent_twice_counts_once(spark: SparkSession) -> None:
    readings = [reading(1, 5), reading(2, 2), reading(2, 3, late=9), reading(2, 4, late=1), reading(3, 6)]
    assert roles(spark, readings, 60) == {5: ("first",), 2: ("middle",), 6: ("last",)}


def test_of_one_moment_the_device_and_then_the_frequency_come_first(spark: SparkSession) -> None:
    same = [reading(1, 1, 3.0, "b"), reading(1, 2, 2.0, "b"), reading(1, 3, 9.0, "a")]
    assert roles(spark, same, 60) == {3: ("first",), 2: ("middle",), 1: ("last",)}


def test_a_reading_is_in_a_window_unless_it_comes_later_than_the_lateness(spark: SparkSession) -> None:
    in_time, too_late = reading(59, 1, late=30.999999), reading(58, 2, late=32)
    assert roles(spark, [in_time, too_late], 60) == {1: ("first", "middle", "last")}
    assert roles(spark, [in_time, too_late], 90) == {2: ("first", "middle"), 1: ("last",)}


@pytest.mark.parametrize(
    ("late", "closed", "missed"),
    [
        (0, None, 0),
        (59.9, None, 0),
        (60, None, 1),
        (89, None, 1),
        (90, None, 2),
        (1e6, None, 2),
        (0, 59, 0),
        (0, 60, 1),
        (0, 90, 2),
    ],
)
def test_how_many_windows_a_reading_misses(spark: SparkSession, late: float, closed: int | None, missed: int) -> None:
    """Taken in the middle of its first window, which ends 30 s later."""
    one = frame(spark, [reading(30, 1, late=late)])
    closed_up_to = None if closed is None else START + closed * MICROS
    assert one.selectExpr(f"{PLAIN.missed(closed_up_to)} AS missed").first() == (missed,)


READINGS = st.lists(
    st.builds(
        lambda seconds, late, frequency, device: (seconds, late, frequency, device),
        st.integers(0, 200) | st.floats(0, 200),
        st.integers(-5, 150) | st.floats(-5, 150),
        st.sampled_from([-1.0, 1.0, 2.0]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    READINGS, st.sampled_from([(60, 30, 30), (60, 60, 0), (90, 30, 10), (5, 1, 3)]), st.booleans(), st.integers(0, 300)
)
def test_as_told_plainly(
    spark: SparkSession,
    drawn: list[tuple[float, float, float, str]],
    seconds: tuple[int, int, int],
    per_device: bool,
    cut: int,
) -> None:
    """Closed at once or in two parts, the same samples; and counts of windows that fit them."""
    readings = [
        reading(at, place, frequency, device, late) for place, (at, late, frequency, device) in enumerate(drawn)
    ]
    length, slide, lateness = (each * MICROS for each in seconds)
    windows = Windows(length, slide, lateness, per_device)
    end = START + 1000 * MICROS
    middle = START + cut * MICROS - cut * MICROS % slide
    right = samples_of(readings, WindowRules(length, slide, lateness, per_device))
    whole = sampled(spark, readings, windows, None, end)
    parts = sampled(spark, readings, windows, None, middle) + sampled(spark, readings, windows, middle, end)
    assert Counter(whole) == Counter(parts) == Counter(right)
    counts = windows.as_windows(windows.sampled(frame(spark, readings), None, end), end).collect()
    inside: Counter[int] = Counter()
    for one in readings:
        inside.update(WindowRules(length, slide, lateness).ends(one))
    told = {round(row["window_end"].timestamp() * MICROS): row["readings"] + row["repeats"] for row in counts}
    assert told == {**inside, end: 0}


def test_the_clock_closes_windows_after_their_lateness() -> None:
    assert PLAIN.last_closed(START + 90 * MICROS) == START + 60 * MICROS
    assert PLAIN.last_closed(START + 90 * MICROS - 1) == START + 30 * MICROS
    assert PLAIN.first_moment(START + 60 * MICROS) == START + 30 * MICROS

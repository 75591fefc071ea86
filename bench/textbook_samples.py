"""Samples of sliding windows as the guides show them: the readings of each window collected in a list, in a stateful
function or in a native aggregation."""

import marshal
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

SCHEMA = "device_id STRING, sensor_freq DOUBLE, event_time TIMESTAMP"
ORDERED = ("at", "device_id", "sensor_freq", "partition", "sequence_number")
STATE = "readings BINARY"  # PySpark 4.2 fails on arrays here
OUTPUT = "window_end TIMESTAMP, roles ARRAY<STRING>, partition INT, sequence_number BIGINT"
PICKED = """transform(
    array_distinct(concat(
        array(0, (size(readings) - 1) DIV 2, size(readings) - 1),
        filter(sequence(0, size(readings) - 1), place -> readings[place].sensor_freq < 0))),
    place -> named_struct('place', place, 'last', size(readings) - 1, 'reading', readings[place]))"""
ROLES = """filter(array(
    CASE WHEN place = 0 THEN 'first' END,
    CASE WHEN place = last DIV 2 THEN 'middle' END,
    CASE WHEN place = last THEN 'last' END,
    CASE WHEN reading.sensor_freq < 0 THEN 'anomaly' END), role -> role IS NOT NULL)"""


def in_a_stateful_function(records: DataFrame, length: str, slide: str, lateness: str) -> DataFrame:
    return (
        _windows(records, length, slide, lateness)
        .groupBy("window")
        .applyInPandasWithState(_collect, OUTPUT, STATE, "append", GroupStateTimeout.EventTimeTimeout)
    )


def in_an_aggregation(records: DataFrame, length: str, slide: str, lateness: str) -> DataFrame:
    collected = F.sort_array(F.collect_list(F.struct(*ORDERED))).alias("readings")
    return (
        _windows(records, length, slide, lateness)
        .groupBy("window")
        .agg(collected)
        .selectExpr("window.end AS window_end", f"inline({PICKED})")
        .selectExpr("window_end", f"{ROLES} AS roles", "reading.partition", "reading.sequence_number")
    )


def _windows(records: DataFrame, length: str, slide: str, lateness: str) -> DataFrame:
    return (
        records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("reading"), "partition", "offset")
        .select(
            "reading.*", "partition", F.col("offset").alias("sequence_number"), F.col("reading.event_time").alias("at")
        )
        .where("event_time IS NOT NULL")
        .withWatermark("event_time", lateness)
        .withColumn("window", F.window("event_time", length, slide))
        .drop("event_time")  # Spark takes one column with a watermark
    )


def _collect(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    (window,) = key
    if state.hasTimedOut:
        (readings,) = state.get
        state.remove()
        yield _sampled(window["end"], sorted(marshal.loads(readings)))
        return
    readings = marshal.loads(state.get[0]) if state.exists else []
    for frame in frames:
        micros = frame["at"].astype("datetime64[us]").astype("int64")
        columns = [micros, *(frame[name] for name in ORDERED[1:])]
        readings.extend(zip(*(column.tolist() for column in columns), strict=True))
    state.update((marshal.dumps(readings),))
    state.setTimeoutTimestamp(int(pd.Timestamp(window["end"]).timestamp() * 1000))


def _sampled(end: Any, readings: list[tuple[Any, ...]]) -> pd.DataFrame:
    places = {"first": 0, "middle": (len(readings) - 1) // 2, "last": len(readings) - 1}
    rows = []
    for place, reading in enumerate(readings):
        roles = [role for role, at in places.items() if at == place] + (["anomaly"] if reading[2] < 0 else [])
        if roles:
            rows.append((end, roles, reading[3], reading[4]))
    return pd.DataFrame(rows, columns=["window_end", "roles", "partition", "sequence_number"])

"""What the audit of silver finds, on tables that are wrong in one way each."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.click_audit import SentClick, audit_clicks, click_places
from lake.commit import append_once, create_if_missing
from lake.silver import CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLICKS = clicks_table({})
SENT = [
    SentClick(1, (0, 0), "a", NOW),
    SentClick(2, (0, 1), "a", NOW + timedelta(minutes=1)),
    SentClick(3, (0, 2), None, NOW),
    SentClick(4, (1, 0), "b", NOW),
    SentClick(5, (1, 1), "b", NOW + timedelta(hours=1)),
]
Places = list[tuple[int, int]]
WHOLE: dict[str, Places] = {"clicks": [(0, 0), (1, 0), (1, 1)], "duplicates": [(0, 1)], "quarantine": [(0, 2)]}
PATH: Places = [(0, 0), (1, 0), (1, 1)]


def in_bronze() -> set[tuple[int, int]]:
    return {one.place for one in SENT}


TIMES = {one.place: one.enqueued for one in SENT}
EVENTS = {one.place: one.event_id for one in SENT}


def fill(
    spark: SparkSession,
    lake: Path,
    table: Table,
    places: Places,
    changed: dict[tuple[int, int], str],
    batch: int = 0,
) -> None:
    """One related product a click; every repeat is of the event's first record."""
    create_if_missing(spark, table, str(lake))
    events = {**EVENTS, **changed}
    rows = spark.createDataFrame(
        [(*place, events.get(place), TIMES.get(place)) for place in places],
        "partition INT, sequence_number BIGINT, eventID STRING, processing_time TIMESTAMP",
    )
    if table is CLICKS:
        rows = rows.selectExpr("*", "1 AS related_products")
    elif table is CLICK_DUPLICATES:
        rows = rows.selectExpr("*", "IF(eventID = 'b', 1, 0) AS kept_partition", "0L AS kept_sequence_number")
    elif table is CLICK_QUARANTINE:
        rows = rows.drop("eventID")
    append_once(rows.coalesce(1), table, str(lake), "w", batch)


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({}, PATH, {}),
        ({"clicks": [(1, 0), (1, 1)]}, PATH[1:], {"lost": 2}),  # the record, and what its repeat was kept for
        ({"duplicates": []}, PATH, {"lost": 1}),
        ({"quarantine": []}, PATH, {"lost": 1}),
        ({"clicks": [*WHOLE["clicks"], (0, 0)]}, PATH, {"duplicated": 1}),
        ({"quarantine": [(0, 2), (0, 2)]}, PATH, {"duplicated": 1}),
        # A second click of the event, where its repeat should be
        ({"clicks": [*WHOLE["clicks"], (0, 1)], "duplicates": []}, [*PATH, (0, 1)], {"duplicated": 1}),
        # All of an event's records taken for repeats
        ({"clicks": [(1, 0), (1, 1)], "duplicates": [(0, 0), (0, 1)]}, PATH[1:], {"lost": 2}),
        # A record taken for the repeat of one that is no click
        ({"clicks": [(0, 0), (1, 1)], "duplicates": [(0, 1), (1, 0)]}, [(0, 0), (1, 1)], {"lost": 1}),
        # A record taken for a repeat although it came an hour later
        ({"clicks": [(0, 0), (1, 0)], "duplicates": [(0, 1), (1, 1)]}, PATH[:2], {"lost": 1}),
        ({"clicks": [*WHOLE["clicks"], (0, 2)], "quarantine": []}, [*PATH, (0, 2)], {"unexplained": 1}),
        ({"quarantine": [(0, 2), (1, 1)], "clicks": [(0, 0), (1, 0)]}, PATH[:2], {"unexplained": 1}),
        ({"quarantine": [(0, 2), (7, 7)]}, PATH, {"unexplained": 1}),
        ({}, PATH[:2], {"changed": 1}),
        ({}, [*PATH, (0, 0)], {"changed": 1}),
        ({}, [*PATH, (9, 9)], {"changed": 1}),
    ],
)
def test_the_audit_finds(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Places], path: Places, expected: dict[str, int]
) -> None:
    places = {**WHOLE, **changes}
    for table, name in ((CLICKS, "clicks"), (CLICK_DUPLICATES, "duplicates"), (CLICK_QUARANTINE, "quarantine")):
        fill(spark, tmp_path, table, places[name], {})
    fill(spark, tmp_path, CLICKPATH, path, {})
    audit = audit_clicks(str(tmp_path), SENT, in_bronze, timedelta(minutes=10))
    figures = {name: value for name, value in asdict(audit).items() if isinstance(value, int) and value}
    assert figures == {"acknowledged": 5, **expected}
    assert audit.clean == (not expected)
    assert click_places(str(tmp_path)) == {place for each in places.values() for place in each}


def test_a_click_under_another_id_is_changed(spark: SparkSession, tmp_path: Path) -> None:
    for table, name in ((CLICKS, "clicks"), (CLICK_DUPLICATES, "duplicates"), (CLICK_QUARANTINE, "quarantine")):
        fill(spark, tmp_path, table, WHOLE[name], {(1, 0): "x"})
    fill(spark, tmp_path, CLICKPATH, PATH, {})
    audit = audit_clicks(str(tmp_path), SENT, in_bronze, timedelta(minutes=10))
    assert (audit.changed, audit.lost, audit.duplicated, audit.unexplained) == (1, 0, 0, 0)


def test_without_tables_everything_is_lost(tmp_path: Path) -> None:
    audit = audit_clicks(str(tmp_path), SENT, in_bronze, timedelta(minutes=10))
    assert audit.lost == len(SENT)


def test_what_a_stream_writes_meanwhile_is_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    for table, name in ((CLICKS, "clicks"), (CLICK_DUPLICATES, "duplicates"), (CLICK_QUARANTINE, "quarantine")):
        fill(spark, tmp_path, table, WHOLE[name], {})
    fill(spark, tmp_path, CLICKPATH, PATH, {})

    def in_bronze_after_a_batch() -> set[tuple[int, int]]:
        for table, places in ((CLICKPATH, [(1, 2)]), (CLICK_QUARANTINE, [(1, 3)]), (CLICKS, [(1, 2)])):
            fill(spark, tmp_path, table, places, {(1, 2): "c"}, batch=1)
        return in_bronze() | {(1, 2), (1, 3)}

    assert audit_clicks(str(tmp_path), SENT, in_bronze_after_a_batch, timedelta(minutes=10)).clean
    assert (1, 2) in click_places(str(tmp_path))

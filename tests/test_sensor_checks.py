"""The checks of sensors: they pass where all is well, and fail on each way in which it is not."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckResult
from pyspark.sql import SparkSession

from assets.sensor_checks import alerts_agree, books_balanced, few_late
from hub import SENSOR_ALERTS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Record
from hub.pulses import pulse
from hub.topics import create_missing_topics
from lake.commit import append_once, create_if_missing
from lake.sensor_entries import BRONZE, QUARANTINE
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS
from lake.tables import Table
from settings import HubSettings, Settings
from tests.conftest import started_broker

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)
AGO = NOW - timedelta(minutes=10)
AT = f"timestamp_micros({round(AGO.timestamp() * 1e6)})"


class Sensors:
    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings, self._commits = spark, settings, 0
        for table in (SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS, BRONZE, QUARANTINE):
            create_if_missing(spark, table, settings.lake_root)
        create_missing_topics(self._connection, HubSettings(partitions=1), [SENSOR_ALERTS])

    @property
    def _connection(self) -> HubConnection:
        return HubConnection.from_settings(self._settings.hub)

    def add(self, table: Table, **values: str) -> None:
        given = {"event_time": AT, "processing_time": AT, "partition": "0", "date": f"to_date({AT})", **values}
        known = {column.name for column in table.columns}
        row = self._spark.range(1).selectExpr(*(f"{value} AS {name}" for name, value in given.items() if name in known))
        append_once(row, table, self._settings.lake_root, "w", self._commits)
        self._commits += 1

    def in_bronze(self, number: int, body: bytes = b"{}") -> None:
        self.add(BRONZE, sequence_number=f"{number}L", enqueued_time=AT, body=f"X'{body.hex()}'")

    def quarantined(self, number: int) -> None:
        self.add(QUARANTINE, sequence_number=f"{number}L")

    def reading(self, number: int, alert: str | None = None, missed: int = 0, **values: str) -> None:
        alert_id = "cast(NULL AS STRING)" if alert is None else f"'{alert}'"
        place = {"sequence_number": f"{number}L", "alert_id": alert_id, "missed_windows": str(missed)}
        self.add(SENSOR_READINGS, **place, **values)

    def sampled(self, number: int, alert: str) -> None:
        self.add(SENSOR_SAMPLES, sequence_number=f"{number}L", alert_id=f"'{alert}'")

    def closed(self) -> None:
        self.add(SENSOR_WINDOWS, window_start=AT, window_end=f"{AT} + INTERVAL 5 MINUTES")

    def tell(self, number: int, alert: str) -> None:
        body: dict[str, Any] = {"alert_id": alert, "partition": 0, "sequence_number": number}
        body |= {"event_time": AGO.isoformat(), "raised_at": AGO.isoformat()}
        with KafkaPublisher(self._connection) as publisher:
            publisher.publish(Record(SENSOR_ALERTS, b"pump", json.dumps(body).encode()), lambda outcome: None)

    def look(self, check: Callable[[Settings, datetime], AssetCheckResult] = alerts_agree) -> AssetCheckResult:
        return check(self._settings, datetime.now(UTC))


@pytest.fixture
def sensors(spark: SparkSession, tmp_path: Path) -> Iterator[Sensors]:
    broker: EmbeddedBroker = started_broker(tmp_path / "hub")
    yield Sensors(spark, Settings(home=tmp_path, hub=HubSettings(kafka_servers=broker.servers)))
    broker.stop()


def test_what_agrees_passes_and_each_that_does_not_is_named(sensors: Sensors) -> None:
    assert sensors.look().passed, "nothing at all agrees"
    sensors.reading(1)
    sensors.reading(2, "a")
    sensors.tell(2, "a")
    sensors.tell(2, "a")
    assert sensors.look().passed, "told twice, and its window is open"
    sensors.closed()
    assert "1 are in no sample (a)" in str(sensors.look().description)
    sensors.sampled(2, "a")
    assert (found := sensors.look()).passed, found
    sensors.reading(3, "late", missed=2)
    sensors.tell(3, "late")
    sensors.tell(99, "unread")
    assert (found := sensors.look()).passed, f"too late for any window, and not yet read: {found}"
    sensors.reading(4, "new", processing_time="current_timestamp()", event_time="current_timestamp()")
    assert sensors.look().passed, "its alert may be on its way"
    sensors.reading(5, "silent", missed=2)
    assert not (found := sensors.look()).passed
    assert "1 were not told on the hub (silent)" in str(found.description)
    sensors.tell(5, "silent")
    sensors.tell(1, "false")
    assert "1 were told, but are not in silver (false)" in str(sensors.look().description)
    sensors.reading(1, "false", missed=2, processing_time=f"{AT} - INTERVAL 5 HOURS")
    assert (found := sensors.look()).passed, f"told late, after a stream was down: {found}"


def test_every_record_of_bronze_is_accounted_for(sensors: Sensors) -> None:
    assert sensors.look(books_balanced).passed, "nothing at all"
    for number in (1, 2, 4):
        sensors.in_bronze(number)
    sensors.in_bronze(3, pulse("test", NOW))
    assert sensors.look(books_balanced).passed, "not read yet"
    sensors.quarantined(1)
    sensors.reading(2)
    sensors.reading(4)
    found = sensors.look(books_balanced)
    assert found.passed, found
    assert {name: value.value for name, value in found.metadata.items()} == {
        "bronze": 4,
        "readings": 2,
        "quarantined": 1,
        "pulses": 1,
    }
    sensors.reading(6)
    assert sensors.look(books_balanced).passed, "bronze is behind"
    sensors.in_bronze(5)
    assert "1 are in bronze alone (" in str((found := sensors.look(books_balanced)).description) and not found.passed
    sensors.quarantined(5)
    sensors.in_bronze(8)
    assert "1 are there twice, or not in bronze (" in str(sensors.look(books_balanced).description)
    sensors.in_bronze(6)
    assert sensors.look(books_balanced).passed
    sensors.reading(2)
    assert not sensors.look(books_balanced).passed, "entered twice"


def test_many_late_readings_are_warned_of(sensors: Sensors) -> None:
    assert sensors.look(few_late).passed, "of none, none is late"
    sensors.reading(1)
    sensors.reading(2, missed=2, processing_time=f"{AT} - INTERVAL 5 HOURS")
    assert sensors.look(few_late).passed, "long ago"
    sensors.reading(3, missed=1)
    found = sensors.look(few_late)
    assert not found.passed and found.metadata["share"].value == 0.5


def test_a_hub_that_is_away_is_told(tmp_path: Path) -> None:
    found = alerts_agree(Settings(home=tmp_path, hub=HubSettings(kafka_servers="127.0.0.1:1")), NOW)
    assert not found.passed and "127.0.0.1:1" in str(found.description)

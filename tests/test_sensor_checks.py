"""The check of alerts against silver: passes where they agree, and fails on each way in which they do not."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckResult
from pyspark.sql import SparkSession

from assets.sensor_checks import alerts_agree
from hub import SENSOR_ALERTS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Record
from hub.topics import create_missing_topics
from lake.commit import append_once, create_if_missing
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
        for table in (SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS):
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

    def look(self) -> AssetCheckResult:
        return alerts_agree(self._settings, datetime.now(UTC))


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


def test_a_hub_that_is_away_is_told(tmp_path: Path) -> None:
    found = alerts_agree(Settings(home=tmp_path, hub=HubSettings(kafka_servers="127.0.0.1:1")), NOW)
    assert not found.passed and "127.0.0.1:1" in str(found.description)

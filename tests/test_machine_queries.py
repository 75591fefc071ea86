"""Changes of machines from the hub into silver: each once, however often it is told and read."""

import json
import shutil
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.heartbeat import records
from hub import MACHINE_STATUS as HUB
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Record
from hub.pulses import pulse
from hub.topics import create_missing_topics, partition_counts
from lake.commit import append_once
from lake.machines import MACHINE_STATUS, MACHINES
from lake.silver import quarantine_table
from lake.tables import Table
from settings import HeartbeatSettings, HubSettings, Settings
from streaming.catalog import HEARTBEAT
from streaming.machine_changes import as_records
from streaming.machine_processor import CHANGES
from streaming.machine_queries import health_plan, status_plan
from streaming.queries import start_query
from streaming.query_plan import QueryContext

pytestmark = pytest.mark.slow

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEALTH = next(query for query in HEARTBEAT.queries if query.name == "machine_health")
SPEC = next(query for query in HEARTBEAT.queries if query.name == "machine_status")
Change = tuple[str, str | None, str, float]
"""Machine, status before, status, and since when, in seconds."""
FIRST: list[Change] = [("press", None, "Initializing", 0), ("press", "Initializing", "Healthy", 1)]


@dataclass
class Silver:
    spark: SparkSession
    settings: Settings
    connection: HubConnection
    topic: str

    def tell(self, *changes: Change, detected: float = 60) -> None:
        rows = [
            (name, previous, status, at(since), at(since), at(detected)) for name, previous, status, since in changes
        ]
        told = as_records(self.spark.createDataFrame(rows, CHANGES)).collect()
        self.publish(*(row["value"].encode() for row in told))

    def publish(self, *bodies: bytes) -> None:
        with KafkaPublisher(self.connection) as publisher:
            for body in bodies:
                publisher.publish(Record(self.topic, b"key", body), lambda outcome: None)

    def work(self) -> None:
        context = QueryContext.without_host(
            self.spark,
            self.settings,
            self.connection,
            partition_counts(self.connection),
        )
        spec = replace(SPEC, source=self.topic)
        start_query(context, HEARTBEAT, spec, status_plan, until_done=True).awaitTermination()

    def rows(self, table: Table) -> list[dict[str, Any]]:
        frame: DataFrame = self.spark.read.format("delta").load(table.path(self.settings.lake_root))
        return [row.asDict() for row in frame.collect()]

    def seen(self, table: Table) -> list[tuple[str, str, float]]:
        return sorted(
            (row["machine_name"], row["status"], (row["since"].astimezone(UTC) - START).total_seconds())
            for row in self.rows(table)
        )

    def quarantine(self) -> list[bytes]:
        return [bytes(row["body"]) for row in self.rows(quarantine_table(self.topic))]


def test_a_new_generation_knows_the_machines_of_the_last_in_other_buckets(
    spark: SparkSession, tmp_path: Path, connection: HubConnection, topic: str
) -> None:
    create_missing_topics(connection, HubSettings(partitions=1), [topic, HUB])
    machines = [f"{topic}-{number}" for number in range(20)]

    def beat(*names: str) -> int:
        """And a pulse after them. Returns when."""
        with KafkaPublisher(connection) as publisher:
            for name in names:
                body = json.dumps({"machine_name": name, "sent_at": "x"}).encode()
                publisher.publish(Record(topic, None, body), lambda outcome: None)
        receipts: list[Any] = []
        with KafkaPublisher(connection) as publisher:
            publisher.publish(Record(topic, None, pulse("test", START)), receipts.append)
        return int(receipts[0].enqueued_ms)

    def work(plan: int, buckets: int) -> None:
        chosen = HeartbeatSettings(silence_seconds=8, buckets=buckets)
        context = QueryContext.without_host(
            spark,
            Settings(home=tmp_path, heartbeat=chosen),
            connection,
            partition_counts(connection),
        )
        spec = replace(HEALTH, source=topic, plan=plan)
        start_query(context, HEARTBEAT, spec, health_plan, until_done=True).awaitTermination()

    def told() -> list[tuple[str, str, str]]:
        changes = (
            body for body, _ in records(connection, HUB, dict.fromkeys(range(partition_counts(connection)[HUB]), 0))
        )
        return [
            (each["machine_name"], each["previous"], each["status"])
            for each in changes
            if each["machine_name"].startswith(topic)
        ]

    beat(*machines)
    beat(*machines)
    work(plan=1, buckets=2)
    assert len(told()) == 40
    time.sleep(8.2)
    beat(machines[0])
    work(plan=2, buckets=3)
    assert sorted(told()[40:]) == sorted(
        [*((name, "Healthy", "Unhealthy") for name in machines), (machines[0], "Unhealthy", "Healthy")]
    )
    time.sleep(8.2)
    beat()
    work(plan=2, buckets=3)
    assert told()[61:] == [(machines[0], "Healthy", "Unhealthy")]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def silver(spark: SparkSession, tmp_path: Path, connection: HubConnection, topic: str) -> Silver:
    create_missing_topics(connection, HubSettings(partitions=2), [topic])
    return Silver(spark, Settings(home=tmp_path), connection, topic)


def test_a_change_that_is_told_again_is_there_once(silver: Silver) -> None:
    silver.tell(*FIRST, ("lathe", None, "Initializing", 0.5))
    silver.tell(*FIRST, detected=90)
    silver.publish(b"no change", json.dumps({"id": "1", "machine_name": "x"}).encode())
    silver.work()
    story = [("lathe", "Initializing", 0.5), ("press", "Healthy", 1), ("press", "Initializing", 0)]
    assert silver.seen(MACHINE_STATUS) == story
    assert {row["detected_at"].astimezone(UTC) for row in silver.rows(MACHINE_STATUS)} == {at(60)}, "the first time"
    assert silver.seen(MACHINES) == [("lathe", "Initializing", 0.5), ("press", "Healthy", 1)]
    assert len(silver.quarantine()) == 2
    # In a later batch, with changes of one moment in it.
    silver.tell(*FIRST, ("press", "Healthy", "Unhealthy", 6), ("press", "Unhealthy", "Healthy", 6))
    silver.tell(("lathe", "Initializing", "Unhealthy", 5.5), ("lathe", "Unhealthy", "Retired", 90))
    silver.work()
    more = [("lathe", "Retired", 90), ("lathe", "Unhealthy", 5.5), ("press", "Healthy", 6), ("press", "Unhealthy", 6)]
    assert silver.seen(MACHINE_STATUS) == sorted([*story, *more])
    assert silver.seen(MACHINES) == [("press", "Healthy", 6)]


def test_cut_off_between_its_tables_a_batch_is_completed(silver: Silver, monkeypatch: pytest.MonkeyPatch) -> None:
    silver.tell(*FIRST)
    silver.work()
    silver.tell(("press", "Healthy", "Unhealthy", 6))
    silver.publish(b"no change")

    def append(rows: DataFrame, table: Table, *others: Any) -> bool:
        if table is MACHINE_STATUS:
            raise OSError("cut off")
        return append_once(rows, table, *others)

    with monkeypatch.context() as patched:
        patched.setattr("streaming.appended.append_once", append)
        with pytest.raises(Exception, match="cut off"):
            silver.work()
    assert silver.seen(MACHINES) == [("press", "Unhealthy", 6)]
    assert len(silver.rows(MACHINE_STATUS)) == 2
    silver.work()
    expected = [("press", "Healthy", 1), ("press", "Initializing", 0), ("press", "Unhealthy", 6)]
    assert silver.seen(MACHINE_STATUS) == expected
    assert silver.seen(MACHINES) == [("press", "Unhealthy", 6)]
    assert silver.quarantine() == [b"no change"]


def test_without_its_checkpoint_everything_is_read_again_and_nothing_is_there_twice(silver: Silver) -> None:
    silver.tell(*FIRST)
    silver.publish(b"no change")
    silver.work()
    shutil.rmtree(Path(silver.settings.checkpoint_root, HEARTBEAT.name))
    silver.work()
    assert silver.seen(MACHINE_STATUS) == [("press", "Healthy", 1), ("press", "Initializing", 0)]
    assert silver.seen(MACHINES) == [("press", "Healthy", 1)]
    assert silver.quarantine() == [b"no change"]
    # The table of machines follows from that of their changes.
    shutil.rmtree(MACHINES.path(silver.settings.lake_root))
    silver.spark.catalog.clearCache()
    silver.work()
    assert silver.seen(MACHINES) == [("press", "Healthy", 1)]

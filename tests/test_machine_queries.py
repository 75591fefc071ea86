"""Changes of machines from the hub into silver: each once, however often it is told and read."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from bench.heartbeat import records
from hub import MACHINE_STATUS as HUB
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Record
from hub.pulses import pulse
from hub.topics import create_missing_topics, offset_ranges, partition_counts
from lake.commit import append_once
from lake.machines import MACHINE_STATUS, MACHINES
from lake.silver import quarantine_table
from lake.tables import Table
from settings import HeartbeatSettings, HubSettings, Settings
from streaming.appended import onto_hub
from streaming.catalog import HEARTBEAT
from streaming.failures import FailureClass, classify
from streaming.loss import accept_loss
from streaming.machine_changes import as_records
from streaming.machine_processor import CHANGES
from streaming.machine_queries import health_plan, status_plan
from streaming.queries import start_query
from streaming.query_plan import QueryContext

pytestmark = pytest.mark.slow

SILENCE = 8
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


@dataclass
class Judging:
    """The query that judges, on a topic of its own, with machines that have its name."""

    spark: SparkSession
    home: Path
    connection: HubConnection
    topic: str

    @property
    def machines(self) -> list[str]:
        return [f"{self.topic}-{number}" for number in range(20)]

    def beat(self, *names: str) -> None:
        """And a pulse after them."""
        bodies = [json.dumps({"machine_name": name, "sent_at": "x"}).encode() for name in names]
        for batch in (bodies, [pulse("test", START)]):
            with KafkaPublisher(self.connection) as publisher:
                for body in batch:
                    publisher.publish(Record(self.topic, None, body), lambda outcome: None)

    def all_fall_silent(self, *but: str) -> None:
        time.sleep(SILENCE + 0.2)
        self.beat(*but)

    def work(self, plan: int, buckets: int = 2) -> None:
        context = QueryContext.without_host(
            self.spark,
            Settings(home=self.home, heartbeat=HeartbeatSettings(silence_seconds=SILENCE, buckets=buckets)),
            self.connection,
            partition_counts(self.connection),
        )
        spec = replace(HEALTH, source=self.topic, plan=plan)
        start_query(context, HEARTBEAT, spec, health_plan, until_done=True).awaitTermination()

    def lose_all(self) -> None:
        (end,) = (end for _, end in offset_ranges(self.connection, self.topic).values())
        client = AdminClient({**self.connection.client_options()})
        for answer in client.delete_records([TopicPartition(self.topic, 0, end)]).values():
            answer.result(10)

    def accept_loss(self) -> None:
        settings = Settings(home=self.home, hub=HubSettings(kafka_servers=self.connection.servers))
        accept_loss(settings, HEARTBEAT, replace(HEALTH, source=self.topic))

    def told(self) -> list[dict[str, Any]]:
        partitions = range(partition_counts(self.connection)[HUB])
        changes = (body for body, _ in records(self.connection, HUB, dict.fromkeys(partitions, 0)))
        return [each for each in changes if each["machine_name"].startswith(self.topic)]

    def story(self) -> list[tuple[str, str, str]]:
        return [(each["machine_name"], each["previous"], each["status"]) for each in self.told()]


@pytest.fixture
def judging(spark: SparkSession, tmp_path: Path, connection: HubConnection, topic: str) -> Judging:
    create_missing_topics(connection, HubSettings(partitions=1), [topic, HUB])
    return Judging(spark, tmp_path, connection, topic)


def test_a_new_generation_knows_the_machines_of_the_last_in_other_buckets(judging: Judging) -> None:
    machines = judging.machines
    judging.beat(*machines)
    judging.beat(*machines)
    judging.work(plan=1, buckets=2)
    assert len(judging.story()) == 40
    judging.all_fall_silent(machines[0])
    judging.work(plan=2, buckets=3)
    assert sorted(judging.story()[40:]) == sorted(
        [*((name, "Healthy", "Unhealthy") for name in machines), (machines[0], "Unhealthy", "Healthy")]
    )
    judging.all_fall_silent()
    judging.work(plan=2, buckets=3)
    assert judging.story()[61:] == [(machines[0], "Healthy", "Unhealthy")]


@pytest.mark.parametrize("plan_then", [2, 1])
def test_cut_off_between_telling_and_the_end_of_the_batch_the_same_is_told_again(
    judging: Judging, silver: Silver, monkeypatch: pytest.MonkeyPatch, plan_then: int
) -> None:
    """In the first batch of a new plan, which then goes on, or is changed back before it has stored anything."""
    machines = judging.machines
    judging.beat(*machines)
    judging.beat(*machines)
    judging.work(plan=1)
    judging.all_fall_silent()

    def then_cut_off(context: QueryContext, hub: str) -> Callable[[DataFrame, int], None]:
        tell = onto_hub(context, hub)

        def commit(batch: DataFrame, number: int) -> None:
            tell(batch, number)
            raise OSError("cut off")

        return commit

    with monkeypatch.context() as patched:
        patched.setattr("streaming.machine_queries.onto_hub", then_cut_off)
        with pytest.raises(Exception, match="cut off"):
            judging.work(plan=2)
    judging.work(plan=plan_then)
    told = judging.told()[40:]
    unhealthy = sorted((name, "Healthy", "Unhealthy") for name in machines)
    assert sorted(judging.story()[40:]) == sorted([*unhealthy, *unhealthy]), "told twice"
    assert Counter(each["id"] for each in told) == dict.fromkeys((each["id"] for each in told), 2)
    replace(silver, topic=HUB).work()
    rows = [row for row in silver.rows(MACHINE_STATUS) if row["machine_name"] in machines]
    assert len(rows) == len({row["id"] for row in rows}) == 60, "but in silver once"


@pytest.mark.parametrize("some_left", [True, False])
def test_machines_that_beat_after_an_accepted_loss_were_not_silent_in_it(judging: Judging, some_left: bool) -> None:
    *beating, gone = machines = judging.machines
    judging.beat(*machines)
    judging.beat(*machines)
    judging.work(plan=HEALTH.plan)
    assert len(judging.story()) == 40
    judging.beat(*machines)
    judging.lose_all()
    time.sleep(SILENCE + 0.2)
    if some_left:
        judging.beat(*beating)
    with pytest.raises(StreamingQueryException) as lost:
        judging.work(plan=HEALTH.plan)
    assert classify(str(lost.value), "test").kind is FailureClass.SOURCE_DATA_LOST
    judging.accept_loss()
    if not some_left:
        judging.beat(*beating)
    judging.work(plan=HEALTH.plan)
    assert judging.story()[40:] == []
    judging.all_fall_silent()
    judging.work(plan=HEALTH.plan)
    assert sorted(judging.story()[40:]) == sorted((name, "Healthy", "Unhealthy") for name in machines)
    for change in judging.told()[40:]:
        since, last = (datetime.fromisoformat(change[name]) for name in ("since", "last_heartbeat"))
        silent = (since - last).total_seconds()
        assert silent >= 2 * SILENCE if change["machine_name"] == gone else silent == SILENCE


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

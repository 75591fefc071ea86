"""Queries on the shared broker and session: generations, and checkpoints and hubs that no longer fit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.rig import wait_for
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Record
from hub.topics import create_missing_topics, partition_counts
from settings import BronzeSettings, HubSettings, Settings
from streaming.bronze import bronze_plan
from streaming.catalog import QuerySpec, StreamSpec, bronze_query
from streaming.checkpoints import CheckpointError
from streaming.failures import FailureClass, classify
from streaming.loss import Skipped, resume_points
from streaming.queries import start_query
from streaming.query_plan import QueryContext

pytestmark = pytest.mark.slow

STREAM = StreamSpec("test", "A stream of one query", ())


@dataclass
class Query:
    """One bronze query of a hub of its own with one partition."""

    spark: SparkSession
    settings: Settings
    connection: HubConnection
    spec: QuerySpec
    stopping: bool = False

    def start(self, plan: int = 1) -> StreamingQuery:
        partitions = partition_counts(self.connection)
        context = QueryContext(
            self.spark,
            self.settings,
            self.connection,
            partitions,
            stopping=lambda: self.stopping,
            check_lease=lambda: None,
            now=datetime.now(UTC),
        )
        return start_query(context, STREAM, replace(self.spec, plan=plan), bronze_plan)

    def publish(self, *bodies: bytes) -> None:
        with KafkaPublisher(self.connection) as publisher:
            for body in bodies:
                publisher.publish(Record(self.spec.source_name, b"k", body), lambda outcome: None)

    def bodies(self) -> list[bytes]:
        table = self.spark.read.format("delta").load(self.spec.table.path(self.settings.lake_root))
        return [bytes(row["body"]) for row in table.orderBy("sequence_number").collect()]

    def wait_for(self, *bodies: bytes) -> None:
        wait_for(f"the rows {bodies}", lambda: self.bodies() == list(bodies), 60)

    @property
    def checkpoints(self) -> Path:
        return Path(self.settings.checkpoint_root, STREAM.name, self.spec.name)

    def forget_last_commit(self) -> None:
        """Leaves the checkpoint as a kill between Delta's commit and Spark's does."""
        commits = self.checkpoints.glob("g000001/spark/commits/[0-9]*")
        max(commits, key=lambda file: int(file.name)).unlink()

    def damage(self, pattern: str, text: str) -> None:
        for file in self.checkpoints.glob(pattern):
            file.write_text(text)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(
    spark: SparkSession, broker: EmbeddedBroker, connection: HubConnection, topic: str, tmp_path: Path
) -> Iterator[Query]:
    create_missing_topics(connection, HubSettings(partitions=1), [topic])
    settings = Settings(home=tmp_path, bronze=BronzeSettings(trigger_seconds=0.2))
    yield Query(spark, settings, connection, bronze_query(topic))
    for running in spark.streams.active:
        running.stop()


def test_a_query_goes_on_after_a_stop_and_after_a_change_of_plan(query: Query) -> None:
    running = query.start()
    query.publish(b"1", b"2")
    query.wait_for(b"1", b"2")
    running.stop()
    query.publish(b"3")
    running = query.start()
    query.wait_for(b"1", b"2", b"3")
    running.stop()
    query.publish(b"4")
    running = query.start(plan=2)
    query.wait_for(b"1", b"2", b"3", b"4")
    running.stop()
    assert sorted(folder.name for folder in query.checkpoints.iterdir()) == ["g000001", "g000002"]


def test_a_batch_that_only_delta_knows_of_is_not_read_again_by_the_next_generation(query: Query) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    query.publish(b"2")
    query.wait_for(b"1", b"2")
    wait_for("Spark commits it too", lambda: bool(running.lastProgress and running.lastProgress.numInputRows), 30)
    running.stop()
    query.forget_last_commit()
    query.publish(b"3")
    query.start(plan=2)
    query.wait_for(b"1", b"2", b"3")
    time.sleep(1)
    assert query.bodies() == [b"1", b"2", b"3"]


def test_the_same_batch_again_after_a_kill_is_no_second_copy(query: Query) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    wait_for("Spark commits it too", lambda: bool(running.lastProgress and running.lastProgress.numInputRows), 30)
    running.stop()
    query.forget_last_commit()
    query.start()
    query.publish(b"2")
    query.wait_for(b"1", b"2")


def test_no_batch_begins_once_the_stream_is_to_stop(query: Query) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    query.stopping = True
    query.publish(b"2")
    with pytest.raises(StreamingQueryException, match="StopRequested"):
        running.awaitTermination(30)
    assert query.bodies() == [b"1"]
    query.stopping = False
    query.start()
    query.wait_for(b"1", b"2")


def test_a_missing_checkpoint_is_no_reason_to_write_twice(query: Query, tmp_path: Path) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    running.stop()
    query.checkpoints.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"has no checkpoint, but its table .* has rows"):
        query.start()
    assert query.bodies() == [b"1"]


@pytest.mark.parametrize("pattern", ["g*/spark/offsets/*", "g*/spark/commits/*", "g*/spark/metadata"])
def test_a_damaged_checkpoint_is_called_that(query: Query, pattern: str) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    running.stop()
    query.damage(pattern, "nonsense")
    try:
        query.start().awaitTermination(30)
        error = "the query ended in silence"
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
    assert classify(error, "test").kind is FailureClass.CHECKPOINT, error
    assert query.bodies() == [b"1"]


def test_records_that_the_hub_no_longer_has_are_not_passed_over_in_silence(query: Query) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    running.stop()
    query.publish(b"never read", b"late")
    client = AdminClient({"bootstrap.servers": query.connection.servers})
    for answer in client.delete_records([TopicPartition(query.spec.source_name, 0, 2)]).values():
        answer.result(10)
    with pytest.raises(StreamingQueryException) as lost:
        query.start().awaitTermination(60)
    failure = classify(str(lost.value), "test")
    assert failure.kind is FailureClass.SOURCE_DATA_LOST
    assert "no longer has records that were not read yet" in failure.what
    assert query.bodies() == [b"1"]


def test_a_checkpoint_whose_table_is_gone_does_not_go_on_in_mid_stream(query: Query, tmp_path: Path) -> None:
    running = query.start()
    query.publish(b"1")
    query.wait_for(b"1")
    wait_for("Spark commits it too", lambda: bool(running.lastProgress and running.lastProgress.numInputRows), 30)
    running.stop()
    query.publish(b"2")
    elsewhere = replace_settings(query, lake=str(tmp_path / "another lake"))
    with pytest.raises(CheckpointError, match=r"has a checkpoint, but .* does not have what it wrote"):
        elsewhere.start()
    assert not Path(tmp_path, "another lake").exists()


def replace_settings(query: Query, **changes: str) -> Query:
    return replace(query, settings=query.settings.model_copy(update=changes))


def test_after_an_accepted_loss_reading_goes_on_with_what_the_hub_has() -> None:
    starts, skipped = resume_points({0: 5, 1: 5, 2: 50, 3: 7}, {0: (3, 9), 1: (8, 9), 2: (0, 4), 3: (7, 7), 4: (2, 3)})
    assert starts == {0: 5, 1: 8, 2: 0, 3: 7, 4: 2}
    assert skipped == [Skipped(1, 5, 8)]

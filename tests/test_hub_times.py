"""By whose clock a hub's records are stamped, and pulses on a hub that does not answer for its topic."""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from hub import HEARTBEATS
from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import create_missing_topics, retention_seconds, stamped_by_senders
from orchestration.command.doctor import examine
from settings import HubSettings, Settings
from streaming.machine_queries import warn_of_senders_clocks


@pytest.mark.slow
def test_topics_with_the_times_of_their_senders_are_told(
    connection: HubConnection, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = f"{topic}-theirs"
    create_missing_topics(connection, HubSettings(retention_hours=2), [topic])
    as_kafka_does = NewTopic(theirs, 1, 1, config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    admin = AdminClient({**connection.client_options()})
    admin.create_topics([as_kafka_does])[theirs].result(30)
    nowhere = f"{topic}-nowhere"
    assert stamped_by_senders(connection, [topic, theirs, nowhere]) == [theirs]
    assert stamped_by_senders(replace(connection, event_hubs=True), [theirs]) == [], "which uses its own clock anyway"
    assert retention_seconds(connection, [topic, theirs, nowhere]) == {topic: 7200, theirs: None, nowhere: None}
    with caplog.at_level(logging.WARNING, "tidewatch"):
        warn_of_senders_clocks(connection, topic)
        assert not caplog.records
        warn_of_senders_clocks(connection, theirs)
    (warning,) = caplog.records
    assert warning.getMessage().startswith(theirs) and "message.timestamp.type=LogAppendTime" in warning.getMessage()


def test_doctor_says_how_to_stamp_by_the_hubs_clock(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = settings.model_copy(update={"hub": HubSettings(kafka_servers="hub:9092")})
    monkeypatch.setattr("orchestration.command.doctor.partition_counts", lambda connection: {HEARTBEATS: 4})
    asked: list[list[str]] = []

    def stamped(connection: HubConnection, topics: list[str]) -> list[str]:
        asked.append(topics)
        return [HEARTBEATS]

    monkeypatch.setattr("orchestration.command.doctor.stamped_by_senders", stamped)
    known, senders = (finding for finding in examine(elsewhere) if finding.what == "hub")
    assert known.ok and not senders.ok
    assert f"--entity-name {HEARTBEATS} --add-config message.timestamp.type=LogAppendTime" in senders.said
    assert asked == [[HEARTBEATS]], "of topics that are there"


class Hub:
    """In place of a producer: has an error for its topic, or partitions."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.sent: list[int] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        partitions = {} if self.error else {0: None, 1: None}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.error, partitions=partitions)})

    def produce(self, topic: str, body: bytes, partition: int, on_delivery: object) -> None:
        self.sent.append(partition)

    def poll(self, seconds: float) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr("hub.pulses.Producer", lambda options: made)
    return made


def test_a_hub_without_an_answer_for_its_topic_is_told(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    pulses = Pulses(HubConnection("hub:9092"), "heartbeats", 0.25, "test")
    with caplog.at_level(logging.WARNING, "tidewatch"):
        pulses.beat(1.0)
        pulses.beat(1.25)
    (warning,) = caplog.records
    assert "takes no pulse on heartbeats" in warning.getMessage() and hub.sent == []
    hub.error = None
    pulses.beat(1.5)
    assert hub.sent == [0, 1]
    hub.error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    pulses.beat(60.0)
    assert hub.sent == [0, 1, 0, 1], "those that are known"


def test_a_topic_that_may_not_be_seen_is_forbidden(hub: Hub) -> None:
    hub.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    pulses = Pulses(HubConnection("hub:9092"), "heartbeats", 0.25, "test")
    pulses.beat(1.0)
    assert pulses.forbidden

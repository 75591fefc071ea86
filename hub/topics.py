"""The topics of the hub: which exist, and creating those that don't."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from hub.connection import HubConnection
from settings import HubSettings

ANSWER_SECONDS = 10
MAX_MESSAGE_BYTES = 1_048_588
TIMESTAMP_TYPE, HUBS_TIME = "message.timestamp.type", "LogAppendTime"
SEGMENTS = 24
SEGMENT_BYTES = 256 * 2**20


class HubUnreachable(Exception):
    """The hub did not answer; the message names it and says what to look at."""


def partition_counts(connection: HubConnection) -> dict[str, int]:
    """Every topic and how many partitions it has."""
    client = _admin(connection)
    return {name: len(topic.partitions) for name, topic in _metadata(client, connection).topics.items()}


def create_missing_topics(connection: HubConnection, hub: HubSettings, names: Iterable[str]) -> list[str]:
    """Creates those of the topics that the hub lacks, and returns their names."""
    client = _admin(connection)
    existing = _metadata(client, connection).topics
    wanted = [
        NewTopic(
            name,
            num_partitions=hub.partitions,
            replication_factor=1 if hub.embedded else -1,
            config=_topic_configuration(connection, hub),
        )
        for name in names
        if name not in existing
    ]
    created = []
    for name, answer in client.create_topics(wanted).items() if wanted else ():
        try:
            answer.result(timeout=ANSWER_SECONDS)
            created.append(name)
        except TimeoutError:
            raise HubUnreachable(
                f"The hub at {connection.servers} did not create the topic {name} in {ANSWER_SECONDS} s. "
                "Check that it runs and is not overloaded."
            ) from None
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise HubUnreachable(
                    f"The topic {name} can't be created on {connection.servers}: {error.args[0].str()}. "
                    f"Create it yourself with {hub.partitions} partitions, or give the account the right to."
                ) from error
    return created


class HubEnds:
    """Asks, again and again, how far topics reach."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection
        self._client = _admin(connection)

    def ask(self, topic: str, partitions: int) -> dict[int, int]:
        """For each partition the sequence number that its next record will get."""
        wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}  # type: ignore[no-untyped-call]
        answers = self._client.list_offsets(wanted, request_timeout=ANSWER_SECONDS)
        try:
            return {place.partition: answer.result(ANSWER_SECONDS).offset for place, answer in answers.items()}
        except (KafkaException, TimeoutError) as error:
            raise HubUnreachable(
                f"The hub at {self._connection.servers} does not tell how far {topic} reaches."
            ) from error


def retention_seconds(connection: HubConnection, topics: Iterable[str]) -> dict[str, float | None]:
    """How long the hub keeps each topic's records; None where it keeps them for ever or does not tell."""
    client = _admin(connection)  # one for all of them: connecting is what takes time
    return {topic: _retention_seconds(client, topic) for topic in topics}


def _retention_seconds(client: AdminClient, topic: str) -> float | None:
    try:
        kept_ms = int(_configured(client, topic, "retention.ms") or "")
    except ValueError:
        return None
    return kept_ms / 1000 if kept_ms >= 0 else None


def stamped_by_senders(connection: HubConnection, topics: Iterable[str]) -> list[str]:
    """Those whose records have the times of their senders' clocks, as is Kafka's default, where the hub tells. Event
    Hubs always uses its own."""
    if connection.event_hubs:
        return []
    client = _admin(connection)
    return [topic for topic in topics if _configured(client, topic, TIMESTAMP_TYPE) == "CreateTime"]


def _configured(client: AdminClient, topic: str, name: str) -> str | None:
    """None where the hub does not tell."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        value = client.describe_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result()[name].value
    except (KafkaException, KeyError):
        return None
    return None if value is None else str(value)


def offset_ranges(connection: HubConnection, topic: str) -> dict[int, tuple[int, int]]:
    """For each partition the first sequence number that the hub still has and the one after the last."""
    consumer = Consumer({**connection.client_options(), "group.id": "tidewatch-offsets", "log_level": 0})
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_SECONDS)
            for partition in range(partition_counts(connection)[topic])
        }
    except KafkaException as error:
        raise HubUnreachable(
            f"The hub at {connection.servers} does not tell how far {topic} reaches: {error.args[0].str()}."
        ) from error
    finally:
        consumer.close()


def offsets_since(connection: HubConnection, topic: str, partitions: int, since: datetime) -> dict[int, int]:
    """For each partition the sequence number of the first record that the hub took then or later, or of the next."""
    at = OffsetSpec.for_timestamp(round(since.timestamp() * 1000))
    client = _admin(connection)
    asked = {TopicPartition(topic, partition): at for partition in range(partitions)}
    answers = client.list_offsets(asked, request_timeout=ANSWER_SECONDS)
    try:
        found = {place.partition: answer.result(ANSWER_SECONDS).offset for place, answer in answers.items()}
    except (KafkaException, TimeoutError) as error:
        raise HubUnreachable(
            f"The hub at {connection.servers} does not tell what {topic} has since {since}."
        ) from error
    ends = HubEnds(connection).ask(topic, partitions) if any(offset < 0 for offset in found.values()) else {}
    return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}


def times_at(connection: HubConnection, topic: str, numbers: Mapping[int, int]) -> dict[int, datetime]:
    """When the hub took the record with this sequence number, or the first that it has after it, of each partition.
    The record has to be there."""
    options = {"group.id": "tidewatch-offsets", "log_level": 0, "auto.offset.reset": "earliest"}
    consumer = Consumer({**connection.client_options(), **options})
    found: dict[int, datetime] = {}
    try:
        for partition, number in numbers.items():
            consumer.assign([TopicPartition(topic, partition, number)])
            message = consumer.poll(ANSWER_SECONDS)
            if message is None or message.error() is not None:
                raise HubUnreachable(
                    f"The hub at {connection.servers} does not give the record {number} of {topic}, partition "
                    f"{partition}."
                )
            found[partition] = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
    finally:
        consumer.close()
    return found


def _topic_configuration(connection: HubConnection, hub: HubSettings) -> dict[str, str]:
    retention = {"retention.ms": str(hub.retention_hours * 3_600_000)}
    if connection.event_hubs:  # which always uses its own append time and size limit
        return retention
    return {
        **retention,
        TIMESTAMP_TYPE: HUBS_TIME,
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        # Only closed segments are ever deleted, so that their size and age bound what outlives the retention.
        "segment.ms": str(hub.retention_hours * 3_600_000 // SEGMENTS),
        "segment.bytes": str(SEGMENT_BYTES),
    }


def _admin(connection: HubConnection) -> AdminClient:
    return AdminClient({**connection.client_options(), "log_level": 0})


def _metadata(client: AdminClient, connection: HubConnection):  # type: ignore[no-untyped-def]
    try:
        return client.list_topics(timeout=ANSWER_SECONDS)
    except KafkaException as error:
        raise HubUnreachable(
            f"The hub at {connection.servers} does not answer: {error.args[0].str()}. Check that it runs, the address, "
            "the firewall and the login."
        ) from error

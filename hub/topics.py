"""The topics of the hub: which exist, and creating those that don't."""

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from hub.connection import HubConnection
from settings import HubSettings

ANSWER_SECONDS = 10
MAX_MESSAGE_BYTES = 1_048_588


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
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise HubUnreachable(
                    f"The topic {name} can't be created on {connection.servers}: {error.args[0].str()}. "
                    f"Create it yourself with {hub.partitions} partitions, or give the account the right to."
                ) from error
    return created


def _topic_configuration(connection: HubConnection, hub: HubSettings) -> dict[str, str]:
    retention = {"retention.ms": str(hub.retention_hours * 3_600_000)}
    if connection.event_hubs:  # which always uses its own append time and size limit
        return retention
    return {
        **retention,
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
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

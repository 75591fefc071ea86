"""Reads back what the stream sensors told on the hub."""

import json
import time
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import Consumer, KafkaException, TopicPartition

from hub import SENSOR_ALERTS
from hub.connection import HubConnection
from hub.topics import HubUnreachable, offset_ranges, offsets_since, partition_counts

READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, and the place of its reading on the hub."""

    alert_id: str
    place: tuple[int, int]
    event_time: datetime
    raised_at: datetime


def alerts_since(connection: HubConnection, since: datetime, seconds: float = READ_SECONDS) -> list[Alert]:
    """All that the hub took from then on, as far as it has them now; records that are none are left out."""
    if SENSOR_ALERTS not in partition_counts(connection):
        return []
    ends = {partition: end for partition, (_, end) in offset_ranges(connection, SENSOR_ALERTS).items()}
    begins = offsets_since(connection, SENSOR_ALERTS, len(ends), since)
    unread = {partition: end for partition, end in ends.items() if begins[partition] < end}
    consumer = Consumer({**connection.client_options(), "group.id": "tidewatch-alerts", "log_level": 0})
    consumer.assign([TopicPartition(SENSOR_ALERTS, partition, begins[partition]) for partition in unread])
    found: list[Alert] = []
    deadline = time.monotonic() + seconds
    try:
        while unread:
            if time.monotonic() > deadline:
                raise HubUnreachable(f"The hub at {connection.servers} did not give all alerts in {seconds:g} s.")
            for message in consumer.consume(10_000, 1.0):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None or partition is None or offset is None:
                    continue
                if offset >= unread.get(partition, 0) - 1:
                    unread.pop(partition, None)
                if (alert := _alert(message.value())) is not None and offset < ends[partition]:
                    found.append(alert)
    except KafkaException as error:
        raise HubUnreachable(f"The hub at {connection.servers} gives no alerts: {error.args[0].str()}.") from error
    finally:
        consumer.close()
    return found


def _alert(body: bytes | None) -> Alert | None:
    try:
        fields = json.loads(body or b"")
        return Alert(
            str(fields["alert_id"]),
            (int(fields["partition"]), int(fields["sequence_number"])),
            datetime.fromisoformat(fields["event_time"]),
            datetime.fromisoformat(fields["raised_at"]),
        )
    except (ValueError, KeyError, TypeError):
        return None

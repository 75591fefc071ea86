"""How far a query in real time is: it passes pulses on to a hub of their own, and its host listens there.

A batch in real time lasts for minutes, and tells nothing before its end.
"""

import json
import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from hub.connection import HubConnection

log = logging.getLogger("tidewatch")

MOST = 1000
HEAR_SECONDS = 0.2
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Echo:
    """A pulse that passed by: its place on the hub, when the hub had it, and how long it took from there to here."""

    partition: str
    sequence_number: int
    enqueued_at: datetime
    seconds: float


class Listener(Protocol):
    def echoed(self, query: str, echoes: dict[str, Echo], all_since: float | None) -> None: ...


def listen(connection: HubConnection, topic: str, partitions: int, query: str, pulsed: int, told: Listener) -> None:
    """Tells of the newest echo of each of the `pulsed` partitions, and since when all of them answered, in a thread of
    its own."""
    consumer = Consumer({**connection.client_options(), "group.id": "tidewatch-echoes", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, _END) for partition in range(partitions)])
    threading.Thread(target=_listen, args=(consumer, query, pulsed, told), name="echoes", daemon=True).start()


_END = -1


def _listen(consumer: Consumer, query: str, pulsed: int, told: Listener) -> None:
    heard: dict[str, float] = {}
    while True:
        try:
            messages = consumer.consume(MOST, HEAR_SECONDS)
            now, clock = datetime.now(UTC), time.monotonic()
            read = (_echo(message.value(), now) for message in messages if message.error() is None)
            echoes = {echo.partition: echo for echo in read if echo is not None}
            if echoes:
                heard |= dict.fromkeys(echoes, clock)
                told.echoed(query, echoes, min(heard.values()) if len(heard) >= pulsed else None)
        except KafkaException as error:
            log.warning("Echoes of %s can't be heard: %s", query, error.args[0].str())
            time.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("Echoes of %s can't be read; tried again", query)
            time.sleep(RETRY_SECONDS)


def _echo(body: bytes | None, now: datetime) -> Echo | None:
    """None for a record of somebody else."""
    try:
        fields = json.loads(body or b"")
        enqueued = datetime.fromisoformat(fields["enqueued_time"])
        seconds = max(0.0, (now - enqueued).total_seconds())
        return Echo(str(int(fields["partition"])), int(fields["sequence_number"]), enqueued, seconds)
    except (ValueError, KeyError, TypeError):
        return None

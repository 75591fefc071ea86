"""How far a query in real time is: it passes pulses on to a hub of their own, and its host listens there.

A batch in real time lasts for minutes, and tells nothing before its end.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

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
    def echoed(self, query: str, echoes: dict[str, Echo], all_since: float | None, pulse_seconds: float) -> None: ...


@dataclass(frozen=True)
class Pulsed:
    """A query in real time, the partitions of its hub, how often each of them gets a pulse, and whose echoes count:
    another host's, or those of the one before, say nothing of this query."""

    query: str
    partitions: int
    seconds: float
    sender: str


def listen(connection: HubConnection, topic: str, partitions: int, pulsed: Pulsed, told: Listener) -> None:
    """Tells of the newest echo of each partition, and since when all of them answered, in a thread of its own."""
    consumer = Consumer({**connection.client_options(), "group.id": "tidewatch-echoes", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, OFFSET_END) for partition in range(partitions)])
    threading.Thread(target=_listen, args=(consumer, pulsed, told), name="echoes", daemon=True).start()


def _listen(consumer: Consumer, pulsed: Pulsed, told: Listener) -> None:
    heard = Heard(pulsed, told)
    query = pulsed.query
    while True:
        try:
            messages = consumer.consume(MOST, HEAR_SECONDS)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
            heard.take([message.value() for message in messages], datetime.now(UTC), time.monotonic())
        except KafkaException as error:
            log.warning("Echoes of %s can't be heard: %s", query, error.args[0].str())
            time.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("Echoes of %s can't be read; tried again", query)
            time.sleep(RETRY_SECONDS)


class Heard:
    """When each partition was last heard of."""

    def __init__(self, pulsed: Pulsed, told: Listener) -> None:
        self._pulsed, self._told = pulsed, told
        self._heard: dict[str, float] = {}

    def take(self, bodies: Sequence[bytes | None], now: datetime, clock: float) -> None:
        read = (_echo(body, now, self._pulsed.sender) for body in bodies)
        echoes = {echo.partition: echo for echo in read if echo is not None}
        if echoes:
            self._heard |= dict.fromkeys(echoes, clock)
            all_since = min(self._heard.values()) if len(self._heard) >= self._pulsed.partitions else None
            self._told.echoed(self._pulsed.query, echoes, all_since, self._pulsed.seconds)


def _echo(body: bytes | None, now: datetime, sender: str) -> Echo | None:
    """None for a record of somebody else."""
    try:
        fields = json.loads(body or b"")
        if fields["sender"] != sender:
            return None
        enqueued = datetime.fromisoformat(fields["enqueued_time"])
        seconds = max(0.0, (now - enqueued).total_seconds())
        return Echo(str(int(fields["partition"])), int(fields["sequence_number"]), enqueued, seconds)
    except (ValueError, KeyError, TypeError):
        return None

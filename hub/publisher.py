"""Sends records to the hub in batches, tells when the hub has each, and waits when it can't keep up."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from hub.connection import HubConnection

QUEUED_RECORDS = 20_000
QUEUED_KILOBYTES = 65_536
DELIVERY_SECONDS = 120
UNKNOWN_TOPIC_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Record:
    """What goes to a hub. The key decides the partition; without one any partition may be taken."""

    hub: str
    key: bytes | None
    body: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """The hub's acknowledgement: where the record now is."""

    hub: str
    partition: int
    sequence_number: int
    enqueued_ms: int


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The hub did not acknowledge the record; it may have it all the same."""

    hub: str
    reason: str


Outcome = Receipt | NotDelivered


class PublishError(Exception):
    """A record that the hub can never take, such as one that is too large."""


class Publisher(Protocol):
    def publish(self, record: Record, told: Callable[[Outcome], None]) -> None:
        """Queues a record; `told` is called once, from a later `publish`, `serve` or `flush`."""

    def serve(self, seconds: float = 0) -> None:
        """Waits at most this long for outcomes and passes them on."""

    def flush(self) -> None:
        """Returns when every queued record has its outcome."""


class KafkaPublisher:
    """Publishes over the Kafka protocol, each record once in order, acknowledged by all replicas."""

    def __init__(self, connection: HubConnection) -> None:
        self._producer = Producer(
            {
                **connection.client_options(),
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 10,
                "compression.type": "none" if connection.event_hubs else "lz4",
                "queue.buffering.max.messages": QUEUED_RECORDS,
                "queue.buffering.max.kbytes": QUEUED_KILOBYTES,
                "topic.metadata.propagation.max.ms": UNKNOWN_TOPIC_SECONDS * 1000,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "log_level": 2,
            }
        )

    def publish(self, record: Record, told: Callable[[Outcome], None]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            told(_outcome(record.hub, error, message))

        deadline = time.monotonic() + DELIVERY_SECONDS
        while True:
            try:
                self._producer.produce(
                    record.hub, record.body, record.key, headers=list(record.headers), on_delivery=delivered
                )
            except BufferError:
                if time.monotonic() > deadline:
                    raise PublishError(
                        f"The hub took nothing for {DELIVERY_SECONDS} s: check that it runs and has room."
                    ) from None
                self._producer.poll(0.1)
            except KafkaException as error:
                raise PublishError(f"A record for {record.hub} can't be sent: {error.args[0].str()}") from error
            else:
                self._producer.poll(0)
                return

    def serve(self, seconds: float = 0) -> None:
        self._producer.poll(seconds)

    def flush(self) -> None:
        while self._producer.flush(1):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


def _outcome(hub: str, error: KafkaError | None, message: Message) -> Outcome:
    if error is not None:
        return NotDelivered(hub, error.str())
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return Receipt(hub, partition, offset, message.timestamp()[1])
